"""The dead man's switch: whom a BPF program may kill while the agent does not run. Pure.

The choice is made while the agent runs, by the same rules, guards and budget as an eviction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickFrame
from koordebpf.policy.decide import decide
from koordebpf.policy.detect import be_memory_evict, memory_evict
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.evict.features import MEMORY_FEATURES
from koordebpf.policy.guards import screen
from koordebpf.policy.plan import Balance, Candidate, FeaturePlan, Plan, Victim
from koordebpf.slo.strategies.resource_threshold import threshold_bytes
from koordebpf.state.amount import MEMORY
from koordebpf.state.decision_memory import Budget
from koordebpf.state.guard_facts import ClosedGuard
from koordebpf.state.outcome import Outcome, Result
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_MS, format_ns

FEATURE = "DeadMan"  # in audit lines and as a label of metrics; it is no feature gate
EXECUTOR = "deadman"

AT_LIMIT = " at the limit that pods have together"

_BY_USE = (be_memory_evict.FEATURE, memory_evict.FEATURE)
_FEATURES = tuple(each for each in MEMORY_FEATURES if each.name in _BY_USE)
_FOREVER_NS = (1 << 63) - 1

DeadManAction = Literal["nothing", "count", "kill"]


class DeadManSettings(msgspec.Struct, frozen=True):
    """What happens while the agent does not run and memory is short. Needs Linux 6.13.

    `action`   with count, what would have been killed is counted and reported, and nothing is signalled; with kill, a
               BPF program kills one pod, which needs enforcement, else it counts. Why nothing: a kill passes over
               grace periods and PodDisruptionBudgets, and is made for a process that does not run.
    `after_ns` an older heartbeat is late. Why 500 ms: the agent writes one each 125 ms, and a tick of a node with 1,000
               pods takes 40 ms.
    `stall_ns` so long the node's tasks waited for memory, all together, within one `after_ns`: as PSI has it, and in
               direct reclaim alone without PSI. Why 5 ms: a calm node has none, and tasks that thrash waited for 20 to
               190 ms of 500 (docs/dead-man.md); a node above its threshold where no task waits can wait for its agent.
    """

    action: DeadManAction = "nothing"
    after_ns: Annotated[int, msgspec.Meta(ge=100 * NS_PER_MS)] = 500 * NS_PER_MS
    stall_ns: int = 5 * NS_PER_MS


class DeadManChoice(msgspec.Struct, frozen=True):
    """Who would be killed. `victim` None: no pod, and `reason` says why.

    `feature`: by whose rules. `threshold_bytes` of the node's use.
    """

    reason: str
    victim: Victim | None = None
    ranking: tuple[Candidate, ...] = ()
    threshold_bytes: int = 0
    capacity_bytes: int = 0
    feature: str = ""

    @property
    def cgroup_id(self) -> int:
        """The victim's; 0: there is none, or it is not known."""
        return (self.victim.candidate.cgroup_id if self.victim is not None else None) or 0

    @property
    def percent(self) -> int:
        """memoryEvictThresholdPercent, of which `threshold_bytes` is the first byte."""
        return self.threshold_bytes * 100 // self.capacity_bytes


class PlannedDeadMan(msgspec.Struct, frozen=True):
    """Whom the switch would be armed with after a round; `settings.action` is count or kill."""

    settings: DeadManSettings
    choice: DeadManChoice


class DeadManFiring(msgspec.Struct, frozen=True):
    """What the programs say that they did, for one heartbeat. Moments are CLOCK_MONOTONIC nanoseconds.

    `at_limit`: tasks stalled at the limit of a cgroup that many pods are in, the victim too.
    """

    heartbeat_ns: int
    fired_ns: int
    stall_ns: int
    kills: bool
    processes: int
    signalled: int
    refused: int
    error: int  # the last refusal, as a negative errno
    at_limit: bool = False


