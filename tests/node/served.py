"""Files for a guest, by HTTP on this network's loopback."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar


class _Handler(SimpleHTTPRequestHandler):
    # Of a file without a suffix: clients of a registry read a manifest by it, and the type of no other file.
    extensions_map: ClassVar[dict[str, str]] = {"": "application/vnd.oci.image.manifest.v1+json"}

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[int]:
    """Serve the files of a folder; yield the port."""
    handler = functools.partial(_Handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
