"""The child that builds programs, when it cannot: each way ends with one sentence, and without the child."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from koordebpf.errors import ConfigError, SupportError
from koordebpf.kernel.backends.bcc import BccSignals
from koordebpf.kernel.bcc import child as bcc_child
from koordebpf.kernel.bcc.process import Builder
from koordebpf.kernel.signals import SignalRequest
from tests.support.patience import patience
from tests.support.started import StartedSince


@pytest.fixture
def python_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that lets the child run a line of shell; its arguments are those of Python."""

    def set_to(line: str) -> None:
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\n{line}\n")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))

    return set_to


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def refusal(time_limit_s: float = 60.0) -> str:
    files, since = open_files(), StartedSince()
    with pytest.raises(SupportError) as caught, Builder(Path("/nowhere"), time_limit_s=time_limit_s) as builder:
        builder.build()
    assert not since.children()
    assert open_files() == files
    return str(caught.value)


def is_over(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_its_last_words_are_in_the_error(python_that: Callable[[str], None]) -> None:
    python_that("echo one >&2; echo two >&2; exit 3")
    assert "ended with status 3; one; two" in refusal()


def test_a_killed_child_is_named_by_its_signal(python_that: Callable[[str], None]) -> None:
    python_that("kill -9 $$")
    assert "was killed by SIGKILL" in refusal()


@pytest.mark.slow
def test_a_child_that_never_answers_is_ended_with_its_session(
    python_that: Callable[[str], None], tmp_path: Path
) -> None:
    # A grandchild too: bcc runs tar and modprobe.
    python_that(f"sleep 600 & echo $! > {tmp_path}/grandchild; wait")
    assert "not built after 3 s" in refusal(time_limit_s=3)
    grandchild = int((tmp_path / "grandchild").read_text())
    # It has its signal; it dies when it runs next, and its new parent may not reap it.
    deadline = time.monotonic() + patience(20)
    while not is_over(grandchild):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_many_words_do_not_block_it(python_that: Callable[[str], None]) -> None:
    python_that("yes | head -c 1000000 >&2; exit 1")
    assert "ended with status 1; y; y; y; y." in refusal()


@pytest.fixture
def bcc_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str | None], str]]:
    """Return a function that imports a package `bcc` with this text, None: with none, and tells why it is refused."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "dist-packages" not in path])
    monkeypatch.setattr(bcc_child, "_DISTRIBUTION", str(tmp_path))

    def refuse(text: str | None) -> str:
        if text is not None:
            (tmp_path / "bcc.py").write_text(text)
        with pytest.raises(SupportError) as caught:
            bcc_child.import_bcc()
        return str(caught.value)

    yield refuse
    sys.modules.pop("bcc", None)


def test_a_missing_bcc_is_named_by_its_package(bcc_of: Callable[[str | None], str]) -> None:
    said = bcc_of(None)
    assert "bcc cannot be imported" in said
    assert said.endswith("Install python3-bpfcc (Debian, Ubuntu) or python3-bcc (Fedora).")


def test_what_python_warns_of_in_bcc_is_no_word_of_ours(
    bcc_of: Callable[[str | None], str], capfd: pytest.CaptureFixture[str]
) -> None:
    # As Python 3.12 warns of bcc's "\.".
    assert "is another bcc" in bcc_of("import warnings\nwarnings.warn('invalid escape sequence', SyntaxWarning)\n")
    assert "SyntaxWarning" not in capfd.readouterr().err


def test_the_bcc_of_pypi_is_distinguished(bcc_of: Callable[[str | None], str], tmp_path: Path) -> None:
    said = bcc_of("class Lattice: pass\n")
    assert f"{tmp_path}/bcc.py is another bcc" in said
    assert "Install python3-bpfcc" in said


def test_missing_kernel_headers_are_named_by_their_package(
    bcc_of: Callable[[str | None], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "release", lambda: "6.1.0-none")
    said = bcc_of("BPF = object\n")
    assert "headers are not installed (no /lib/modules/6.1.0-none/build)" in said
    assert "Install linux-headers-6.1.0-none (Debian, Ubuntu)" in said


@pytest.mark.parametrize("release", ["5", "5.4.1", "new", "5.4 -include x"])
def test_a_release_that_is_none_is_refused(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOORDEBPF_BCC_RELEASE", release)
    request = SignalRequest(2, 0, Path("/"), Path("/"), None)
    with pytest.raises(ConfigError, match=r"KOORDEBPF_BCC_RELEASE: .*: must be a kernel release as 5\.4"):
        BccSignals(request, lambda _name, _layout: None)
