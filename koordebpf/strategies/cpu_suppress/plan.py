"""One round of suppression: what best-effort pods are to have, or why nothing changes."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import CgroupFile, format_cpu_list
from koordebpf.policy.reconcile import CgroupWrite, DesiredState
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.cpu.measured import CpuUsage, CpuView
from koordebpf.state.cpu.view import ordinary_millicpu
from koordebpf.state.stalls.ledger import caused_stalls, is_latency_sensitive
from koordebpf.state.view import NodeView
from koordebpf.strategies.cpu_suppress.choose import (
    MIN_QUOTA_US,
    BeAmount,
    CpuPools,
    be_amount,
    be_pools,
    be_root,
    choose_cpuset,
    choose_quota,
    cpus_in_use,
    cpuset_writes,
    quota_write,
    recovered_cpuset,
    recovered_idle,
    recovered_quota,
    recovered_state,
    recovery,
)
from koordebpf.strategies.cpu_suppress.values import (
    MemoryHold,
    MemoryPressureSettings,
    Policy,
    SuppressSettings,
    SuppressState,
)
from koordebpf.units import NS_PER_S, format_millicpu, format_ns

_STEP_NS = NS_PER_S  # Why: the ledger charges in slices of a second
_FLOOR_MILLICPU = 100  # Why: with a tenth of a CPU a pod still answers its signals and probes
SUPPRESS_GATE = "BECPUSuppress"  # on unless it is switched off, as in koordlet
MANAGER_GATE = "BECPUManager"
_LEAST_SHARES = 2  # kernel/sched: MIN_SHARES; kubelet gives them the best-effort directory anyway


class MemoryHoldChoice(msgspec.Struct, frozen=True):
    """The hold from now on, None for none; until when none is tried; and what there is to say about either."""

    hold: MemoryHold | None = None
    rest_until_ns: int | None = None
    sentence: str | None = None


def memory_hold(
    view: NodeView, settings: MemoryPressureSettings, hold: MemoryHold | None, rest_until_ns: int | None
) -> MemoryHoldChoice:
    """Return what best-effort pods are held to for the sake of others' memory, and whether the hold helped so far.

    It begins at `start_ratio`, takes `step_ratio` of what they use each second in which a pod stalled, and ends when
    the stalls are below half of `start_ratio`, or no pod stalled for `judge_ns`. A hold that has not lowered them by
    `effect_ratio` after `judge_ns`, or after the ledger's window if that is longer, ends too and is not tried again for
    `rest_ns`.
    """
    if view.measured.ledger is None or view.cpu is None or view.cpu.measured.usage is None:
        return MemoryHoldChoice(hold, rest_until_ns)
    ratio = caused_ratio(view)
    if hold is None:
        if ratio < settings.start_ratio or (rest_until_ns is not None and view.now_ns < rest_until_ns):
            return MemoryHoldChoice(None, rest_until_ns)
        cap = _stepped(view.cpu.measured.usage.be_used_millicpu, settings)
        if cap is None:
            return MemoryHoldChoice(None, rest_until_ns)
        hold = MemoryHold(cap, view.now_ns, view.now_ns, ratio)
        return MemoryHoldChoice(hold, None, _held_for_memory(hold, ratio))
    # The ledger's window is long: what it holds of the time before says nothing about the hold.
    stalled_ns = _last_stall_ns(view)
    if ratio < settings.start_ratio / 2:
        return MemoryHoldChoice(None, None, f"stalls for memory fell to {ratio:.1%}: the hold ends")
    if view.now_ns - max(stalled_ns, hold.since_ns) >= settings.judge_ns:
        return MemoryHoldChoice(
            None, None, f"no pod stalled for memory for {format_ns(settings.judge_ns)}: the hold ends"
        )
    judge_ns = max(settings.judge_ns, view.measured.ledger.window_ns)
    if view.now_ns - hold.since_ns >= judge_ns and ratio > hold.ratio_at_start * (1 - settings.effect_ratio):
        said = (
            f"less CPU for best-effort pods left stalls for memory at {ratio:.1%}, from {hold.ratio_at_start:.1%}: "
            "the hold ends without effect"
        )
        return MemoryHoldChoice(None, view.now_ns + settings.rest_ns, said)
    is_worth_it = ratio >= settings.start_ratio and stalled_ns > hold.stepped_ns
    cap = _stepped(hold.cap_millicpu, settings)
    if is_worth_it and cap is not None and view.now_ns - hold.stepped_ns >= _STEP_NS:
        hold = MemoryHold(cap, hold.since_ns, view.now_ns, hold.ratio_at_start)
    return MemoryHoldChoice(hold, None, _held_for_memory(hold, ratio))


def caused_ratio(view: NodeView) -> float:
    """Return the share of the ledger's window that latency-sensitive pods stalled on account of best-effort ones."""
    if view.measured.ledger is None or not view.measured.ledger.window_ns:
        return 0.0
    best_effort = {pod.uid for pod in view.pods if pod.kube_qos == "BestEffort"}
    caused = caused_stalls(view.measured.ledger, view.pods)
    return sum(ns for uid, ns in caused.items() if uid in best_effort) / view.measured.ledger.window_ns


