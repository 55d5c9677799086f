"""How requests of eviction plugins that are not carried out are recorded: a line of the audit, and a sentence."""

from __future__ import annotations

from typing import Literal

import msgspec

from koordebpf.policy.requests import RequestNews
from koordebpf.units import format_utc

_SCHEMA: Literal["koordebpf.request/v1"] = "koordebpf.request/v1"
REQUEST_LINE = f'"schema":"{_SCHEMA}"'.encode()  # no other line of the audit has it


class AuditedRequest(msgspec.Struct, frozen=True):
    """One request as a line of the audit log, beside the lines of evictions. `time` is RFC 3339 UTC."""

    schema: Literal["koordebpf.request/v1"]
    time: str
    node: str
    request: RequestNews


def audited_request(request: RequestNews, node: str, wall_s: float) -> AuditedRequest:
    """Return the line."""
    return AuditedRequest(_SCHEMA, format_utc(wall_s), node, request)


def request_sentence(request: RequestNews) -> str:
    """Return what became of one request, for people."""
    pod = f"{request.namespace}/{request.name}" if request.name else f"pod {request.uid}"
    if request.outcome == "dry_run":
        return f"dry run of {request.plugin}, {pod} is not evicted: {request.reason}"
    return f"{request.plugin} asks for {pod} and is refused: {request.reason}"
