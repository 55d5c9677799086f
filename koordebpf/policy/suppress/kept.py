"""What an agent leaves to its successor of its suppression, and what that one starts from."""

from __future__ import annotations

import msgspec

from koordebpf.policy.reconcile.values import DesiredState
from koordebpf.state.suppression import SuppressState


class KeptSuppression(msgspec.Struct, frozen=True):
    """What an agent leaves to its successor.

    `left_s` is when it ended, by the wall clock since the epoch; `desired` is what files held then, None: of an agent
    that did not say it.
    """

    state: SuppressState
    left_s: float
    desired: DesiredState | None = None

    def is_fresh(self, now_s: float, keep_s: float) -> bool:
        """Tell whether it was left in the last `keep_s` seconds. A clock that was set back counts as too long."""
        return 0 <= now_s - self.left_s <= keep_s


def adopted(kept: KeptSuppression | None, now_s: float, keep_s: float) -> SuppressState:
    """Return the state to start from: the predecessor's for `keep_s` seconds, after that the unknown one.

    From the unknown one the first decision rewrites everything: what a policy wants, or the recovery. Moments on
    CLOCK_MONOTONIC are not carried over: a reboot lies between, perhaps.
    """
    if kept is None or not kept.is_fresh(now_s, keep_s):
        return SuppressState()
    return SuppressState(cpuset=kept.state.cpuset, quota=kept.state.quota, idle=kept.state.idle)