# The end of the last stall that counts in `caused_ratio`.
def _last_stall_ns(view: NodeView) -> int:
    best_effort = {pod.uid for pod in view.pods if pod.kube_qos == "BestEffort"}
    victims = {pod.uid for pod in view.pods if is_latency_sensitive(pod)}
    rows = view.measured.ledger.rows if view.measured.ledger else ()
    return max((row.last_ns for row in rows if row.cause.uid in best_effort and row.victim.uid in victims), default=0)


def _held_for_memory(hold: MemoryHold, ratio: float) -> str:
    cap = format_millicpu(hold.cap_millicpu)
    return f"best-effort pods made others stall for memory {ratio:.1%} of the time: held to {cap}"


# None: there is nothing that could be taken.
def _stepped(from_millicpu: int | None, settings: MemoryPressureSettings) -> int | None:
    if from_millicpu is None or from_millicpu <= _FLOOR_MILLICPU:
        return None
    return max(int(from_millicpu * (1 - settings.step_ratio)), _FLOOR_MILLICPU)


class SuppressPlan(msgspec.Struct, frozen=True):
    """The decision for one NodeView. `reason` is one sentence; `next` is the state for the next one.

    `skipped` is a short stable word: nothing is decided, and what was written before stays.
    """

    reason: str
    next: SuppressState
    desired: DesiredState
    skipped: str | None = None
    policy: Policy | None = None
    amount: BeAmount | None = None
    be_millicpu: int | None = None  # what counts of the amount: less while memory is short
    held_millicpu: int | None = None  # what they can use from now on: those CPUs, or the quota. None: all there is
    cpus: tuple[int, ...] | None = None
    quota_us: int | None = None


def plan_suppress(
    view: NodeView,
    state: SuppressState = SuppressState(),  # noqa: B008 - frozen
    settings: SuppressSettings = SuppressSettings(),  # noqa: B008 - frozen
) -> SuppressPlan:
    """Return what best-effort pods are to have. The same view and state give the same plan.

    Skips:   unmeasured, no_strategy, enable_unset, no_best_effort, first_sample, invalid_config, no_cpuset, no_quota.
    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpusuppress/cpu_suppress.go, same order of checks.
    """
    cpu, strategy = view.cpu, view.strategy
    if cpu is None:
        return _skip(state, "unmeasured", "the node's CPUs were not measured")
    if strategy is None:
        # At a start it may come yet, and a predecessor have left something; where it was deleted it suppresses no pod.
        if be_root(cpu) is None or not (state.is_ruled or _is_left_too_long(view, state, settings)):
            return _skip(state, "no_strategy", "no NodeSLO and no slo-controller-config is known")
        return _undone(cpu, state, "suppression is off: there is no NodeSLO and no slo-controller-config any more")
    if strategy.enable is None:
        return _skip(state, "enable_unset", "resourceUsedThresholdWithBE.enable is not set")
    if be_root(cpu) is None:
        return _skip(state, "no_best_effort", _without_directory(cpu) or "the node has no best-effort directory")
    is_on = view.feature_gates.get(SUPPRESS_GATE, True)
    if is_on and view.feature_gates.get(MANAGER_GATE, False):
        return _managed(cpu, state)
    if not is_on:
        return _undone(cpu, state, f"suppression is off: feature gate {SUPPRESS_GATE} is off")
    if not strategy.enable:
        # The set is wanted for as long as the gate is on: LSE pods come and go, and so do CPUs.
        reason = "suppression is off: resourceUsedThresholdWithBE.enable is false"
        wanted = state if state.cpuset == "using" else replace(state, cpuset="unknown")
        desired = recovery(cpu, wanted, reason)
        return SuppressPlan(reason, recovered_state(cpu, state), desired)
    usage = cpu.measured.usage
    if usage is None:
        return _skip(state, "first_sample", "CPU usage needs two samples")
    if cpu.capacity_millicpu <= 0:
        return _skip(state, "invalid_config", f"the node's CPU capacity is {cpu.capacity_millicpu}")
    if strategy.cpuSuppressThresholdPercent is None:
        return _skip(state, "invalid_config", "cpuSuppressThresholdPercent is not set")
    return _held(view, cpu, usage, strategy, settings, state)


