"""A container runtime's side of NRI in a process of its own: containerd's library, asked by lines of JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.cluster.binaries import say_line
from tests.cluster.nri_programs import nri_program
from tests.contract.apiserver import until


class NriRuntime:
    """Plugins connect to `socket`.

    Args:
        socket: of at most 107 bytes.
        pods: that a plugin is synchronized with, with three containers each.
        padding: bytes that each of these has.
        before: a command that it is an argument of.
    """

    def __init__(self, socket: Path, pods: int = 0, padding: int = 100, before: Sequence[str] = ()) -> None:
        self._program = subprocess.Popen(
            [*before, nri_program(say_line), "-socket", str(socket), "-pods", str(pods), "-padding", str(padding)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(
        self, op: str, pod: Any = None, container: Any = None, *, times: int = 1, pause_us: int = 0
    ) -> dict[str, Any]:
        """Return what all plugins together answer; `us` has how long each call took."""
        assert self._program.stdin and self._program.stdout
        asked = {"op": op, "pod": pod, "container": container, "times": times, "pauseUs": pause_us}
        self._program.stdin.write(json.dumps({key: value for key, value in asked.items() if value is not None}) + "\n")
        self._program.stdin.flush()
        answer: dict[str, Any] = json.loads(self._program.stdout.readline())
        return answer

    def log(self) -> list[str]:
        """Return what the library has logged."""
        return list(self.ask("log")["log"])

    def synchronized(self, plugin: str) -> int:
        """Return how often a plugin of this name was connected and synchronized."""
        return sum(f'plugin "{plugin}" connected and synchronized' in line for line in self.log())

    def wait_for(self, plugin: str, times: int = 1) -> None:
        """Wait until a plugin is connected."""
        until(lambda: self.synchronized(plugin) >= times, f"plugin {plugin}")

    def kill(self) -> None:
        """End it as a crash does."""
        self._program.kill()
        self._program.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._program.stdin, self._program.stdout):
            if pipe:
                pipe.close()
