"""Redis, a database on files, nginx and a JVM, as their users run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from koordebpf.units import MIB
from tests.felt.load.app import PACED, App
from tests.felt.node import Resources


class Redis(App):
    """A cache of 200 MiB that is not saved; a fifth of the requests write."""

    name = "redis"
    asks = Resources(500, 384 * MIB, 1000, 512 * MIB)
    most_rate = 1000

    @property
    def keys(self) -> int:
        """How many it holds, of 2 KiB each."""
        return int(100_000 * self.scale.memory)

    def command(self) -> list[str]:
        return [
            "redis-server",
            "--port",
            str(self.port),
            "--save",
            "",
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self.folder),
        ]

    def fill(self) -> None:
        self.ask("fill_redis", str(self.port), str(self.keys))

    def client(self) -> list[str]:
        return ["redis", str(self.port), str(self.keys)]


class Sqlite(App):
    """A database of 1.1 GiB in a container of 640 MiB; a tenth of the transactions write and wait for the disk.

    SQLite is a library: the client is the application, and runs in the pod.
    """

    name = "sqlite"
    asks = Resources(500, 512 * MIB, 1000, 640 * MIB)
    most_rate = 400
    most_rows: ClassVar[int] = 280_000

    @property
    def rows(self) -> int:
        """How many its table has."""
        return int(self.most_rows * self.scale.memory)

    @property
    def _file(self) -> Path:
        return self.folder / "db"

    def prepare(self) -> None:
        self.ask("fill_sqlite", str(self._file), str(self.rows))

    def command(self) -> list[str]:
        return []

    # The pages that a flood of page cache evicted are read again, so that every cell starts alike.
    def ensure(self) -> bool:
        warm = self.node.start(self.container, ["cat", str(self._file)], score=self.node.score(self.name))
        warm.wait()
        return False

    def client(self) -> list[str]:
        return ["sqlite", str(self._file), str(self.rows)]

    def send(self, *command: str | Path) -> subprocess.Popen[bytes]:
        assert command[0] == PACED
        run = [sys.executable, "-S", *map(str, command)]
        return self.node.start(self.container, run, score=self.node.score(self.name))


class Nginx(App):
    """A file of 16 KiB out of the page cache, two workers."""

    name = "nginx"
    asks = Resources(500, 128 * MIB, 1000, 256 * MIB)
    most_rate = 1000

    def prepare(self) -> None:
        (self.folder / "page").write_bytes(b"x" * 16384)
        # Workers run as root: the folder is root's alone.
        (self.folder / "nginx.conf").write_text(
            f"daemon off; user root; worker_processes 2; pid {self.folder}/pid; error_log {self.folder}/error;\n"
            f"events {{}}\nhttp {{ access_log off; keepalive_requests 100000000;\n"
            f"  server {{ listen 127.0.0.1:{self.port}; root {self.folder}; }} }}\n"
        )

    def command(self) -> list[str]:
        return ["nginx", "-c", str(self.folder / "nginx.conf")]

    def client(self) -> list[str]:
        return ["http", str(self.port), "/page"]


class Jvm(App):
    """A Java HTTP server whose requests make garbage, with a heap of 256 MiB."""

    name = "jvm"
    asks = Resources(500, 384 * MIB, 1000, 512 * MIB)
    most_rate = 500

    def prepare(self) -> None:
        compile_java("Serve", self.folder)

    def command(self) -> list[str]:
        return [
            "java",
            "-Xmx256m",
            "-Dsun.net.httpserver.nodelay=true",
            "-cp",
            str(self.folder),
            "Serve",
            str(self.port),
        ]

    # The compiler has seen the methods before the first cell.
    def fill(self) -> None:
        self.measure(4)

    def client(self) -> list[str]:
        return ["http", str(self.port), "/"]


def compile_java(name: str, folder: Path) -> None:
    """Compile one class of this folder."""
    source = Path(__file__).with_name(f"{name}.java")
    subprocess.run(["javac", "-d", str(folder), str(source)], check=True, capture_output=True, timeout=120)


APPS: dict[str, type[App]] = {each.name: each for each in (Redis, Sqlite, Nginx, Jvm)}
