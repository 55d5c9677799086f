"""Answers that are not what was asked for: JSON that is cut, has another shape, is no UTF-8 or is nested too deep."""

from __future__ import annotations

from typing import Final

import msgspec

from koordebpf.errors import KubeError

MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def reason(error: Exception) -> str:
    """Return what is wrong, of one of `MALFORMED`."""
    return "it is nested too deep" if isinstance(error, RecursionError) else str(error)


def malformed(path: str, rule: str, error: Exception) -> KubeError:
    """Return the error of an answer: what was asked, and the rule that the answer breaks."""
    return KubeError(f"{path}: {rule}: {reason(error)}")