def _held(
    view: NodeView,
    cpu: CpuView,
    usage: CpuUsage,
    strategy: ResourceThresholdStrategy,
    settings: SuppressSettings,
    state: SuppressState,
) -> SuppressPlan:
    threshold = strategy.cpuSuppressThresholdPercent or 0
    amount = be_amount(cpu, usage, threshold, strategy.cpuSuppressMinPercent)
    sentences = [amount.sentence]
    be_millicpu = amount.be_millicpu
    if settings.memory_pressure.is_on:
        held = memory_hold(view, settings.memory_pressure, state.memory_hold, state.memory_rest_until_ns)
        state = replace(state, memory_hold=held.hold, memory_rest_until_ns=held.rest_until_ns)
        if held.hold is not None:
            be_millicpu = min(be_millicpu, held.hold.cap_millicpu)
        if held.sentence is not None:
            sentences.append(held.sentence)
    elif state.memory_hold is not None:
        state = replace(state, memory_hold=None)
    pools = be_pools(cpu)
    match settings.policy or strategy.cpuSuppressPolicy:
        case "cpuIdle":
            plan = _by_idle(cpu, pools, state)
        case "cfsQuota":
            plan = _by_quota(view, cpu, pools, be_millicpu, settings, state)
        case _:  # koordlet takes any other word for cpuset, too
            plan = _by_cpuset(view, cpu, pools, be_millicpu, settings, state)
    if state.memory_hold is not None:
        plan = _by_time_too(plan, cpu, state.memory_hold.cap_millicpu)
    reason = "; ".join([*sentences, plan.reason])
    desired = replace(plan.desired, reason=reason)
    return replace(plan, reason=reason, desired=desired, amount=amount, be_millicpu=be_millicpu)


def _by_cpuset(
    view: NodeView, cpu: CpuView, pools: CpuPools, be_millicpu: int, settings: SuppressSettings, state: SuppressState
) -> SuppressPlan:
    now = cpus_in_use(cpu)
    if now is None:
        return _skip(state, "no_cpuset", "the CPUs of the best-effort directory cannot be read")
    choice = choose_cpuset(
        now,
        pools,
        len(cpu.measured.topology.online),
        be_millicpu,
        may_grow=_may_grow(state.cpuset_grown_ns, view.now_ns, settings),
        hysteresis_millicpu=int(cpu.capacity_millicpu * settings.hysteresis_ratio),
    )
    if choice is None:
        plan = _by_quota(view, cpu, pools, be_millicpu, settings, state)
        return replace(plan, reason=f"fewer than two CPUs are free to choose from: {plan.reason}")
    writes = (*cpuset_writes(cpu, pools, choice.cpus), *recovered_quota(cpu, state), *recovered_idle(cpu, state))
    after = replace(
        recovered_state(cpu, state),
        cpuset="using",
        cpuset_grown_ns=view.now_ns if choice.is_growth else state.cpuset_grown_ns,
        memory_hold=state.memory_hold,
    )
    reason = f"CPUs {format_cpu_list(choice.cpus)}, from {format_cpu_list(now) or 'none'}"
    return SuppressPlan(
        reason,
        after,
        DesiredState("", writes),
        policy="cpuset",
        held_millicpu=len(choice.cpus) * 1000,
        cpus=tuple(sorted(choice.cpus)),
    )


