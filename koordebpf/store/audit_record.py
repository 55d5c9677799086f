"""One line of the audit: what was known, what was decided, what became of it.

The line is written when every victim's outcome is final, so that one line tells the whole story. What is in progress
until then stands in another file (`wal`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from koordebpf.kernel.signals import SignalQuality
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.evict.feature_round import evict_message
from koordebpf.policy.plan import Balance, Candidate, Excluded, FeaturePlan, Plan
from koordebpf.state.amount import MEMORY
from koordebpf.state.outcome import HookResult, Outcome, Result
from koordebpf.units import format_utc

_BEST = 10  # candidates of the ranking that a line holds


class AuditedFeature(msgspec.Struct, frozen=True, omit_defaults=True):
    """One feature's decision. `ranking` holds the ten best of `candidates`."""

    verdict: Verdict
    balance: Balance
    candidates: int
    ranking: tuple[Candidate, ...]
    victims: tuple[str, ...]  # uids, in order
    excluded: tuple[Excluded, ...]
    reason: str
    not_honoured: tuple[Excluded, ...] = ()  # what would have spared one of the ranking
    reasons: Mapping[str, str] = {}  # why each victim is evicted, by uid, where a plugin asked for it


class Latencies(msgspec.Struct, frozen=True):
    """Nanoseconds from one step to the next; None: that step was not reached.

    Crossing seen → plan decided → first signal or request sent → memory of the last victim back.
    """

    seen_to_decided_ns: int | None = None
    decided_to_sent_ns: int | None = None
    decided_to_freed_ns: int | None = None


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the audit log. `time` is RFC 3339 UTC; every `_ns` that is a moment is CLOCK_MONOTONIC.

    `interrupted`: the agent ended before it knew what became of it; its successor wrote the line.
    """

    schema: Literal["koordebpf.audit/v2"] = "koordebpf.audit/v2"
    time: str
    node: str
    dry_run: bool
    decided_ns: int
    sentence: str
    features: tuple[AuditedFeature, ...]
    outcomes: tuple[Outcome, ...]
    latencies: Latencies
    signals: SignalQuality | None = None  # what the decision rests on; None: before the first full look
    id: str = ""
    interrupted: bool = False
    undecided_namespaces: tuple[str, ...] = ()  # as in the plan, the first ten
    hooks: tuple[HookResult, ...] | msgspec.UnsetType = msgspec.UNSET  # calls that have ended; of a running agent alone


class OpenPlan:
    """A plan whose outcomes are still coming in."""

    def __init__(
        self,
        plan: Plan,
        *,
        node: str,
        dry_run: bool,
        seen_ns: int | None,
        decided_ns: int,
        wall_s: float,
        signals: SignalQuality | None = None,
    ) -> None:
        self._signals = signals
        self.id = f"{int(wall_s * 1000):x}-{decided_ns:x}"  # of this decision, on this machine
        self.plan = plan
        self.decided_ns = decided_ns
        self._node = node
        self._dry_run = dry_run
        self._seen_ns = seen_ns
        self._time = format_utc(wall_s)
        self._outcomes: dict[str, Outcome] = {}
        self._freed_ns: dict[str, int] = {}
        self._in_vain: set[str] = set()

    def has_victim(self, uid: str) -> bool:
        """Tell whether the plan evicts this pod."""
        return any(victim.candidate.uid == uid for victim in self.plan.victims)

    def add_outcome(self, outcome: Outcome) -> bool:
        """Take an outcome of one of this plan's victims; tell whether it was one."""
        if not self.has_victim(outcome.uid):
            return False
        earlier = self._outcomes.get(outcome.uid)
        if earlier is None or earlier.result is Result.SENT:
            self._outcomes[outcome.uid] = outcome
        return True

    def record_freed(self, uid: str, now_ns: int) -> None:
        """Say that one victim's memory is back; of another plan's victim it is no news."""
        if self.has_victim(uid):
            self._freed_ns.setdefault(uid, now_ns)

    def record_in_vain(self, uid: str, why: str) -> None:
        """Say that one victim's memory is not waited for any more, and why; of another plan's victim it is no news."""
        outcome = self._outcomes.get(uid)
        if outcome is None or uid in self._in_vain:
            return
        self._in_vain.add(uid)
        if why not in outcome.detail:
            self._outcomes[uid] = msgspec.structs.replace(outcome, detail=f"{outcome.detail}; in vain: {why}")

    @property
    def is_settled(self) -> bool:
        """Whether every outcome is final and the memory of those that were really evicted is back, or given up on.

        A pod evicted for CPU may hold none that was measured: nothing is waited for then.
        """
        finals = [outcome for outcome in self._outcomes.values() if outcome.result is not Result.SENT]
        holding = {victim.candidate.uid for victim in self.plan.victims if victim.candidate.of(MEMORY).released}
        return len(finals) == len(self.plan.victims) and all(
            outcome.uid in self._freed_ns or outcome.uid in self._in_vain
            for outcome in finals
            if outcome.result is Result.DONE and outcome.uid in holding
        )

    @property
    def decided_to_freed_ns(self) -> int | None:
        """Return how long after the decision the last memory came back; None: none did yet."""
        return max(self._freed_ns.values()) - self.decided_ns if self._freed_ns else None

    def record(self) -> AuditRecord:
        """Return the line as known now; also for a plan that was given up on."""
        decided_ns = self.decided_ns
        sent = [outcome.sent_ns for outcome in self._outcomes.values() if outcome.sent_ns is not None]
        return AuditRecord(
            time=self._time,
            node=self._node,
            dry_run=self._dry_run,
            decided_ns=decided_ns,
            sentence=self.plan.sentence,
            features=tuple(
                AuditedFeature(
                    verdict=feature.verdict,
                    balance=feature.balance,
                    candidates=len(feature.candidates),
                    ranking=feature.candidates[:_BEST],
                    victims=tuple(victim.candidate.uid for victim in feature.victims),
                    excluded=feature.excluded[:_BEST],
                    reason=feature.reason,
                    not_honoured=feature.not_honoured[:_BEST],
                    reasons=asked_reasons(feature),
                )
                for feature in self.plan.features
            ),
            outcomes=tuple(self._outcomes.values()),
            latencies=Latencies(
                seen_to_decided_ns=None if self._seen_ns is None else decided_ns - self._seen_ns,
                decided_to_sent_ns=min(sent) - decided_ns if sent else None,
                decided_to_freed_ns=self.decided_to_freed_ns,
            ),
            signals=self._signals,
            id=self.id,
            undecided_namespaces=self.plan.undecided_namespaces[:_BEST],
        )


def asked_reasons(feature: FeaturePlan) -> dict[str, str]:
    """Return why each victim is evicted, by UID, where that is no text of Koordinator's."""
    name = feature.verdict.feature
    return {
        victim.candidate.uid: victim.message
        for victim in feature.victims
        if victim.message != evict_message(name, victim.candidate.name)
    }
