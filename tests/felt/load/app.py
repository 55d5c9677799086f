"""An application in a latency-sensitive pod, and its client."""

from __future__ import annotations

import array
import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar, NamedTuple

from tests.bench.report import CannotMeasure
from tests.felt.node import FULL, FeltNode, Resources, Scale
from tests.support.ports import free_ports

PACED = Path(__file__).with_name("paced.py")
_UP_S = 30.0


class Answers(NamedTuple):
    """What a client got: how long each request took in ms, and how many were not answered."""

    took_ms: list[float]
    lost: int


class App:
    """One application; a subclass says what it is.

    Args:
        node: where it runs.
        folder: for its files, on the disk that best-effort pods use too.
        scale: less of all for a smaller machine.
    """

    name: ClassVar[str]
    asks: ClassVar[Resources]
    most_rate: ClassVar[float]  # requests a second

    def __init__(self, node: FeltNode, folder: Path, scale: Scale = FULL) -> None:
        self.node, self.scale = node, scale
        self.rate = self.most_rate * scale.rate
        self.folder = folder / self.name
        self.folder.mkdir()
        self.folder.chmod(0o755)
        (self.port,) = free_ports(1)
        self.container = node.add_ls(self.name, self.asks.scaled(scale.memory))
        self._process: subprocess.Popen[bytes] | None = None
        self.stuck = ""  # where in the kernel a client waited that did not end in time
        self.prepare()

    def prepare(self) -> None:
        """Make what it needs on disk."""

    def command(self) -> list[str]:
        """Return how it is started; an empty list: it has no process beside its client."""
        raise NotImplementedError

    def fill(self) -> None:
        """Give it its data, once it runs."""

    def client(self) -> list[str]:
        """Return kind and arguments of the client."""
        raise NotImplementedError

    def ensure(self) -> bool:
        """Start it unless it runs; return whether it had to be started."""
        if self.command() and (self._process is None or self._process.poll() is not None):
            self.node.kill(self.container)
            self._process = self.node.start(self.container, self.command(), score=self.node.score(self.name))
            self._wait()
            self.fill()
            return True
        return False

    def measure(self, seconds: float) -> Answers:
        """Send requests for so long."""
        out = self.folder / "took"
        out.unlink(missing_ok=True)
        kind, *more = self.client()
        client = self.send(PACED, kind, str(self.rate), str(seconds), str(out), *more)
        try:
            client.wait(seconds + 30)
        except subprocess.TimeoutExpired:
            self.stuck = self._where(client.pid)
        client.kill()
        client.wait()
        took = array.array("d")
        if out.exists():
            took.frombytes(out.read_bytes())
        answered = [each for each in took if each >= 0]
        return Answers([abs(each) for each in took], round(self.rate * seconds) - len(answered))

    def send(self, *command: str | Path) -> subprocess.Popen[bytes]:
        """Start a client outside of the node."""
        return subprocess.Popen([sys.executable, "-S", *map(str, command)], stderr=subprocess.DEVNULL)

    def ask(self, *arguments: str) -> None:
        """Let the client fill the application."""
        subprocess.run([sys.executable, "-S", PACED, *arguments], check=True, timeout=600)

    def _where(self, pid: int) -> str:
        with contextlib.suppress(OSError):
            return ", ".join(line.split()[-1] for line in Path(f"/proc/{pid}/stack").read_text().splitlines()[:8])
        return "unknown"

    def _wait(self) -> None:
        until = time.monotonic() + _UP_S
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise CannotMeasure(f"{self.name} does not answer")
