"""What is to be done, and why not the rest: the value that leaves the decision stage."""

from __future__ import annotations

from typing import Any

import msgspec

from koordebpf.detect.verdict import Verdict
from koordebpf.errors import ConfigError


class Candidate(msgspec.Struct, frozen=True):
    """One pod in the ranking, with the parts of its rank and what it would give back. Bytes."""

    rank: int  # 1 goes first
    uid: str
    namespace: str
    name: str
    cgroup_id: int | None
    priority: int | None
    used_bytes: int | None  # None: not measured
    credit_bytes: int
    koordinator_credit_bytes: int
    growth_bytes_per_s: float | None = None


class Victim(msgspec.Struct, frozen=True):
    """A candidate that is to go. `reason` and `message` are Koordinator's texts for the Event."""

    candidate: Candidate
    reason: str  # `evicted`
    message: str  # `trigger by koordlet feature BEMemoryEvict, kill pod: <name>`


class Excluded(msgspec.Struct, frozen=True):
    """A pod that a reader may expect among the candidates, and why it is not; `code` is a stable word."""

    uid: str
    namespace: str
    name: str
    code: str
    why: str


class FeaturePlan(msgspec.Struct, frozen=True):
    """One feature's part of the plan. Bytes."""

    verdict: Verdict
    need_bytes: int = 0
    pending_bytes: int = 0  # credit of pods that already leave, counted against the need
    victims: tuple[Victim, ...] = ()
    candidates: tuple[Candidate, ...] = ()  # the whole ranking
    excluded: tuple[Excluded, ...] = ()
    credit_bytes: int = 0  # of the victims
    missing_bytes: int = 0  # need that no candidate can cover
    reason: str = ""  # why nothing, or why no more


class Plan(msgspec.Struct, frozen=True):
    """The decision for one NodeView. `sentence` says it to people; it never names a number that is not in the plan."""

    now_ns: int
    features: tuple[FeaturePlan, ...]
    sentence: str

    @property
    def victims(self) -> tuple[Victim, ...]:
        """All victims in the order in which they are to go."""
        return tuple(victim for feature in self.features for victim in feature.victims)


def encode_plan(plan: Plan) -> bytes:
    """Return the plan as JSON that `decode_plan` reads back to an equal value."""
    return msgspec.json.encode(plan)


def decode_plan(raw: bytes, path: str) -> Plan:
    """Return the plan in `raw`; `path` says where it came from.

    Raises: ConfigError: not a plan; names the JSON path and the rule.
    """
    try:
        return msgspec.json.decode(raw, type=Plan)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(path, raw[:80].decode(errors="replace"), str(error)) from error


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema of a plan."""
    return msgspec.json.schema(Plan)
