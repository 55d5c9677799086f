"""What is to be done, and why not the rest: the value that leaves the decision stage."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.ladder_settings import Rung
from koordebpf.state.amount import Dimension, Resource, unit_of
from koordebpf.state.view import KillerName


class Balance(msgspec.Struct, frozen=True):
    """What one round needs of a resource, and what it gets, in its unit. Zeros: the feature does not fire."""

    resource: Resource
    need: int = 0
    pending: int = 0  # credit of pods that already leave, counted against the need
    shared: int = 0  # credit of the victims of features before this one, counted against the need
    credit: int = 0  # of the victims
    missing: int = 0  # need that no candidate can cover

    def text(self, value: int) -> str:
        """Return an amount of the resource for people."""
        return unit_of(self.resource).format(value)


class Holding(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a pod takes of one resource, in its unit."""

    resource: Resource
    used: int | None  # None: not measured
    released: int  # of what is used, by its eviction
    asked: str = ""  # dimension of what its band asks for
    requested: int = 0
    others: Mapping[str, int] = {}  # what it requests beside, by dimension

    def credit(self, dimension: Dimension) -> int:
        """Return what its eviction releases."""
        if dimension.is_use:
            return self.released
        if dimension.name == self.asked:
            return self.requested
        return self.others.get(dimension.name, 0)


class Candidate(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One pod in the ranking, with the parts of its rank and what its eviction would release."""

    rank: int  # 1 is evicted first
    uid: str
    namespace: str
    name: str
    cgroup_id: int | None
    priority: int | None
    holdings: tuple[Holding, ...]  # of each resource that was measured
    koordinator_credit_bytes: int = 0  # of memory, as Koordinator counts it
    growth_bytes_per_s: float | None = None  # of memory
    kernel_bytes: int | None = None  # of its memory in use: what the kernel holds for it; None: not measured
    own_priority: int = 0  # annotation koordinator.sh/eviction-priority
    sub_priority: int | None = None  # label koordinator.sh/priority; None: equal to the priority
    caused_ns: int | None = (
        None  # latency-sensitive pods stalled on its account, in the ledger's window; None: no ledger
    )
    workload: str | None = None  # its controller, as namespace/kind/name
    disruption: str | None = None  # `allowed`, or why a PodDisruptionBudget refuses; None: nothing is known of them

    def of(self, resource: Resource) -> Holding:
        """Return what it takes of a resource; nothing where that was not measured."""
        for each in self.holdings:
            if each.resource == resource:
                return each
        return Holding(resource, None, 0)


class Victim(msgspec.Struct, frozen=True, gc=False):
    """A candidate that is to be evicted. `reason` and `message` are Koordinator's texts for the Event."""

    candidate: Candidate
    reason: str  # `evicted`
    message: str  # `trigger by koordlet feature BEMemoryEvict, kill pod: <name>`
    for_use: bool = True  # for memory that it holds; False: for what it asks for, or for CPU
    passes_budgets: bool = False  # PodDisruptionBudgets are not honoured in its namespace
    grace_s: int | None = None  # to be asked for in place of its own grace period; None: its own
    killer: KillerName | None = None  # in place of executor.type; None: as that


class Excluded(msgspec.Struct, frozen=True, gc=False):
    """A pod that a reader may expect among the candidates, and why it is not; `code` is a stable word."""

    uid: str
    namespace: str
    name: str
    code: str
    why: str


class FeaturePlan(msgspec.Struct, frozen=True):
    """One feature's part of the plan."""

    verdict: Verdict
    balance: Balance
    victims: tuple[Victim, ...] = ()
    candidates: tuple[Candidate, ...] = ()  # the whole ranking
    excluded: tuple[Excluded, ...] = ()
    reason: str = ""  # why nothing, or why no more
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


class PodAction(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a strategy does to one pod beside cgroup files. None: not that.

    `reclaim_bytes`  are taken from it; `swappiness` as `memory.reclaim` takes it, None: the kernel balances by itself.
    `resctrl_group`  gets its tasks, and `tasks` are how many are not in it yet, None: they were not counted.
    """

    uid: str
    namespace: str
    name: str
    reclaim_bytes: int | None = None
    swappiness: int | None = None
    resctrl_group: str | None = None
    tasks: int | None = None


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