def dead_man_choice(tick: TickFrame, view: NodeView, holding: Sequence[ClosedGuard]) -> DeadManChoice:
    """Return the pod that would be evicted first if the node's memory were full now.

    Its rules are those of BEMemoryEvict and MemoryEvict, whichever is on, with every exemption, guard and budget.

    Args:
        tick: the round.
        view: the node in it.
        holding: guards that forbid acting now.

    Cost: as a decision with a shortage, 2 µs a pod.
    """
    settings, capacity = tick.settings, view.capacity_bytes
    threshold = threshold_bytes(view.strategy, capacity)
    if threshold is None:
        return DeadManChoice("there is no memoryEvictThresholdPercent in force")
    features = [each for each in _FEATURES if each.is_asked(view.feature_gates)]
    plan = decide(replace(view, used_bytes=capacity), settings.eviction, features)
    if not plan.victims:
        return DeadManChoice(plan.sentence)
    screening = screen(
        plan.victims,
        tuple(holding),
        Budget(tick.frame.evictions),
        settings.guards,
        now_ns=view.now_ns,
        own_pod_uid=tick.frame.ownPodUid,
    )
    if not screening.allowed:
        return DeadManChoice(screening.held[0][1].sentence)
    victim = screening.allowed[0]
    feature = next(each for each in plan.features if victim in each.victims)
    return DeadManChoice(
        f"{victim.candidate.namespace}/{victim.candidate.name}",
        victim,
        feature.candidates,
        threshold,
        capacity,
        feature.verdict.feature,
    )


def pods_valid_until_ns(tick: TickFrame) -> int:
    """Return when the list of pods of a round is too old to choose from (CLOCK_MONOTONIC)."""
    if tick.guards.source == "file":
        return _FOREVER_NS  # a file that can be read is never stale
    return (tick.guards.pods_synced_ns or 0) + tick.settings.guards.pods_max_age_ns


def dead_man_plan(choice: DeadManChoice, firing: DeadManFiring) -> Plan:
    """Return what the programs did as a plan, for audit, log and Event."""
    assert choice.victim is not None  # without one they do nothing
    pod = choice.victim.candidate
    late = format_ns(firing.fired_ns - firing.heartbeat_ns)
    reason = f"no heartbeat of the agent for {late} while tasks stalled {format_ns(firing.stall_ns)} for memory"
    reason += AT_LIMIT if firing.at_limit else ""
    message = f"trigger by koordebpf dead man's switch, kill pod: {pod.name}"
    feature = FeaturePlan(
        Verdict(FEATURE, True, reason),
        Balance(MEMORY, credit=pod.of(MEMORY).released),
        (replace(choice.victim, message=message),),
        choice.ranking,
        reason="one pod for each time that the agent stops",
    )
    did = "killed" if firing.kills else "would have killed"
    return Plan(firing.fired_ns, (feature,), f"the dead man's switch {did} {pod.namespace}/{pod.name}: {reason}")


def dead_man_outcome(choice: DeadManChoice, firing: DeadManFiring, now_ns: int) -> Outcome:
    """Return what became of its victim."""
    assert choice.victim is not None  # as above
    pod = choice.victim.candidate
    refused = f", {firing.refused} signals refused (errno {-firing.error})" if firing.refused else ""
    if not firing.kills:
        result, detail = Result.DRY_RUN, f"{firing.processes} processes, deadMan.action is count"
    elif firing.signalled:
        result, detail = Result.DONE, f"signalled {firing.signalled} times for {firing.processes} processes{refused}"
    elif firing.refused:
        result, detail = Result.FAILED, f"none of {firing.processes} processes could be signalled{refused}"
    else:
        result, detail = Result.GONE, "no process was left in its cgroup"
    return Outcome(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        executor=EXECUTOR,
        result=result,
        detail=detail,
        decided_ns=firing.fired_ns,
        sent_ns=firing.fired_ns if firing.kills and firing.signalled else None,
        answered_ns=now_ns,
        killed_tasks=firing.processes if firing.kills and firing.signalled else None,
    )
