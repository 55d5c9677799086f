"""Says when a shortage is over: a feature that fired when it was judged last does not any more."""

from __future__ import annotations

from collections.abc import Sequence

from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.plan import FeaturePlan
from koordebpf.state.amount import BYTES, PODS, Resource, unit_of

_OVER = {BYTES: "back below the threshold", PODS: "no plugin wants a pod evicted"}  # by unit
_UNMEASURED = "unmeasured"
_UNJUDGED = frozenset({_UNMEASURED, "no_window", "no_node"})  # nothing is known of whether the shortage lasts


class JudgedFeatures:
    """Remembers whether the node's CPUs were measured once."""

    def __init__(self) -> None:
        self._has_cpu = False

    def after(self, features: Sequence[FeaturePlan], *, has_cpu: bool) -> list[FeaturePlan]:
        """Return those that were judged now; `has_cpu`: with the CPUs measured.

        CPU is measured each second, memory in between as often as it takes: that is no word on CPU.
        """
        self._has_cpu = self._has_cpu or has_cpu
        return [each for each in features if not (self._has_cpu and each.verdict.skipped == _UNMEASURED)]


class EndedShortages:
    """Remembers which features fired when they were judged last."""

    def __init__(self) -> None:
        self._short: frozenset[str] = frozenset()

    def poll(self, features: Sequence[FeaturePlan], now_ns: int) -> list[tuple[str, str]]:
        """Return what is over, as keys and sentences."""
        over = [each for each in features if self._is_over(each.verdict)]
        reasons: dict[Resource, dict[str, None]] = {}
        for each in over:
            reasons.setdefault(each.balance.resource, {})[each.verdict.reason] = None
        fires = {each.verdict.feature for each in features if each.verdict.fires}
        self._short = (self._short - {each.verdict.feature for each in over}) | fires
        return [
            (f"below:{what}:{now_ns}", f"{_OVER.get(unit_of(what), f'no longer short of {what}')}: {'; '.join(why)}")
            for what, why in reasons.items()
        ]

    def _is_over(self, verdict: Verdict) -> bool:
        return verdict.skipped not in _UNJUDGED and verdict.feature in self._short and not verdict.fires
