"""What a round's recorded decision says, as much of it as a page needs: it is decoded, not decided again."""

from __future__ import annotations

import msgspec

from koordebpf.policy.detect.verdict import UseEvidence
from koordebpf.policy.plan import Holding
from koordebpf.state.amount import MEMORY


class _Verdict(msgspec.Struct, frozen=True):
    feature: str
    fires: bool
    evidence: UseEvidence | None = None


class _Who(msgspec.Struct, frozen=True):
    uid: str
    namespace: str
    name: str
    holdings: tuple[Holding, ...] = ()

    @property
    def credit_bytes(self) -> int:
        """What its eviction releases of memory."""
        return sum(each.released for each in self.holdings if each.resource == MEMORY)


class _Victim(msgspec.Struct, frozen=True):
    candidate: _Who


class _Feature(msgspec.Struct, frozen=True):
    verdict: _Verdict
    victims: tuple[_Victim, ...] = ()


class _Plan(msgspec.Struct, frozen=True):
    now_ns: int
    sentence: str
    features: tuple[_Feature, ...] = ()


class _Carried(msgspec.Struct, frozen=True):
    plan: _Plan
    by: str = "evict"


class _SuppressPlan(msgspec.Struct, frozen=True):
    be_millicpu: int | None = None
    held_millicpu: int | None = None


class _Suppress(msgspec.Struct, frozen=True):
    plan: _SuppressPlan | None = None


class _Strategies(msgspec.Struct, frozen=True):
    suppress: _Suppress | None = None


class RecordedDecision(msgspec.Struct, frozen=True):
    """One round's decision, without its rankings; `encode_decision` made it."""

    plan: _Plan
    carried: _Carried | None = None
    strategies: _Strategies = _Strategies()

    @property
    def memory(self) -> UseEvidence | None:
        """The use of memory that a feature judged: the first that has marks; None: none was judged."""
        for feature in self.plan.features:
            found = feature.verdict.evidence
            if found is not None and found.resource == MEMORY and found.threshold is not None:
                return found
        return None

    @property
    def suppress(self) -> _SuppressPlan | None:
        """What best-effort pods may have of the CPUs; None: it was not judged."""
        found = self.strategies.suppress
        return None if found is None else found.plan

    @property
    def victims(self) -> tuple[_Who, ...]:
        """The pods that were to be evicted then."""
        if self.carried is None:
            return ()
        return tuple(each.candidate for feature in self.carried.plan.features for each in feature.victims)


def read_decision(raw: bytes) -> RecordedDecision:
    """Return what the JSON says.

    Raises:  msgspec.DecodeError: it is no decision.
    """
    return msgspec.json.decode(raw, type=RecordedDecision)
