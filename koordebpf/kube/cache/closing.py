"""The end of a source that lists and watches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from koordebpf.kube.cache.reflector import Reflector
from koordebpf.kube.http.transport import Transport

_CLOSE_S: Final = 0.9  # threads end within a second


def close_reflectors(reflectors: Sequence[Reflector[Any]], transport: Transport) -> None:
    """Cut the connections of `transport` and end the threads."""
    for reflector in reflectors:
        reflector.stop()
    transport.close()
    deadline = time.monotonic() + _CLOSE_S
    for reflector in reflectors:
        reflector.join(max(0.0, deadline - time.monotonic()))
