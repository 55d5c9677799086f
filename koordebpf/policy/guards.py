"""When the agent must not act, as rules over facts, and what it does without the API server. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from koordebpf.policy.credit import candidate_credit
from koordebpf.policy.detect.stall_evict import recent_samples
from koordebpf.policy.evict.exemptions import ALWAYS_PROTECTED_NAMESPACES
from koordebpf.policy.plan import Plan, Victim
from koordebpf.slo.pods.qos import SYSTEM_CRITICAL_PRIORITY
from koordebpf.state.amount import USED
from koordebpf.state.balance import MemoryBalance, memory_balance
from koordebpf.state.decision_memory import Budget
from koordebpf.state.guard_facts import LOSS_WINDOW_NS, ClosedGuard, GuardFacts
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_S, format_bytes, format_ns

STALE = "pods_stale"  # the guard that an emergency opens; no other one
# Of the node's memory. Why: what a kernel holds in no counter, and its reserve, which counts as in use.
_USUAL_RATIO = 0.1
_FULL_RATIO = 0.95  # Why: a burst of 1 GiB/s fills the rest of a node of 16 GiB within a second
_SOON_NS = 10 * NS_PER_S  # Why: an eviction releases its memory after a second or two, and there may be several
_STALLS_RATIO = 0.01  # Why: a hundredth of its time is what a latency-sensitive pod's tail shows


class EmergencySettings(msgspec.Struct, frozen=True):
    """Whether to act without the API server. One that answers 401 or 403 is there: then nothing is done.

    Before, decisions continue from the last list of pods as long as that is fresh; then guards are closed.

    `action`     with nothing, guards stay closed once the list of pods is stale; with kill-be, best-effort pods that
                 are on the last list, and whose cgroup is still the same one, are killed by cgroup, in BEMemoryEvict's
                 order and within the same budgets, and no other pod is touched. The last list outlives the agent, in
                 its run directory. Needs source api and enforcement.
                 Why nothing: a kill passes over grace periods and PodDisruptionBudgets, and no API object shows it.
    `after_ns`   from this age of the list on. Why 2 min: an API server that is upgraded or changes its leader is back
                 within one, and a healthy watch proves itself each 75 s.
    `max_age_ns` up to this age of the list. Why 10 min: each pod is compared with its cgroup, so that no other one can
                 be hit, but what its owner wants by now is unknown; later a person should look.
    """

    action: Literal["nothing", "kill-be"] = "nothing"
    after_ns: int = 120 * NS_PER_S
    max_age_ns: int = 600 * NS_PER_S


def emergency(pods_age_ns: int, settings: EmergencySettings) -> str | None:
    """Return the sentence that says why best-effort pods may be killed by cgroup now; None: they may not."""
    if settings.action == "nothing" or not settings.after_ns < pods_age_ns <= settings.max_age_ns:
        return None
    return (
        f"emergency: the API server has not been heard of for {pods_age_ns / NS_PER_S:.0f} s"
        f" > {settings.after_ns / NS_PER_S:.0f} s, best-effort pods are killed by cgroup"
    )


def without_stale(guards: Iterable[ClosedGuard]) -> tuple[ClosedGuard, ...]:
    """Return the guards that stay closed in an emergency: all but the one that asks for a fresh list."""
    return tuple(guard for guard in guards if guard.code != STALE)


class GuardLimits(msgspec.Struct, frozen=True):
    """Where the guards close.

    `pods_max_age_ns`         of the list of pods. Why: a kubelet list is refreshed every few seconds; a view half a
                              minute old may name a pod that another one has replaced. A watch needs more: 90 s with
                              source api, which proves itself each 75 s.
    `lost_max_ratio`          of the records of 10 s. Why: mkdir is among them; one lost in a hundred still leaves the
                              rescan, more means that the ring does not keep up.
    `clock_jump_max_ns`       how long the machine may have slept. Why: its samples and list of pods are from before.
    `cgroupless_max_ratio`    of the running pods. Why: single pods start and stop; half of them means that the agent
                              looks at another node's cgroups (a wrong --node-cgroup) or lists another node's pods.
    `evictions_per_minute`    on this node. Why: kubelet evicts at most one pod in 10 s, 6 a minute; one hog needs 1,
                              and a mistake must not empty a node of 110 pods before someone looks.
    `victims_per_round`       of all features. Why: Koordinator sets none; half the minute's budget, so that one round
                              never spends it.
    `useless_after`           so many evictions in a row that did not help close the guard `evictions_useless`. Why: one
                              may coincide with another pod's growth; three mean that the cause is somewhere else.
                              None: never.
    `useless_pause_ns`        … for so long; then one more round may try. Why: an alert has been raised by then, and a
                              node that is still short is not left alone for longer.
    `unexplained_max_ratio`   of what evictions for memory in use are to release: more than this that is in no pod and
                              no known cgroup, beyond what is usual, closes the guard `unexplained_memory`. A victim
                              that alone releases enough is evicted all the same, and all are when latency-sensitive
                              pods stall or the node is nearly full. Why half: then most of what is too much is no
                              pod's, and evictions would not release it. None: never, as with `compat: strict`.
    """

    pods_max_age_ns: int = 30 * NS_PER_S
    lost_max_ratio: float = 0.01
    clock_jump_max_ns: int = 5 * NS_PER_S
    cgroupless_max_ratio: float = 0.5
    evictions_per_minute: int = 10
    victims_per_round: int = 5
    useless_after: int | None = 3
    useless_pause_ns: int = 60 * NS_PER_S
    unexplained_max_ratio: float | None = 0.5


def closed_guards(facts: GuardFacts, limits: GuardLimits) -> tuple[ClosedGuard, ...]:
    """Return every guard that forbids acting on this node now; none: the agent may act.

    A file that can be read is never stale: nothing newer exists than what it says.
    """
    closed: list[ClosedGuard] = []
    if facts.pods_synced_ns is None:
        closed.append(ClosedGuard("no_pod_view", f"no list of pods from the {facts.source} source yet"))
    else:
        age_ns = facts.now_ns - facts.pods_synced_ns
        if facts.source == "file":
            if facts.source_problem is not None:
                closed.append(ClosedGuard("source_unreadable", f"the file source: {facts.source_problem}"))
        elif age_ns > limits.pods_max_age_ns:
            closed.append(
                ClosedGuard(
                    "pods_stale",
                    f"the {facts.source} source's list of pods is {age_ns / NS_PER_S:.0f} s old"
                    f" > {limits.pods_max_age_ns / NS_PER_S:.0f} s",
                )
            )
    seen = facts.records + facts.lost_records
    if seen and facts.lost_records > limits.lost_max_ratio * seen:
        closed.append(
            ClosedGuard(
                "records_lost",
                f"{facts.lost_records} of {seen} kernel records lost within {format_ns(LOSS_WINDOW_NS)}"
                f" > {limits.lost_max_ratio:.0%}",
            )
        )
    if abs(facts.clock_jump_ns) > limits.clock_jump_max_ns:
        closed.append(
            ClosedGuard(
                "clock_jump",
                f"the machine was suspended for {abs(facts.clock_jump_ns) / NS_PER_S:.0f} s since the last rescan",
            )
        )
    if facts.running_pods and facts.running_pods_without_cgroup > limits.cgroupless_max_ratio * facts.running_pods:
        closed.append(
            ClosedGuard(
                "node_disagrees",
                f"{facts.running_pods_without_cgroup} of {facts.running_pods} running pods have no cgroup here:"
                " check --node-name and --node-cgroup",
            )
        )
    if facts.node_problem is not None:
        closed.append(ClosedGuard("node_implausible", facts.node_problem))
    if (guard := _useless(facts, limits)) is not None:
        closed.append(guard)
    return tuple(closed)


def _useless(facts: GuardFacts, limits: GuardLimits) -> ClosedGuard | None:
    most = limits.useless_after
    if most is None or facts.useless_ns is None or facts.useless_evictions < max(most, 1):
        return None
    left_ns = facts.useless_ns + limits.useless_pause_ns - facts.now_ns
    if left_ns <= 0:
        return None
    last = "the last eviction" if facts.useless_evictions == 1 else f"the last {facts.useless_evictions} evictions"
    return ClosedGuard(
        "evictions_useless",
        f"{last} did not bring the node's use down by half of what was promised:"
        f" none for another {left_ns / NS_PER_S:.0f} s",
    )


class UseGuard(msgspec.Struct, frozen=True):
    """A closed guard for victims that are evicted for memory in use and release less than `need_bytes` each."""

    guard: ClosedGuard
    need_bytes: int

    def lets_pass(self, victim: Victim) -> bool:
        """Tell whether the guard does not hold this victim back."""
        return not victim.for_use or candidate_credit(victim.candidate, USED) >= self.need_bytes


def unexplained_memory(view: NodeView, plan: Plan, limits: GuardLimits, *, strict: bool = False) -> UseGuard | None:
    """Return the guard `unexplained_memory`; None: it is open, or holds no victim of the plan.

    With `strict` it is open: Koordinator has no such guard.

    It needs measurements of the cgroups outside pods and of stalls; without them it is open. What a tenant
    holds is charged to its pod, but for packet rings and, on cgroup v1, TCP and UDP buffers: with those it can close
    the guard, until the node is nearly full or latency-sensitive pods stall.
    """
    need = max(
        (
            need.need
            for feature in plan.features
            if feature.verdict.fires and feature.verdict.stall is None
            for need in feature.verdict.needs
            if need.dimension == USED
        ),
        default=0,
    )
    ratio = limits.unexplained_max_ratio
    if strict or ratio is None or not need or _is_urgent(view):
        return None
    balance = memory_balance(view.measured, view.used_bytes)
    if balance is None or not is_unusual(balance, ratio * need):
        return None
    sentence = f"{balance.sentence()}: only a pod that alone releases {format_bytes(need)} is evicted"
    guard = UseGuard(ClosedGuard("unexplained_memory", sentence), need)
    return None if all(map(guard.lets_pass, plan.victims)) else guard


def is_unusual(balance: MemoryBalance, more_bytes: float = 0) -> bool:
    """Tell whether more is in no pod and no known cgroup than on any node, by more than so much."""
    return balance.unowned_bytes - balance.total_bytes * _USUAL_RATIO > more_bytes


# Latency-sensitive pods wait for memory, or an OOM kill is near; also where that is not known.
def _is_urgent(view: NodeView) -> bool:
    used, forecast = view.used_bytes, view.forecast
    if used is None or used >= view.measured.node.total_bytes * _FULL_RATIO:
        return True
    if forecast is not None and forecast.oom is not None and forecast.oom.low_ns < _SOON_NS:
        return True
    stalled = _stalled_ratio(view)
    return stalled is None or stalled >= _STALLS_RATIO


def _stalled_ratio(view: NodeView) -> float | None:
    # The share of the last seconds in which a latency-sensitive pod waited for the node's memory, at most; of the node,
    # where nothing times the stalls of pods. None: neither is measured.
    samples, psi = recent_samples(view), view.measured.node.psi_some
    if samples:
        return samples[-1].at_most_ratio
    return None if psi is None else psi.avg10 / 100


def victim_guard(victim: Victim, *, own_pod_uid: str | None = None) -> ClosedGuard | None:
    """Return why this pod is never to be evicted, or None.

    The decision has passed such pods over already; this asks the same once more at the last moment, by no settings.
    """
    pod = victim.candidate
    if own_pod_uid is not None and pod.uid == own_pod_uid:
        return ClosedGuard("own_pod", f"{pod.namespace}/{pod.name} is this agent")
    if pod.namespace in ALWAYS_PROTECTED_NAMESPACES:
        return ClosedGuard("protected_namespace", f"{pod.namespace}/{pod.name} is in a protected namespace")
    if pod.priority is not None and pod.priority >= SYSTEM_CRITICAL_PRIORITY:
        return ClosedGuard("system_critical", f"{pod.namespace}/{pod.name} has system-critical priority {pod.priority}")
    return None


class Screening(msgspec.Struct, frozen=True):
    """Which victims may go, in order, and which are held and why."""

    allowed: tuple[Victim, ...]
    held: tuple[tuple[Victim, ClosedGuard], ...]


def screen(
    victims: Iterable[Victim],
    node_guards: tuple[ClosedGuard, ...],
    budget: Budget,
    limits: GuardLimits,
    *,
    now_ns: int,
    own_pod_uid: str | None = None,
    use_guard: UseGuard | None = None,
) -> Screening:
    """Return what of a plan may be carried out now: node guards first, then each pod's own, then the budget."""
    allowed: list[Victim] = []
    held: list[tuple[Victim, ClosedGuard]] = []
    left = budget.left(now_ns, limits.evictions_per_minute)
    for victim in victims:
        guard = node_guards[0] if node_guards else victim_guard(victim, own_pod_uid=own_pod_uid)
        if guard is None and use_guard is not None and not use_guard.lets_pass(victim):
            guard = use_guard.guard
        if guard is None and len(allowed) >= limits.victims_per_round:
            guard = ClosedGuard("round_full", f"{limits.victims_per_round} victims in this round already")
        if guard is None and len(allowed) >= left:
            guard = ClosedGuard("budget_spent", f"{limits.evictions_per_minute} evictions in the last minute already")
        if guard is None:
            allowed.append(victim)
        else:
            held.append((victim, guard))
    return Screening(tuple(allowed), tuple(held))