def _by_quota(
    view: NodeView, cpu: CpuView, pools: CpuPools, be_millicpu: int, settings: SuppressSettings, state: SuppressState
) -> SuppressPlan:
    now, root = cpu.measured.be_quota, be_root(cpu)
    if now is None or root is None:
        return _skip(
            state, "no_quota", _without_directory(cpu) or "the quota of the best-effort directory cannot be read"
        )
    may_grow = _may_grow(state.quota_grown_ns, view.now_ns, settings)
    choice = choose_quota(now, be_millicpu, ordinary_millicpu(cpu), may_grow=may_grow)
    writes = (
        quota_write(root.path, choice.quota_us),
        *recovered_cpuset(cpu, pools, state.cpuset),
        *recovered_idle(cpu, state),
    )
    after = replace(
        recovered_state(cpu, state),
        quota="using",
        quota_grown_ns=view.now_ns if choice.is_growth else state.quota_grown_ns,
        memory_hold=state.memory_hold,
    )
    before = "no quota" if now.quota_us is None else format_millicpu(now.quota_us * 1000 // now.period_us)
    held_millicpu = choice.quota_us * 1000 // now.period_us
    reason = f"quota {format_millicpu(held_millicpu)}, from {before}"
    return SuppressPlan(
        reason,
        after,
        DesiredState("", writes),
        policy="cfsQuota",
        held_millicpu=held_millicpu,
        quota_us=choice.quota_us,
    )


# Since Linux 5.15 (commit 304000390f88, "sched: Cgroup SCHED_IDLE support").
def _by_idle(cpu: CpuView, pools: CpuPools, state: SuppressState) -> SuppressPlan:
    root, has_idle = be_root(cpu), cpu.measured.be_idle is not None
    file, value = (CgroupFile.CPU_IDLE, 1) if has_idle else (CgroupFile.CPU_SHARES, _LEAST_SHARES)
    idle = () if root is None else (CgroupWrite(root.path, file, value),)
    writes = (*idle, *recovered_cpuset(cpu, pools, state.cpuset), *recovered_quota(cpu, state))
    after = replace(recovered_state(cpu, state), idle="using", memory_hold=state.memory_hold)
    reason = (
        "best-effort pods run when no other pod wants to"
        if has_idle
        else "best-effort pods have the least weight there is: this kernel has no cpu.idle"
    )
    return SuppressPlan(reason, after, DesiredState("", writes), policy="cpuIdle")


# A set has two CPUs at least, and idle pods may use all CPUs that are free: what is limited there is time.
def _by_time_too(plan: SuppressPlan, cpu: CpuView, cap_millicpu: int) -> SuppressPlan:
    now, root = cpu.measured.be_quota, be_root(cpu)
    if plan.skipped is not None or plan.policy == "cfsQuota" or now is None or root is None:
        return plan
    quota_us = max(cap_millicpu * now.period_us // 1000, MIN_QUOTA_US)
    others = (write for write in plan.desired.writes if write.file is not CgroupFile.CPU_QUOTA)
    return replace(
        plan,
        next=replace(plan.next, quota="using"),
        desired=DesiredState("", (*others, quota_write(root.path, quota_us))),
        held_millicpu=cap_millicpu if plan.held_millicpu is None else min(plan.held_millicpu, cap_millicpu),
        quota_us=quota_us,
    )


# Another agent places best-effort pods; what suppression set is removed, and the pods that were given CPUs keep theirs.
def _managed(cpu: CpuView, state: SuppressState) -> SuppressPlan:
    reason = f"feature gate {MANAGER_GATE} is on: another agent places best-effort pods"
    owners = [owner.uid for owner in cpu.placement.owners]
    writes = (
        *recovered_cpuset(cpu, be_pools(cpu), state.cpuset, keep=owners),
        *recovered_quota(cpu, state),
        *recovered_idle(cpu, state),
    )
    return SuppressPlan(reason, recovered_state(cpu, state), DesiredState(reason, writes))


def _undone(cpu: CpuView, state: SuppressState, reason: str) -> SuppressPlan:
    return SuppressPlan(reason, recovered_state(cpu, state), recovery(cpu, state, reason))


# The kubelet makes a directory that is not in every hierarchy when it starts (pkg/kubelet/cm, Exists and Create).
def _without_directory(cpu: CpuView) -> str | None:
    missing = cpu.measured.be_missing
    if not missing:
        return None
    names = " and ".join(each.controller for each in missing)
    paths = " and no ".join(each.path for each in missing)
    which = f"{names} {'hierarchy' if len(missing) == 1 else 'hierarchies'} of cgroup v1"
    return f"the best-effort directory is not in the {which}: there is no {paths}. Restart the kubelet, which makes it"


# What a predecessor left is kept until a strategy comes, no longer than any successor is waited for.
def _is_left_too_long(view: NodeView, state: SuppressState, settings: SuppressSettings) -> bool:
    is_left = "using" in (state.cpuset, state.quota, state.idle)
    return (
        is_left
        and view.frame.startedNs is not None
        and view.now_ns - view.frame.startedNs >= settings.keep_s * NS_PER_S
    )


def _may_grow(grown_ns: int | None, now_ns: int, settings: SuppressSettings) -> bool:
    return grown_ns is None or now_ns - grown_ns >= settings.grow_every_ns


def _skip(state: SuppressState, word: str, reason: str) -> SuppressPlan:
    return SuppressPlan(reason, state, DesiredState(reason), skipped=word)
