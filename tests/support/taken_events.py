"""Events as an agent posts them, without an API server."""

from __future__ import annotations

from datetime import datetime


class TakenEvents:
    """Takes every Event: `events` are their reason, kind, message and action."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str | None]] = []

    def create_event(
        self,
        namespace: str,
        name: str,
        uid: str,
        *,
        reason: str,
        message: str,
        at: datetime,
        timeout_s: float,
        kind: str = "Warning",
        action: str | None = None,
        about: str = "Pod",
    ) -> None:
        self.events.append((reason, kind, message, action))

    def close(self) -> None:
        """Nothing waits here."""
