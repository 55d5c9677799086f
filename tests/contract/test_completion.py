"""`koordebpf completion` in the shells themselves: what Tab makes of the start of a word."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which this koordebpf is the one that PATH has."""
    program = tmp_path / "bin/koordebpf"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m koordebpf "$@"\n')
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "TERM": "dumb", "LANG": "C.UTF-8"}


def script_of(shell: str, environment: dict[str, str]) -> str:
    return subprocess.check_output(["koordebpf", "completion", shell], env=environment, text=True)


CASES = [("koordebpf doct", "doctor"), ("koordebpf slo re", "render"), ("koordebpf demo --story page", "page-cache")]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(("line", "completed"), CASES)
def test_bash_completes(programs: dict[str, str], line: str, completed: str) -> None:
    words = " ".join(f"'{word}'" for word in line.split())
    asked = f"COMP_WORDS=({words}); COMP_CWORD={len(line.split()) - 1}; _koordebpf_completion koordebpf"
    script = f'{script_of("bash", programs)}\n{asked}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "--norc", "-c", script], env=programs, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [completed]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed; apt-get install fish")
@pytest.mark.parametrize(("line", "completed"), CASES)
def test_fish_completes(programs: dict[str, str], line: str, completed: str) -> None:
    script = f'{script_of("fish", programs)}\ncomplete -C "{line}"'
    done = subprocess.run(
        ["fish", "--no-config", "-c", script], env=programs, capture_output=True, text=True, check=True
    )
    assert [each.split("\t")[0] for each in done.stdout.splitlines()] == [completed]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed; apt-get install zsh")
def test_zsh_completes(programs: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "script").write_text(script_of("zsh", programs))
    with Terminal(["zsh", "-f", "-i"], programs) as zsh:
        zsh.types("PS1='%% '; unsetopt zle_bracketed_paste; autoload -Uz compinit; compinit -u -D\n")
        zsh.types(f"source {tmp_path}/script; echo re''ady\n")
        zsh.says("ready")
        for line, completed in CASES:
            zsh.types(f"{line}\t")
            zsh.says(f"{line.rsplit(maxsplit=1)[0]} {completed}")
            zsh.types("\x15")  # ^U: the line is not run


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._seen = ""
        self._child, self._fd = pty.fork()
        if self._child == 0:
            os.execvpe(command[0], command, environment)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        os.waitpid(self._child, 0)

    def types(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def says(self, wanted: str, within_s: float = 20) -> None:
        """Wait until the shell has printed it since the last such text."""
        until = time.monotonic() + within_s
        while wanted not in self._seen:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                raise AssertionError(f"no {wanted!r} in {self._seen!r}")
            self._seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|.\x08", "", os.read(self._fd, 65536).decode(errors="replace"))
        self._seen = self._seen.partition(wanted)[2]
