"""Objects as bodies of requests, answers as objects, and answers that are not what was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from koordebpf.errors import KubeError

MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
T = TypeVar("T")


def reason(error: Exception) -> str:
    """Return what is wrong, of one of `MALFORMED`."""
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)


def malformed(path: str, rule: str, error: Exception) -> KubeError:
    """Return the error of an answer: what was asked, and the rule that the answer breaks."""
    return KubeError(f"{path}: {rule}: {reason(error)}")


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
