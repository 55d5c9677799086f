"""Delete pods through the API server, past their PodDisruptionBudgets."""

from __future__ import annotations

from typing import Protocol

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.api import ApiLimits, RequestExecutor


class Deletes(Protocol):
    """The one call this executor makes; `kube.clients.deletions.PodDeletions` has it."""

    def delete(self, namespace: str, name: str, uid: str, *, timeout_s: float, grace_s: int | None = None) -> None:
        """Delete a pod with the UID as precondition."""

    def close(self) -> None:
        """Let requests that wait fail at once."""


class DeletionExecutor(RequestExecutor):
    """Sends deletions. No PodDisruptionBudget is asked: for operators who name it, and for no other.

    Owns `api` and closes it.
    """

    name = "delete"

    def __init__(
        self, api: Deletes, outcomes: OutcomeQueue, *, limits: ApiLimits | None = None, enforce: bool = False
    ) -> None:
        super().__init__(api.delete, api.close, outcomes, limits=limits, enforce=enforce)
        self._api = api

    def close(self) -> None:
        """Stop; what is on its way has a second."""
        super().close()
        self._api.close()
