"""Plans whose outcomes are still coming in, and the victims of each."""

from __future__ import annotations

from collections.abc import Iterator

from koordebpf.policy.plan import Plan, Victim
from koordebpf.store.audit import AuditRecord, OpenPlan
from koordebpf.units import NS_PER_S

_GIVE_UP_NS = 180 * NS_PER_S  # an audit line is written with what is known by then


class OpenPlans:
    """Owns the open audit lines; forgets victims when no line is open any more. `carried_out`: at this moment."""

    def __init__(self) -> None:
        self.carried_out: OpenPlan | None = None
        self._lines: list[tuple[int, OpenPlan]] = []  # since when
        self._victims: dict[str, tuple[str, Victim]] = {}  # feature and victim by uid

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[OpenPlan]:
        return (line for _, line in self._lines)

    def remember(self, plan: Plan) -> None:
        """Know the plan's victims, though no line of it may be opened."""
        for feature in plan.features:
            for victim in feature.victims:
                self._victims[victim.candidate.uid] = (feature.verdict.feature, victim)

    def add(self, line: OpenPlan, decided_ns: int) -> None:
        """Open a line."""
        self.remember(line.plan)
        self._lines.append((decided_ns, line))

    def victim(self, uid: str) -> Victim | None:
        """Return the victim of this UID; None: it is not known, or no more."""
        return self._victims.get(uid, ("", None))[1]

    def feature(self, uid: str) -> str:
        """Return the feature that chose the victim of this UID; "" where it is not known."""
        return self._victims.get(uid, ("", None))[0]

    def name(self, uid: str) -> str:
        """Return how to call a victim in a sentence."""
        victim = self.victim(uid)
        return f"{victim.candidate.namespace}/{victim.candidate.name}" if victim else f"pod {uid}"

    def take_settled(self, now_ns: int) -> list[OpenPlan]:
        """Return the lines that are settled or were given up on, which are open no more."""
        done = [line for since, line in self._lines if line.is_settled or now_ns - since > _GIVE_UP_NS]
        if done:
            self._lines = [(since, line) for since, line in self._lines if line not in done]
        if not self._lines:
            self._victims.clear()
        return done

    def records(self) -> list[AuditRecord]:
        """Return every open line as known now."""
        return [line.record() for _, line in self._lines]

    def close(self) -> list[AuditRecord]:
        """Return every open line as known now; none is open afterwards."""
        records = self.records()
        self._lines = []
        return records
