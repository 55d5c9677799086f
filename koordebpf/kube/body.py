"""Objects as bodies of requests, and answers as objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from koordebpf.kube.malformed import MALFORMED, malformed

T = TypeVar("T")


def encoded(obj: msgspec.Struct, version: str, kind: str) -> bytes:
    """Return an object as JSON; `version` and `kind` are what its type does not have: apiVersion and kind."""
    return msgspec.json.encode({"apiVersion": version, "kind": kind, **msgspec.to_builtins(obj)})


def decoded(body: Any, decode: Callable[[Any], T], path: str, what: str) -> T:
    """Return what `decode` makes of an answer; `what` it should be is for the error.

    Raises:  KubeError: the answer is not that.
    """
    try:
        return decode(body)
    except MALFORMED as e:
        raise malformed(path, f"the answer is not {what}", e) from e
