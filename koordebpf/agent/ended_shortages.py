"""Says when a shortage is over: a feature that fired when it was judged last does not any more."""

from __future__ import annotations

from collections.abc import Sequence

from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.evict.cpu_features import CPU_FEATURES
from koordebpf.policy.plan import FeaturePlan

BY_CPU = frozenset(feature.name for feature in CPU_FEATURES)
_UNMEASURED = "unmeasured"
_UNJUDGED = frozenset({_UNMEASURED, "no_window", "no_node"})  # nothing is known of whether the shortage lasts


class EndedShortages:
    """Remembers which features fired when they were judged last."""

    def __init__(self) -> None:
        self._short: frozenset[str] = frozenset()
        self._has_cpu = False  # the node's CPUs were measured once

    def judged(self, features: Sequence[FeaturePlan], *, has_cpu: bool) -> list[FeaturePlan]:
        """Return those that were judged now; `has_cpu`: with the CPUs measured.

        CPU is measured each second, memory in between as often as it takes: that is no word on CPU.
        """
        self._has_cpu = self._has_cpu or has_cpu
        return [each for each in features if not (self._has_cpu and each.verdict.skipped == _UNMEASURED)]

    def look(self, verdicts: Sequence[Verdict], now_ns: int) -> list[tuple[str, str]]:
        """Return what is over, as keys and sentences."""
        over = [
            each
            for each in verdicts
            if each.skipped not in _UNJUDGED and each.feature in self._short and not each.fires
        ]
        memory = dict.fromkeys(each.reason for each in over if each.feature not in BY_CPU)
        cpu = dict.fromkeys(each.reason for each in over if each.feature in BY_CPU)
        sentences: list[tuple[str, str]] = []
        if memory:
            sentences.append((f"below:{now_ns}", f"back below the threshold: {'; '.join(memory)}"))
        if cpu:
            sentences.append((f"below:cpu:{now_ns}", f"no longer short of CPU: {'; '.join(cpu)}"))
        fires = {each.feature for each in verdicts if each.fires}
        self._short = (self._short - {each.feature for each in over}) | fires
        return sentences
