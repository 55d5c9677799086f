"""Serves RuntimeHookService from a thread of its own, and tells koord-runtime-proxy of it by a file.

Source: koordinator pkg/koordlet/runtimehooks/proxyserver/server.go; pkg/runtimeproxy/config.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.stoppable_thread import StoppableThread
from koordebpf.kube.nri.counts import NriCounts
from koordebpf.kube.nri.values import Answering
from koordebpf.kube.plugins.server import GrpcServer
from koordebpf.kube.runtime_proxy.service import HookService
from koordebpf.kube.runtime_proxy.settings import STAGES, RuntimeProxySettings
from koordebpf.units import NS_PER_S

_AGAIN_NS = 5 * NS_PER_S  # after a problem with the socket or the file
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
        self._state = (False, "starting")
        self._thread = StoppableThread("runtime-proxy", self._run, begin)
        self._thread.start()

    @property
    def state(self) -> tuple[bool, str]:
        """Whether it serves, and a sentence."""
        return self._state

    def close(self) -> None:
        """Remove the file, then the socket."""
        self._thread.close()

    def _run(self) -> NoReturn:
        while True:
            try:
                with GrpcServer(Path(self._settings.socket), self._methods, time.monotonic()) as server:
                    self._serve(server)
            except (ConfigError, OSError) as error:
                self._state = (False, str(error))
            self._thread.wait(time.monotonic_ns() + _AGAIN_NS)

    def _serve(self, server: GrpcServer) -> NoReturn:
        with self._announced():
            self._state = (True, f"serving koord-runtime-proxy at {self._settings.socket}")
            while True:
                due_s = server.look(time.monotonic())
                self._thread.wait(int(due_s * NS_PER_S), server.fileno())
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
