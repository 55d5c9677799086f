"""What an answer brings, as it comes or to its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from koordebpf.errors import KubeError, KubeTooLarge

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

MAX_BODY_BYTES: Final = 64 << 20
_CHUNK_BYTES: Final = 64 << 10


def chunks(response: BaseHTTPResponse) -> Iterator[bytes]:
    """Yield an answer as it comes.

    An API server sends a watch in chunks, and read_chunked() runs through half the code that read1() does: for an event
    by itself, which finds none of it in the processor's caches, 10 to 20 µs less.
    """
    if response.chunked:
        return response.read_chunked(_CHUNK_BYTES, decode_content=False)
    return iter(lambda: response.read1(_CHUNK_BYTES), b"")


def whole(response: BaseHTTPResponse, deadline: float, what: str, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return an answer to its end, until a time of time.monotonic().

    Raises:  KubeError: it did not end. KubeTooLarge: it has more than `max_bytes`.
    """
    body = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > max_bytes:
            raise KubeTooLarge(f"{what}: an answer of more than {max_bytes} bytes")
        # The socket's own time-out restarts with every byte.
        if time.monotonic() > deadline:
            raise KubeError(f"{what}: the answer did not end in time, the outcome is unknown")
    return bytes(body)
