"""Serves RuntimeHookService from a thread of its own, and tells koord-runtime-proxy of it by a file.

Source: koordinator pkg/koordlet/runtimehooks/proxyserver/server.go; pkg/runtimeproxy/config.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kernel.io.closing import Closing
from koordebpf.kube.nri.counts import NriCounts
from koordebpf.kube.nri.values import Answering
from koordebpf.kube.plugins.server import GrpcServer
from koordebpf.kube.runtime_proxy.service import HookService
from koordebpf.kube.runtime_proxy.settings import STAGES, RuntimeProxySettings

_AGAIN_S = 5.0  # after a problem with the socket or the file
_MODE = 0o644  # Why: koordlet's; the proxy may run as another user
_POLICIES = {"ignore": "Ignore", "fail": "Fail"}


class RuntimeProxyServer(Closing):
    """Serves until `close`, and removes its file then.

    Args:
        settings: of the server.
        answering: what is asked for each container, in the server's thread.
        begin: run first in that thread.
    """

    def __init__(
        self, settings: RuntimeProxySettings, answering: Answering, begin: Callable[[], object] | None = None
    ) -> None:
        self.counts = NriCounts()
        self._settings = settings
        self._methods = HookService(answering, self.counts, fails=settings.failure_policy == "fail").methods
        self._begin = begin
        self._state = (False, "starting")
        self._stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="runtime-proxy", daemon=True)
        self._thread.start()

    @property
    def state(self) -> tuple[bool, str]:
        """Whether it serves, and a sentence."""
        return self._state

    def close(self) -> None:
        """Remove the file, then the socket."""
        if self._stop_fd < 0:
            return
        os.eventfd_write(self._stop_fd, 1)
        self._thread.join()
        fd, self._stop_fd = self._stop_fd, -1
        os.close(fd)

    def _run(self) -> None:
        if self._begin is not None:
            self._begin()
        while True:
            try:
                with GrpcServer(Path(self._settings.socket), self._methods, time.monotonic()) as server:
                    self._serve(server)
                    return
            except (ConfigError, OSError) as error:
                self._state = (False, str(error))
            if _is_stopped(self._stop_fd, _AGAIN_S):
                return

    def _serve(self, server: GrpcServer) -> None:
        poll = select.poll()
        for fd in (self._stop_fd, server.fileno()):
            poll.register(fd, select.POLLIN)
        with self._announced():
            self._state = (True, f"serving koord-runtime-proxy at {self._settings.socket}")
            while True:
                due_s = server.look(time.monotonic())
                ready = poll.poll(max(0.0, due_s - time.monotonic()) * 1000)
                if any(fd == self._stop_fd for fd, _ in ready):
                    return
                server.serve(time.monotonic())

    # The proxy asks the agent from when the file is there until it is gone.
    @contextlib.contextmanager
    def _announced(self) -> Iterator[None]:
        path = Path(self._settings.config_file)
        said = {
            "remote-endpoint": self._settings.host_socket or self._settings.socket,
            "failure-policy": _POLICIES[self._settings.failure_policy],
            "runtime-hooks": [each for each in STAGES if each not in self._settings.disabled_stages],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.unfinished")
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(said), indent=2))
        unfinished.chmod(_MODE)
        unfinished.rename(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _is_stopped(stop_fd: int, within_s: float) -> bool:
    poll = select.poll()
    poll.register(stop_fd, select.POLLIN)
    return bool(poll.poll(within_s * 1000))
