"""A guard that is closed: one reason not to act."""

from __future__ import annotations

import msgspec


class ClosedGuard(msgspec.Struct, frozen=True):
    """One reason not to act; `code` is a stable word for metrics."""

    code: str
    sentence: str
