"""Webhooks: one POST for each call, without a retry or a redirect, over in time whatever a server sends."""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path

import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError, TimeoutError

from koordebpf.act.eviction_hooks.ran import Ran
from koordebpf.act.eviction_hooks.settings import WebhookHook, url_problem
from koordebpf.kube.http.deadlines import Limit, OpenConnections, pool_classes

_READ_BYTES = 4096  # of an answer
_FILE_BYTES = 16 << 10
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_OWN = {"Content-Type": "application/json", "User-Agent": "koordebpf"}


class Webhook:
    """One URL of the settings. `wires` are the open connections of all of them.

    TLS certificates are verified, and environment variables that name proxies are not read.
    """

    def __init__(self, settings: WebhookHook, wires: OpenConnections) -> None:
        self._settings = settings
        self._wires = wires
        self._pool = urllib3.PoolManager(num_pools=1, maxsize=1, cert_reqs="CERT_REQUIRED", ca_certs=settings.ca_file)
        self._pool.pool_classes_by_scheme = pool_classes(wires)
        self._lock = threading.Lock()

    def call(self, payload: bytes) -> Ran:
        """Post the payload; any answer from 200 to 299 is a good one."""
        settings = self._settings
        with self._lock, self._wires.within(settings.timeout_seconds) as limit:
            try:
                return self._post(payload)
            except (HTTPError, http.client.HTTPException, OSError, ValueError) as error:
                return self._failed(error, limit)
            finally:
                # Evictions are rare: a connection that is kept is closed by what lies between long before the next.
                self._pool.clear()

    def _post(self, payload: bytes) -> Ran:
        settings = self._settings
        url = settings.url or read_url(Path(settings.url_file or ""))
        headers = dict(_OWN)
        if settings.headers_file is not None:
            headers |= read_headers(Path(settings.headers_file))
            if not url.startswith("https:"):
                raise ValueError("headersFile needs an https:// url: http is not encrypted")
        response = self._pool.request(
            "POST",
            url,
            body=payload,
            headers=headers,
            timeout=urllib3.Timeout(total=settings.timeout_seconds),
            retries=False,
            redirect=False,
            preload_content=False,
        )
        try:
            said = response.read(_READ_BYTES, decode_content=False).decode(errors="replace")
        finally:
            response.close()
        if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            return Ran("done", "", said)
        is_redirect = response.status < HTTPStatus.BAD_REQUEST
        detail = f"answered {response.status}" + (", and redirects are not followed" if is_redirect else "")
        return Ran("failed", detail, said)

    def _failed(self, error: Exception, limit: Limit) -> Ran:
        # A connection that is refused is of a kind of time-out too, for urllib3.
        if limit.is_over or (isinstance(error, TimeoutError) and not isinstance(error, NewConnectionError)):
            return Ran("timed_out", f"no answer within {self._settings.timeout_seconds} s")
        return Ran("failed", _reason(error))


def read_url(path: Path) -> str:
    """Return the URL that a file holds.

    Raises:  OSError: it cannot be read. ValueError: it holds none; its text, a secret maybe, is not in it.
    """
    url = _read(path).strip()
    if problem := url_problem(url):
        raise ValueError(f"{path}: {problem}")
    return url


def read_headers(path: Path) -> Mapping[str, str]:
    """Return the headers of a file, a line `Name: value` each.

    Raises:  OSError: it cannot be read. ValueError: a line is no header; its text, a secret maybe, is not in it.
    """
    headers: dict[str, str] = {}
    for number, line in enumerate(_read(path).split("\n"), 1):
        if line.strip():
            found = _HEADER.fullmatch(line)
            if found is None:
                raise ValueError(f"{path}:{number}: must be Name: value")
            headers[found[1]] = found[2]
    return headers


def _read(path: Path) -> str:
    with path.open("rb") as file:
        raw = file.read(_FILE_BYTES + 1)
    if len(raw) > _FILE_BYTES:
        raise ValueError(f"{path}: more than {_FILE_BYTES} bytes")
    return raw.decode("latin-1")


# urllib3's texts name objects by their address; the innermost cause says what happened.
def _reason(error: BaseException) -> str:
    while isinstance(inner := error.__cause__ or getattr(error, "reason", None), BaseException):
        error = inner
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
