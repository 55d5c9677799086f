"""The Unix socket that `koordebpf explain` asks: who may open its file, what becomes of one that was left behind."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordebpf.cli.explain import explain
from koordebpf.errors import ConfigError
from koordebpf.report.http.local_socket import ACTING_NAME, LocalSocket, agent_socket, asked
from koordebpf.report.http.routes import DecisionServer


@contextlib.contextmanager
def serving(folder: Path, *, acts: bool) -> Iterator[Path]:
    local = LocalSocket(folder, acts=acts)
    with contextlib.closing(DecisionServer(local, tuple, tuple)):
        yield local.path


def left_behind(path: Path) -> None:
    """Leave the file of a socket without a listener, as an agent that was killed does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as sock, contextlib.chdir(path.parent):
        sock.bind(path.name)


def test_only_its_owner_may_open_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with serving(tmp_path / "run" / "machine", acts=True) as path:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert asked(path, "decisions") == b"[]\n"
            with pytest.raises(http.client.HTTPException, match="404"):
                asked(path, "metrics")
    finally:
        os.umask(before)
    assert not path.parent.exists()


def test_a_path_longer_than_a_sockets_address(tmp_path: Path) -> None:
    with serving(tmp_path / ("n" * 120) / ("m" * 100), acts=True) as path:
        assert asked(path, "writes") == b"[]\n"


def test_what_an_agent_left_that_was_killed_is_replaced(tmp_path: Path) -> None:
    left_behind(tmp_path / ACTING_NAME)
    left_behind(tmp_path / "watching-0011aabb.sock")
    with pytest.raises(ConfigError, match="is one running"):
        agent_socket(tmp_path.parent)
    with serving(tmp_path, acts=True) as path:
        assert asked(path, "decisions") == b"[]\n"
        assert [each.name for each in tmp_path.iterdir()] == [ACTING_NAME]


def test_who_acts_is_asked_before_who_watches(tmp_path: Path) -> None:
    with serving(tmp_path / "a", acts=False) as first:
        assert agent_socket(tmp_path) == first
        with serving(tmp_path / "a", acts=False) as second:
            with pytest.raises(ConfigError, match="name one with --url"):
                agent_socket(tmp_path)
            with serving(tmp_path / "a", acts=True) as acting:
                assert agent_socket(tmp_path) == acting
                assert {first, second} <= set((tmp_path / "a").iterdir())
                with serving(tmp_path / "b", acts=True), pytest.raises(ConfigError, match="has 2 agents"):
                    agent_socket(tmp_path)


def test_the_next_one_is_not_taken_away_by_the_one_before(tmp_path: Path) -> None:
    first = LocalSocket(tmp_path, acts=True)
    before = DecisionServer(first, tuple, tuple)
    with serving(tmp_path, acts=True) as path:
        before.close()
        assert asked(path, "decisions") == b"[]\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(PermissionError, match="belongs to another user"):
        LocalSocket(tmp_path, acts=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_folder_that_others_may_write_or_a_link_to_one_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match="others may write"):
        LocalSocket(tmp_path, acts=True)
    tmp_path.chmod(0o700)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="Not a directory"):
        LocalSocket(tmp_path / "link", acts=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_gets_no_answer(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:-1]:
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    before = os.umask(0)  # nor where that of the agent's start leaves every right
    try:
        with serving(tmp_path / "machine", acts=True) as path:
            path.parent.chmod(0o755)  # so that the file's own mode counts
            child = os.fork()
            if child == 0:
                os.setgid(65534)
                os.setuid(65534)
                try:
                    asked(path, "decisions")
                except PermissionError:
                    os._exit(7)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    finally:
        os.umask(before)


def test_explain_finds_it_or_takes_its_path(tmp_path: Path) -> None:
    with serving(tmp_path / "machine", acts=False) as path:
        for arguments in (["--run-dir", str(tmp_path)], ["--url", str(path)]):
            result = CliRunner().invoke(explain, arguments, catch_exceptions=False)
            assert result.exit_code == 0
            assert f"in {path}" in result.output
    with pytest.raises(ConfigError, match="is one running"):
        CliRunner().invoke(explain, ["--run-dir", str(tmp_path)], catch_exceptions=False)
