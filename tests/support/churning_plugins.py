"""Eviction plugins that come, die and return at random, in a process of their own: `python -m … FOLDER COUNT`.

A line `all` on standard input lets all of them serve, `none` none; both are answered by the same line. Else, ten times
a second, one of them dies and removes its socket, dies and leaves it, or returns.
"""

from __future__ import annotations

import random
import select
import sys
import time
from pathlib import Path

from koordebpf.kube.plugins.messages import PLUGIN_SERVICE, REGISTRATION_SERVICE
from koordebpf.kube.plugins.server import GrpcServer
from koordebpf.strategies.katalyst.serve import plugin_info, threshold_message
from koordebpf.strategies.katalyst.values import Threshold

_PAUSE_S = 0.1


class Plugins:
    """The plugins of one folder, by number; None: that one is dead."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._servers: dict[int, GrpcServer | None] = dict.fromkeys(range(count))
        self._random = random.Random(1)
        self._epoll = select.epoll()
        self._epoll.register(sys.stdin, select.EPOLLIN)
        self._churns = True

    def run(self) -> None:
        due_s = time.monotonic()
        while True:
            for fd, _ in self._epoll.poll(max(due_s - time.monotonic(), 0)):
                if fd == sys.stdin.fileno() and not self._command():
                    return
            for server in self._servers.values():
                if server is not None:
                    server.serve(time.monotonic())
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + _PAUSE_S
                if self._churns:
                    self._change(self._random.choice(list(self._servers)))

    def _command(self) -> bool:
        line = sys.stdin.readline().strip()
        self._churns = line not in ("all", "none")
        for number, server in self._servers.items():
            if line == "all" and server is None:
                self._start(number)
            elif line == "none" and server is not None:
                self._end(number, server)
        print(line, flush=True)
        return bool(line)

    def _change(self, number: int) -> None:
        if (server := self._servers[number]) is None:
            self._start(number)
        else:
            self._end(number, server, leaves=self._random.random() < 0.5)

    def _start(self, number: int) -> None:
        name = f"plugin-{number}"
        threshold = Threshold("soft", name, 1, 2)
        methods = {
            f"{REGISTRATION_SERVICE}/GetInfo": lambda _: plugin_info(name),
            f"{REGISTRATION_SERVICE}/NotifyRegistrationStatus": lambda _: b"",
            f"{PLUGIN_SERVICE}/GetToken": lambda _: b"",
            f"{PLUGIN_SERVICE}/ThresholdMet": lambda _: threshold_message(threshold),
            f"{PLUGIN_SERVICE}/GetEvictPods": lambda _: b"",
        }
        self._servers[number] = server = GrpcServer(self._folder / f"{name}.sock", methods, time.monotonic())
        self._epoll.register(server.fileno(), select.EPOLLIN)

    def _end(self, number: int, server: GrpcServer, *, leaves: bool = False) -> None:
        self._epoll.unregister(server.fileno())
        self._servers[number] = None
        path = self._folder / f"plugin-{number}.sock"
        if not leaves:
            server.close()
            return
        aside = path.with_name(f".{path.name}")  # as a process that is killed leaves its socket
        path.rename(aside)
        server.close()
        aside.rename(path)


if __name__ == "__main__":
    Plugins(Path(sys.argv[1]), int(sys.argv[2])).run()
