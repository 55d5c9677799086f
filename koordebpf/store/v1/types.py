"""Plans and audit lines as JSON has them: the keys of `koordebpf.audit/v1` and of `koordebpf plan --json`.

Memory and CPU have keys of their own, as in the first release; every other resource is in `others`. Only `encode` and
`decode` know these types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from koordebpf.decision.dead_man import DeadManAction
from koordebpf.decision.node_plan import OtherDecision
from koordebpf.kernel.signals.quality import SignalQuality
from koordebpf.policy.detect.verdict import StallEvidence
from koordebpf.policy.guards.closed import ClosedGuard
from koordebpf.policy.plan import Excluded, RungPlan
from koordebpf.policy.suppress.explained import ExplainedSuppression
from koordebpf.state.measured import TimeTo
from koordebpf.state.outcome import HookResult, Outcome
from koordebpf.state.view import KillerName
from koordebpf.store.audit_record import Latencies


class OtherNeed(msgspec.Struct, frozen=True):
    """What is too much of another resource, in its unit; `dimension` is what is counted of it."""

    dimension: str
    need: int
    now: int
    of: int
    is_use: bool


class OtherUse(msgspec.Struct, frozen=True):
    """The use of another resource that a verdict rests on, in its unit; percents as configured."""

    of: int
    used: int
    used_percent: int | None
    threshold_percent: int | None
    lower_percent: int | None
    threshold: int | None
    lower: int | None
    window_ns: int | None


class OtherVerdict(msgspec.Struct, frozen=True):
    """What a feature that judges another resource found."""

    resource: str
    unit: str
    needs: tuple[OtherNeed, ...] = ()
    use: OtherUse | None = None


class OtherBalance(msgspec.Struct, frozen=True):
    """A feature's part of the plan where it judges another resource, in its unit; the names as in `FeaturePlan`."""

    resource: str
    unit: str
    need: int = 0
    pending: int = 0
    shared: int = 0
    credit: int = 0
    missing: int = 0


class OtherHolding(msgspec.Struct, frozen=True):
    """What the eviction of a candidate would release of another resource, in its unit."""

    resource: str
    unit: str
    used: int | None  # None: not measured
    released: int
    asked: str  # dimension of what it requests; "": nothing
    requested: int


class Evidence(msgspec.Struct, frozen=True):
    """The numbers a verdict rests on. Bytes; percents as configured."""

    capacity_bytes: int
    used_bytes: int
    used_percent: int  # floor(used · 100 / capacity), Koordinator's integer rule
    threshold_percent: int | None = None
    lower_percent: int | None = None
    threshold_bytes: int | None = None  # smallest usage that fires
    lower_bytes: int | None = None


class ResourceNeed(msgspec.Struct, frozen=True):
    """What is too much of one resource. Bytes.

    `resource` is `used`, or what pods request: memory, kubernetes.io/batch-memory or kubernetes.io/mid-memory.
    """

    resource: str
    need_bytes: int  # to release to reach the lower mark
    now_bytes: int  # what is used, or requested
    of_bytes: int  # capacity, or what is allocatable


class CpuMoment(msgspec.Struct, frozen=True, gc=False):
    """CPU used and CPU available, over some time. Millicpu."""

    used_millicpu: int
    of_millicpu: int  # capacity, or what best-effort pods may have
    request_millicpu: int | None = None  # BECPUEvict: what they ask for


class CpuEvidence(msgspec.Struct, frozen=True):
    """The averages a verdict on CPU rests on, and `now`. Millicpu; percents as configured.

    Of BECPUEvict the threshold is of what best-effort pods may have, the marks are of what they ask for.
    """

    window_ns: int
    used_millicpu: int
    of_millicpu: int  # capacity, or what best-effort pods may have
    used_percent: int | None  # floor(used · 100 / of), Koordinator's integer rule; None: there is nothing to have
    threshold_percent: int
    lower_percent: int
    threshold_millicpu: int  # smallest usage that fires
    lower_millicpu: int
    upper_percent: int | None = None  # BECPUEvict, as all below but `now`
    upper_millicpu: int | None = None
    request_millicpu: int | None = None
    now: CpuMoment | None = None


class CpuNeed(msgspec.Struct, frozen=True):
    """What is too much of one resource of CPU. Millicpu.

    `resource` is `used cpu`, `best-effort cpu`, or what pods request: cpu, kubernetes.io/batch-cpu or mid-cpu.
    """

    resource: str
    need_millicpu: int  # to release to reach the lower mark, or the upper one of BECPUEvict
    now_millicpu: int  # what is used, or requested
    of_millicpu: int  # capacity, what is allocatable, or what best-effort pods may have


