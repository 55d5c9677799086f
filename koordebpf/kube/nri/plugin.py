"""The plugin's thread: at most one connection to the runtime, answered at once and made again when it ends.

The thread takes no lock, reads no file, logs nothing and waits for nothing but the socket. What it answers from is
replaced by the agent as one object.

Source: koordinator pkg/koordlet/runtimehooks/nri/server.go, whose reconnecting once registered the plugin twice
(koordinator issue 2334): the runtime then refuses every container that both adjust.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator

from koordebpf.errors import DecodeError, KubeError
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.worker import StoppableThread, Stopped
from koordebpf.kube.nri.session import RegistrationRefused, Session
from koordebpf.kube.nri.values import Answering, NriCounts
from koordebpf.kube.runtime_settings import NriSettings
from koordebpf.units import NS_PER_S

_READ_BYTES = 1 << 18
_SEND_NS = 2 * NS_PER_S  # Why: a runtime that reads nothing for so long has given up its call


class NriPlugin(Closing):
    """Stays registered with the runtime until `close`.

    Args:
        settings: of the plugin.
        answering: what is asked for each container, in the plugin's thread.
        begin: run first in that thread.
    """

    def __init__(self, settings: NriSettings, answering: Answering, begin: Callable[[], object] | None = None) -> None:
        self.counts = NriCounts()
        self._settings = settings
        self._answering = answering
        self._state = (False, "starting")
        self._thread = StoppableThread("nri", self._run, begin)
        self._thread.start()

    @property
    def state(self) -> tuple[bool, str]:
        """Whether a runtime has taken the plugin, and a sentence."""
        return self._state

    def close(self) -> None:
        """End the connection and the thread."""
        self._thread.close()

    def _run(self) -> None:
        pauses = _pauses(self._settings)
        while True:
            problem = self._connect_once()
            if self._state[0]:
                pauses = _pauses(self._settings)  # it was a good one
            self._state = (False, problem)
            self._thread.wait(time.monotonic_ns() + next(pauses))

    # One connection, from connect to close. The next one is made after its socket is closed.
    def _connect_once(self) -> str:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as trunk:
                trunk.connect(self._settings.socket)
                return self._serve(trunk)
        except BlockingIOError:
            return f"{self._settings.socket}: the runtime accepts no connection"
        except (FileNotFoundError, ConnectionRefusedError):
            return f"{self._settings.socket}: no runtime listens there"
        except (OSError, KubeError, DecodeError) as error:
            return f"{self._settings.socket}: {error}"
        except Stopped:
            raise
        except Exception as error:  # a fault of ours ends one connection, not the thread
            return f"{self._settings.socket}: {type(error).__name__}: {error}"

    def _serve(self, trunk: socket.socket) -> str:
        session = Session(self._settings, self._answering, self.counts)
        self._send(trunk, session.opening())
        due_ns: int | None = time.monotonic_ns() + self._settings.registration_timeout_ns
        while True:
            if not self._thread.wait(due_ns, trunk.fileno()):
                raise RegistrationRefused("the runtime did not configure the plugin in time")
            try:
                data = trunk.recv(_READ_BYTES)
            except BlockingIOError:
                continue
            if not data:
                return f"{self._settings.socket}: the runtime closed the connection"
            for answer in session.receive(data):
                self._send(trunk, answer)
            if session.is_configured:
                due_ns = None  # it synchronizes when none of its pods is being created
            if session.is_synchronized and not self._state[0]:
                self.counts.registrations += 1
                self._state = (True, f"registered with {session.runtime}")

    def _send(self, trunk: socket.socket, data: bytes) -> None:
        view = memoryview(data)
        due_ns = time.monotonic_ns() + _SEND_NS
        while view:
            try:
                view = view[trunk.send(view) :]
            except BlockingIOError:
                if not self._thread.wait(due_ns, trunk.fileno(), select.POLLOUT):
                    raise RegistrationRefused("the runtime does not read its answers") from None


def _pauses(settings: NriSettings) -> Iterator[int]:
    pause_ns = settings.backoff_ns
    while True:
        yield pause_ns
        pause_ns = min(2 * pause_ns, settings.backoff_cap_ns)
