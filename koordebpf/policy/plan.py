"""What is to be done, and why not the rest: the value that leaves the decision stage."""

from __future__ import annotations

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.ladder_settings import Rung


class CandidateCpu(msgspec.Struct, frozen=True):
    """What the eviction of a candidate would release of CPU. Millicpu."""

    used_millicpu: int | None  # None: not measured
    request_resource: str  # what its band asks for
    request_millicpu: int  # of that resource
    batch_millicpu: int  # of batch-cpu


class CpuAmounts(msgspec.Struct, frozen=True):
    """A feature's part of the plan where it judges CPU. Millicpu; the names as in `FeaturePlan`."""

    need_millicpu: int = 0
    pending_millicpu: int = 0
    shared_millicpu: int = 0
    credit_millicpu: int = 0
    missing_millicpu: int = 0


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One pod in the ranking, with the parts of its rank and what its eviction would release. Bytes."""

    rank: int  # 1 is evicted first
    uid: str
    namespace: str
    name: str
    cgroup_id: int | None
    priority: int | None
    used_bytes: int | None  # page cache left out; None: not measured
    credit_bytes: int
    koordinator_credit_bytes: int
    growth_bytes_per_s: float | None = None
    request_resource: str = "memory"  # what its band asks for
    request_bytes: int = 0  # of that resource
    own_priority: int = 0  # annotation koordinator.sh/eviction-priority
    sub_priority: int | None = None  # label koordinator.sh/priority; None: equal to the priority
    caused_ns: int | None = (
        None  # latency-sensitive pods stalled on its account, in the ledger's window; None: no ledger
    )
    workload: str | None = None  # its controller, as namespace/kind/name
    disruption: str | None = None  # `allowed`, or why a PodDisruptionBudget refuses; None: nothing is known of them
    cpu: CandidateCpu | None = None  # None: nothing was measured of the node's CPUs
    kernel_bytes: int | None = None  # of `used_bytes`: what the kernel holds for it; None: not measured


class Victim(msgspec.Struct, frozen=True, gc=False):
    """A candidate that is to be evicted. `reason` and `message` are Koordinator's texts for the Event."""

    candidate: Candidate
    reason: str  # `evicted`
    message: str  # `trigger by koordlet feature BEMemoryEvict, kill pod: <name>`
    for_use: bool = True  # for memory that it holds; False: for what it asks for, or for CPU
    passes_budgets: bool = False  # PodDisruptionBudgets are not honoured in its namespace
    grace_s: int | None = None  # to be asked for in place of its own grace period; None: its own


class Excluded(msgspec.Struct, frozen=True, gc=False):
    """A pod that a reader may expect among the candidates, and why it is not; `code` is a stable word."""

    uid: str
    namespace: str
    name: str
    code: str
    why: str


class FeaturePlan(msgspec.Struct, frozen=True):
    """One feature's part of the plan. Bytes; of a feature that judges CPU they are 0, and `cpu` has the amounts."""

    verdict: Verdict
    need_bytes: int = 0
    pending_bytes: int = 0  # credit of pods that already leave, counted against the need
    shared_bytes: int = 0  # credit of the victims of features before this one, counted against the need
    victims: tuple[Victim, ...] = ()
    candidates: tuple[Candidate, ...] = ()  # the whole ranking
    excluded: tuple[Excluded, ...] = ()
    credit_bytes: int = 0  # of the victims
    missing_bytes: int = 0  # need that no candidate can cover
    reason: str = ""  # why nothing, or why no more
    cpu: CpuAmounts | None = None
    not_honoured: tuple[Excluded, ...] = ()  # what would have spared a candidate, if the operator honoured it there


class RungAction(msgspec.Struct, frozen=True, gc=False):
    """What a rung of the ladder does to one pod's cgroup. Bytes; None: not by this rung."""

    uid: str
    namespace: str
    name: str
    cgroup_id: int | None
    memory_high_bytes: int | None = None  # brake, cgroup v2
    cpu_quota_percent: int | None = None  # brake, cgroup v1: of one CPU
    reclaim_bytes: int | None = None


class RungPlan(msgspec.Struct, frozen=True):
    """What one rung of the ladder would do about the victims, whether it is configured or not."""

    rung: Rung
    is_on: bool  # it is configured
    text: str
    actions: tuple[RungAction, ...] = ()  # none: it would do nothing
    gives_bytes: int = 0  # what surely comes back
    undo: str | None = None  # None: there is nothing to undo, or no way back


class Plan(msgspec.Struct, frozen=True):
    """The decision for one NodeView. `sentence` says it to people; it never names a number that is not in the plan."""

    now_ns: int
    features: tuple[FeaturePlan, ...]
    sentence: str
    ladder: tuple[RungPlan, ...] = ()  # what each rung would do about the victims, the mildest first
    undecided_namespaces: tuple[str, ...] = ()  # every exemption counts there: their labels are not known

    @property
    def victims(self) -> tuple[Victim, ...]:
        """All victims in the order of their eviction."""
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