class Verdict(msgspec.Struct, frozen=True):
    """Whether a condition holds. `reason` is one sentence with both numbers, also where it does not fire.

    `skipped` is set (a short stable word for metrics) when the condition could not or must not be judged. Of a feature
    that judges CPU `cpu` and `cpu_needs` stand in place of `evidence` and `needs`, and the bytes are 0.
    """

    feature: str
    fires: bool
    reason: str
    need_bytes: int = 0  # to release to reach the lower mark; 0 unless it fires
    koordinator_need_bytes: int = 0  # by Koordinator's floored percent, for comparison
    skipped: str | None = None
    evidence: Evidence | None = None
    needs: tuple[ResourceNeed, ...] = ()  # by resource; `need_bytes` is their sum
    ahead: TimeTo | None = None  # it fires before the threshold, which will be crossed in this time
    cpu: CpuEvidence | None = None
    cpu_needs: tuple[CpuNeed, ...] = ()
    stall: StallEvidence | None = None  # StallEvict; its need is what may be reclaimed at once, at most
    other: OtherVerdict | msgspec.UnsetType = msgspec.UNSET  # neither memory nor CPU


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
    others: tuple[OtherHolding, ...] | msgspec.UnsetType = msgspec.UNSET


class Victim(msgspec.Struct, frozen=True, gc=False):
    """A candidate that is to be evicted. `reason` and `message` are Koordinator's texts for the Event."""

    candidate: Candidate
    reason: str  # `evicted`
    message: str  # `trigger by koordlet feature BEMemoryEvict, kill pod: <name>`
    for_use: bool = True  # for memory that it holds; False: for what it asks for, or for CPU
    passes_budgets: bool = False  # PodDisruptionBudgets are not honoured in its namespace
    grace_s: int | None = None  # to be asked for in place of its own grace period; None: its own
    killer: KillerName | msgspec.UnsetType = msgspec.UNSET  # unset: as executor.type


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
    other: OtherBalance | msgspec.UnsetType = msgspec.UNSET  # neither memory nor CPU: the bytes are 0


class Plan(msgspec.Struct, frozen=True):
    """The decision for one NodeView. `sentence` says it to people; it never names a number that is not in the plan."""

    now_ns: int
    features: tuple[FeaturePlan, ...]
    sentence: str
    ladder: tuple[RungPlan, ...] = ()  # what each rung would do about the victims, the mildest first
    undecided_namespaces: tuple[str, ...] = ()  # every exemption counts there: their labels are not known


class DeadManPlan(msgspec.Struct, frozen=True):
    """Whom the dead man's switch would kill. `reason`: the pod, or without a victim why none.

    `feature`: by whose rules. `candidates`: its whole ranking.
    """

    action: DeadManAction
    after_ns: int
    stall_ns: int
    reason: str
    feature: str
    victim: Victim | None
    candidates: tuple[Candidate, ...]
    threshold_bytes: int
    capacity_bytes: int


class NodePlan(Plan, frozen=True, kw_only=True):
    """The plan with suppression and the stall net beside the evictions: what `koordebpf plan` prints."""

    suppression: ExplainedSuppression
    stall_net: Verdict  # StallEvict, judged whether its gate is on or not
    guards: tuple[ClosedGuard, ...] | msgspec.UnsetType = msgspec.UNSET
    strategies: Mapping[str, OtherDecision] | msgspec.UnsetType = msgspec.UNSET
    dead_man: DeadManPlan | msgspec.UnsetType = msgspec.UNSET  # deadMan.action is nothing


class AuditedFeature(msgspec.Struct, frozen=True):
    """One feature's decision. Bytes. `ranking` holds the ten best of `candidates`."""

    verdict: Verdict
    need_bytes: int
    pending_bytes: int
    credit_bytes: int
    missing_bytes: int
    candidates: int
    ranking: tuple[Candidate, ...]
    victims: tuple[str, ...]  # uids, in order
    excluded: tuple[Excluded, ...]
    reason: str
    shared_bytes: int = 0  # credit of the victims of features before this one
    cpu: CpuAmounts | None = None  # of a feature that judges CPU, in place of the bytes
    not_honoured: tuple[Excluded, ...] = ()  # what would have spared one of the ranking
    other: OtherBalance | msgspec.UnsetType = msgspec.UNSET
    reasons: Mapping[str, str] | msgspec.UnsetType = msgspec.UNSET  # why, by uid, where a plugin asked for it


class AuditRecord(msgspec.Struct, frozen=True):
    """One line of the audit log. `time` is RFC 3339 UTC; every `_ns` that is a moment is CLOCK_MONOTONIC.

    `interrupted`: the agent ended before it knew what became of it; its successor wrote the line.
    """

    schema: Literal["koordebpf.audit/v1"]
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
