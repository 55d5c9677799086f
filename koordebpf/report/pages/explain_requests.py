"""What eviction plugins asked for in vain, out of audit lines, for people. 80 columns."""

from __future__ import annotations

import msgspec

from koordebpf.errors import ConfigError, json_error
from koordebpf.printable import page
from koordebpf.report.pages.columns import filled
from koordebpf.store.write_log import REQUEST_LINE, AuditedRequest, request_sentence

_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_requests(raw: bytes, path: str) -> tuple[tuple[AuditedRequest, ...], tuple[ConfigError, ...]]:
    """Return the requests in `raw`, lines or an array of JSON, and what is wrong with lines of requests."""
    if raw.lstrip()[:1] == b"[":
        try:
            return tuple(msgspec.json.decode(raw, type=list[AuditedRequest])), ()
        except _ERRORS as error:
            return (), (json_error(path, raw, error, rule="must be requests"),)
    requests: list[AuditedRequest] = []
    problems: list[ConfigError] = []
    for number, line in enumerate(raw.splitlines(), start=1):
        if REQUEST_LINE not in line:
            continue
        try:
            requests.append(msgspec.json.decode(line, type=AuditedRequest))
        except _ERRORS as error:
            problems.append(json_error(path, line, error, rule="must be a request", first_line=number))
    return tuple(requests), tuple(problems)


def explained_request(line: AuditedRequest) -> str:
    """Return one request: when and where, and why it was not carried out."""
    return page([f"{line.time} {line.node}", *filled(request_sentence(line.request), "  ")])
