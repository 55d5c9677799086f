"""What became of a plan."""

from __future__ import annotations

import enum
from typing import Literal

import msgspec


class Result(enum.Enum):
    """How one action ended."""

    DONE = "done"
    DRY_RUN = "dry_run"  # would have been done
    HELD = "held"  # a guard is closed; nothing was sent
    REFUSED = "refused"  # 429 by a PodDisruptionBudget, 403
    GONE = "gone"  # the pod or its cgroup was already gone, or is another one now
    FAILED = "failed"  # tried, not done; may be tried again
    SENT = "sent"  # handed to the API server's queue, answer outstanding


class Outcome(msgspec.Struct, frozen=True):
    """What became of one victim. Times are CLOCK_MONOTONIC nanoseconds; None: not reached."""

    uid: str
    namespace: str
    name: str
    executor: str  # api, cgroup
    result: Result
    detail: str  # one sentence
    decided_ns: int
    sent_ns: int | None = None
    answered_ns: int | None = None
    retry_at_ns: int | None = None
    killed_tasks: int | None = None  # cgroup executor

    @property
    def was_sent(self) -> bool:
        """Whether a signal or a request that may have ended the pod went out."""
        if self.result is Result.FAILED:
            return self.sent_ns is not None
        return self.result in (Result.DONE, Result.SENT) and self.killed_tasks != 0


class HookResult(msgspec.Struct, frozen=True):
    """The result of one call of a hook around an eviction (`evictionHooks`).

    `outcome` dropped: it was not called, because too many calls were before it. `detail`: why not well, as a sentence.
    """

    hook: str
    when: Literal["before", "after"]
    outcome: Literal["done", "failed", "timed_out", "dropped"]
    took_ns: int
    detail: str = ""
