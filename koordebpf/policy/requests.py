"""What a strategy wants of a pod that is no eviction: a notice to it, and a request that is not carried out. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec


class SoftNotice(NamedTuple):
    """A pod that is asked to leave by itself, by which plugin and why."""

    namespace: str
    name: str
    plugin: str
    reason: str
    uid: str


class RequestNews(msgspec.Struct, frozen=True):
    """One request that is not carried out. `namespace` and `name` are "" where no such pod is known."""

    plugin: str
    uid: str
    namespace: str
    name: str
    outcome: Literal["refused", "dry_run"]
    code: str
    reason: str
