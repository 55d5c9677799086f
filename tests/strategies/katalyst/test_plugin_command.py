"""`koordebpf plugin serve` as a person types it wrong, before anything is opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordebpf.cli import _group, main
from koordebpf.strategies.katalyst.serve import read_token

pytestmark = pytest.mark.usefixtures("logged")


def ended(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str]:
    with pytest.raises(SystemExit) as end:
        main(["plugin", "serve", *arguments])
    return end.value.code, capfd.readouterr().err


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../x", "x" * 101, "a\x1b[2J", "two\nlines"])
def test_a_name_that_no_socket_or_agent_takes_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    code, said = ended(capfd, "--directory", str(tmp_path), "--name", name)
    assert code == 2
    assert "--name" in said
    assert "must be at most 100 printable characters, without /" in said
    assert "\x1b" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("raw", "rule"), [(b"x" * 10_000, "must be 8192 bytes or less"), (b"\xff\xfe", "must hold text in UTF-8")]
)
def test_a_token_that_cannot_be_sent_is_refused_without_a_word_of_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], raw: bytes, rule: str
) -> None:
    path = tmp_path / "token"
    path.write_bytes(raw)
    code, said = ended(capfd, "--directory", str(tmp_path / "sockets"), "--token-file", str(path))
    assert code == 2
    assert rule in said
    assert "xxxxx" not in said
    assert not (tmp_path / "sockets").exists()


def test_a_pipe_is_no_token_and_is_not_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "token"
    os.mkfifo(path)
    code, said = ended(capfd, "--directory", str(tmp_path / "sockets"), "--token-file", str(path))
    assert code == 2
    assert f"{path}: must be a regular file" in said


def test_a_token_is_read_without_its_line_end(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("Basic YTpi\n")
    assert read_token(path) == "Basic YTpi"
    assert read_token(None) == ""


def test_a_configuration_that_is_wrong_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\neviction: {katalyst: {access: {x: 1}}}"
    )
    code, said = ended(capfd, "--config", str(path))
    assert code == 2
    assert "eviction.katalyst.access" in said


def test_the_help_fits_80_columns_and_has_examples() -> None:
    done = CliRunner().invoke(_group, ["plugin", "serve", "--help"], terminal_width=80, max_content_width=80)
    assert done.exit_code == 0
    assert max(map(len, done.output.splitlines())) <= 80
    assert "koordebpf plugin serve --config config.yaml" in done.output
