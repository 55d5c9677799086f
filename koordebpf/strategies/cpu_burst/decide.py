"""CPUBurst: what containers may have beyond their CPU limit, and for how long, by koordlet's state machine. Pure."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import MIN_QUOTA_US, CgroupFile
from koordebpf.kernel.host.strategy_files import cgroup_file
from koordebpf.policy.cpu_normalization import CPU_NORMALIZATION, is_normalized, normalization_ratio
from koordebpf.policy.reconcile import CgroupWrite
from koordebpf.policy.strategy import Decision, Strategy
from koordebpf.slo.strategies.cpu_burst import CPUBurstStrategy
from koordebpf.state.pods.hook_pods import HookPod
from koordebpf.state.view import NodeView
from koordebpf.strategies.cpu_burst.values import (
    CPU_BURST_ANNOTATION,
    BurstContainer,
    BurstMeasured,
    BurstPod,
    BurstSettings,
    BurstView,
    burst_view,
    pod_cpu_burst,
)
from koordebpf.units import NS_PER_S

NodeState = Literal["idle", "cooling", "overload", "unknown"]
_COOLING_PERCENT = 90  # of the threshold
_FULL = 100  # percent of the limit
_SAVES_BELOW = 60  # percent of the limit
Operation = Literal["up", "down", "reset", "remain"]
_LOWER_EVERY_NS = NS_PER_S * 9 // 10  # Why: koordlet's interval is 1 s, and a round may come a little early
LEAVE_NS = 60 * NS_PER_S  # Why: who writes quotas beside kubelet does so in minutes
CPU_BURST_GATE = "CPUBurst"


def node_state(view: BurstView) -> tuple[NodeState, int | None]:
    """Return the state of the share pool, and its use in percent; None: not known.

    idle: bursts may begin and grow. cooling: those that there are stay. overload: they shrink. unknown: as cooling.
    The pool is what LSE and LSR pods do not request, its use what they and best-effort pods do not use. It has no more
    than the CPUs that ordinary tasks run on: which of the others LSE and LSR pods have is not known.

    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpuburst, getNodeStateForBurst.
    """
    measured, strategy = view.measured, view.measured.strategy
    threshold = strategy.sharePoolThresholdPercent if strategy is not None else None
    if measured.node_used_millicpu is None or not measured.cpus or threshold is None:
        return "unknown", None
    total = min(measured.cpus * 1000 - view.apart_millicpu, measured.ordinary_cpus * 1000)
    used = max(measured.node_used_millicpu - measured.apart_used_millicpu, 0)
    percent = used * 100 / total if total > 0 else 100.0
    if percent >= threshold:
        return "overload", int(percent)
    return ("cooling" if percent * 100 >= threshold * _COOLING_PERCENT else "idle"), int(percent)


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """A bucket. Its unit is a percent of the limit for one second; below 0 it was overdrawn."""

    capacity: int
    left: float
    judged_ns: int


def is_allowed(
    tokens: Tokens | None, strategy: CPUBurstStrategy, used_percent: int, now_ns: int, container_id: str
) -> tuple[bool, Tokens | None]:
    """Tell whether a container may be above its limit now, and return its bucket; None: it needs none.

    A bucket begins with up to half of its capacity, which depends on the container alone: containers that start
    together do not all end their bursts together.

    Args:
        tokens: as they were left; None: it had none.
        strategy: of the container's pod.
        used_percent: of its limit.
        now_ns: CLOCK_MONOTONIC.
        container_id: of the container.
    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpuburst, burstLimiter.
    """
    period_s, percent = strategy.cfsQuotaBurstPeriodSeconds, strategy.cfsQuotaBurstPercent
    if period_s is None or period_s < 0:
        return True, None
    if percent is None or percent < _FULL:
        return False, None
    capacity = period_s * (percent - _FULL)
    if tokens is None or tokens.capacity != capacity:
        share = zlib.crc32(container_id.encode()) / (1 << 32) / 2
        tokens = Tokens(capacity, capacity * share, now_ns)
    seconds = (now_ns - tokens.judged_ns) / NS_PER_S
    left = tokens.left
    if used_percent >= _FULL or used_percent < _SAVES_BELOW:
        left += (_FULL - used_percent) * seconds
    tokens = Tokens(capacity, min(max(left, -capacity), capacity), now_ns)
    return tokens.left > 0, tokens


class Level(msgspec.Struct, frozen=True, gc=False):
    """The quota of one cgroup. Microseconds of a period.

    `own_us`    what it held before the burst and is to hold afterwards.
    `wanted_us` what it is to hold now; `own_us`: there is no burst.
    `before_us` what it was to hold in the round before.
    """

    own_us: int
    wanted_us: int
    before_us: int

    @property
    def is_raised(self) -> bool:
        """Whether it has more than its own."""
        return self.wanted_us > self.own_us

    @property
    def is_written(self) -> bool:
        """Whether its file is to be written: also once with its own, so that children are lowered before parents.

        And once with what another process wrote, which the writer takes for its original value then.
        """
        return self.is_raised or self.before_us != self.own_us

    def is_foreign(self, held_us: int | None) -> bool:
        """Tell whether a file that holds this was written by another process during the burst."""
        return self.is_raised and held_us not in (self.own_us, self.wanted_us, self.before_us)

    def left(self, held_us: int) -> Level:
        """Return the level of a cgroup whose file another process wrote: that is its own now."""
        return Level(held_us, held_us, self.wanted_us)

    def seen(self, held_us: int) -> Level:
        """Return the level that a round begins with, whose file holds this; after a burst that is its own again.

        A burst that has ended is written until the file holds less: the kernel may have refused it.
        """
        if self.is_raised:
            return Level(self.own_us, self.wanted_us, self.wanted_us)
        return self if self.is_written and held_us == self.before_us else level_of(held_us)


def level_of(held_us: int) -> Level:
    """Return the level of a cgroup without a burst."""
    return Level(held_us, held_us, held_us)


class ContainerBurst(msgspec.Struct, frozen=True, gc=False):
    """One container.

    `limit_us`      its limit by the pod's spec, for a period; another one ends its burst.
    `stepped_ns`    when its quota was changed last; `throttled_ns`: when it was throttled last. CLOCK_MONOTONIC.
    `left_until_ns` another process wrote its quota or its pod's: it is left to that until then.
    """

    level: Level
    period_us: int
    limit_us: int
    stepped_ns: int = 0
    throttled_ns: int = 0
    tokens: Tokens | None = None
    left_until_ns: int = 0


class BurstState(msgspec.Struct, frozen=True):
    """Containers and pods by the paths of their cgroups."""

    containers: Mapping[str, ContainerBurst] = {}
    pods: Mapping[str, Level] = {}


class Round(msgspec.Struct, frozen=True):
    """What all containers of a round are judged by.

    `cpus`: the most that a quota may come to. `ratio`: by which CPUNormalization keeps quotas below limits; None: it
    does not.
    """

    now_ns: int
    node: NodeState
    cpus: int
    settings: BurstSettings
    ratio: float | None = None

    def limit_us(self, limit_millicpu: int, period_us: int) -> int:
        """Return the quota that stands for a limit."""
        limit_us = limit_millicpu * period_us // 1000
        return max(limit_us if self.ratio is None else math.ceil(limit_us / self.ratio), MIN_QUOTA_US)


class Judged(msgspec.Struct, frozen=True):
    """One container: what is remembered, the most that it may have, and whether it would be raised if throttled."""

    burst: ContainerBurst
    ceiling_us: int
    may_rise: bool


def judge(
    measured: BurstContainer,
    limit_millicpu: int,
    before: ContainerBurst | None,
    strategy: CPUBurstStrategy,
    now: Round,
    *,
    is_pod_foreign: bool = False,
) -> Judged:
    """Return the next quota of a container.

    Args:
        measured: the container.
        limit_millicpu: its limit by its pod's spec.
        before: as it was left; None: it is new.
        strategy: of its pod.
        now: the round.
        is_pod_foreign: another process wrote the quota of its pod.
    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpuburst/cpu_burst.go.
    """
    burst = _seen(measured, now.limit_us(limit_millicpu, measured.period_us), before, now.now_ns, is_pod_foreign)
    used = limit_millicpu if measured.used_millicpu is None else measured.used_millicpu
    is_in_time, tokens = is_allowed(burst.tokens, strategy, used * 100 // limit_millicpu, now.now_ns, measured.id)
    if measured.is_throttled:
        burst = replace(burst, throttled_ns=now.now_ns)
    burst = replace(burst, tokens=tokens)
    ceiling = _ceiling_us(burst, strategy, now.cpus)
    if strategy.policy not in ("auto", "cfsQuotaBurstOnly"):
        return Judged(_stepped(burst, "reset", ceiling, now), ceiling, may_rise=False)
    is_left = burst.left_until_ns > now.now_ns
    may_rise = is_in_time and not is_left and burst.level.wanted_us < ceiling and _has_room(measured, now)
    operation: Operation = "remain"
    if not is_in_time:
        operation = "down"
    elif measured.is_throttled and may_rise:
        operation = "up"
    elif (now.node == "overload" and not _is_starved(measured, now.settings)) or _is_calm(burst, now):
        operation = "down"
    return Judged(_stepped(burst, operation, ceiling, now), ceiling, may_rise=may_rise)


# What a container is judged from: while there is no burst, what its file holds is its own.
def _seen(
    measured: BurstContainer, limit_us: int, before: ContainerBurst | None, now_ns: int, is_pod_foreign: bool
) -> ContainerBurst:
    held = measured.quota_us
    fresh = ContainerBurst(level_of(held), measured.period_us, limit_us)
    if before is None:
        return fresh
    is_foreign = before.level.is_foreign(held)
    if (before.period_us, before.limit_us) != (measured.period_us, limit_us):
        level = (
            before.level.left(held if is_foreign else before.level.own_us) if before.level.is_raised else fresh.level
        )
        return replace(fresh, level=level, tokens=before.tokens, left_until_ns=before.left_until_ns)
    if is_foreign or is_pod_foreign:
        own_us = before.level.own_us if before.level.is_raised and not is_foreign else held
        return replace(before, level=before.level.left(own_us), left_until_ns=now_ns + LEAVE_NS)
    return replace(before, level=before.level.seen(held))


def _ceiling_us(burst: ContainerBurst, strategy: CPUBurstStrategy, cpus: int) -> int:
    own, percent = burst.level.own_us, strategy.cfsQuotaBurstPercent or 100
    return max(min(min(own, burst.limit_us) * percent // 100, cpus * burst.period_us), own)


def _has_room(measured: BurstContainer, now: Round) -> bool:
    return now.node == "idle" or (now.node != "unknown" and _is_starved(measured, now.settings))


def _is_starved(measured: BurstContainer, settings: BurstSettings) -> bool:
    ratio = measured.throttled_ratio
    return bool(settings.starved_percent) and ratio is not None and ratio * 100 >= settings.starved_percent


def _is_calm(burst: ContainerBurst, now: Round) -> bool:
    after_s = now.settings.return_after_s
    return bool(after_s) and now.now_ns - max(burst.throttled_ns, burst.stepped_ns) >= after_s * NS_PER_S


def _stepped(burst: ContainerBurst, operation: Operation, ceiling_us: int, now: Round) -> ContainerBurst:
    level, settings = burst.level, now.settings
    since_ns = now.now_ns - burst.stepped_ns
    wanted = level.wanted_us
    match operation:
        case "up" if not burst.stepped_ns or since_ns >= burst.period_us * 1000:
            wanted = wanted * settings.raise_percent // 100
        case "down" if since_ns >= _LOWER_EVERY_NS:
            wanted = wanted * settings.lower_percent // 100
        case "reset":
            wanted = level.own_us
    wanted = min(max(wanted, level.own_us), ceiling_us)
    if wanted == level.wanted_us:
        return burst
    return replace(burst, level=replace(level, wanted_us=wanted), stepped_ns=now.now_ns)


class BurstDecision(Decision[BurstState], frozen=True, kw_only=True):
    """The decision with what it says of the node.

    `node`       of the share pool.
    `watched`    paths of containers whose quota would be raised if they were throttled now, and that quota in µs.
    `raised`     containers that have more than their own; `at_ceiling`: those of them that get no more.
    `left`       containers that are left to another process.
    `problems`   sentences on what of pods' annotations cannot be read.
    """

    node: NodeState = "unknown"
    watched: Mapping[str, int] = msgspec.field(default_factory=dict)
    raised: int = 0
    at_ceiling: int = 0
    left: int = 0
    problems: tuple[str, ...] = ()


class _PodBurst(msgspec.Struct):
    containers: dict[str, Judged] = {}
    level: Level | None = None
    writes: tuple[CgroupWrite, ...] = ()
    problem: str | None = None


class CpuBurst(Strategy[BurstMeasured, BurstState, BurstSettings]):
    """Koordinator's cpuburst, asked in each round, and as soon as a container is throttled."""

    name = "cpuBurst"
    gate = CPU_BURST_GATE
    summary = "let latency-sensitive pods go above their CPU limit for a while"
    measured = BurstMeasured
    settings = BurstSettings
    annotations = frozenset({CPU_BURST_ANNOTATION})
    needs = (
        cgroup_file("save unused quota for a burst", "5.14", CgroupFile.CPU_BURST),
        cgroup_file("raise the quota for a while", "3.2", CgroupFile.CPU_QUOTA),
    )
    state = BurstState

    def decide(
        self, view: NodeView, measured: BurstMeasured | None, state: BurstState, settings: BurstSettings
    ) -> BurstDecision:
        """Return what containers and pods are to have of quota and burst.

        Skips:   not_measured: what was written before stays.
        """
        if measured is None:
            return BurstDecision(state=state, reason="CPU burst was not measured", skipped="not_measured")
        strategy = measured.strategy
        if strategy is None:
            return BurstDecision(state=BurstState(), reason="CPU burst: there is no NodeSLO")
        burst = burst_view(measured, view.facts, view.frame.node)
        node, percent = node_state(burst)
        ratio = normalization_ratio(burst.annotations, []) if view.feature_gates.get(CPU_NORMALIZATION) else None
        now = Round(view.now_ns, node, measured.ordinary_cpus, settings, ratio)
        parts = {
            each.path: _of_pod(each, burst.pods[each.uid], strategy, state, now)
            for each in measured.pods
            if each.uid in burst.pods
        }
        return _decision(parts, now, _reason(burst, percent, parts.values()))


# One pod's containers, its own level, and its files.
def _of_pod(measured: BurstPod, pod: HookPod, strategy: CPUBurstStrategy, state: BurstState, now: Round) -> _PodBurst:
    if not is_normalized(pod, None):
        now = msgspec.structs.replace(now, ratio=None)
    own, error = pod_cpu_burst(strategy, pod.annotations) if now.settings.pod_annotations else (strategy, None)
    limits = {each.id: each.cpu_limit_millicpu for each in pod.containers if each.id}
    before = state.pods.get(measured.path)
    is_foreign = before is not None and before.is_foreign(measured.quota_us)
    containers: dict[str, Judged] = {}
    bursts: dict[str, int] = {}
    for each in measured.containers:
        limit = limits.get(each.id, 0)
        if limit <= 0:
            continue
        made = containers[each.path] = judge(
            each, limit, state.containers.get(each.path), own, now, is_pod_foreign=is_foreign
        )
        if (burst_us := _burst_us(each, made.burst, own)) is not None:
            bursts[each.path] = burst_us
    percent = None if pod.cpu_limit_millicpu == 0 else own.cfsQuotaBurstPercent
    level = _pod_level(measured, before, containers.values(), percent)
    return _PodBurst(
        containers,
        level,
        _writes(measured, level, containers, bursts),
        None if error is None else f"pod {pod.key}: {error}; the node's CPU burst strategy counts for it",
    )


# Of unused quota a container may save up: never more than its own quota, which is all that the kernel takes, nor than
# its limit: the kernel would refuse the quota of a smaller limit that kubelet or a hook is about to write.
# Source: kernel/sched/core.c, tg_set_cfs_bandwidth: EINVAL where the burst is more than the quota.
def _burst_us(measured: BurstContainer, burst: ContainerBurst, strategy: CPUBurstStrategy) -> int | None:
    if measured.burst_us is None or strategy.policy not in ("auto", "cpuBurstOnly"):
        return None
    percent = min(strategy.cpuBurstPercent or 0, 100)
    return min(burst.limit_us * percent // 100, burst.level.own_us)


# What its containers have beyond their own is added to what a pod has; None: it has no limit. The limits of containers
# below a limit of the pod's own level may come to any multiple of that, so that it bounds them: `percent` of it.
def _pod_level(
    measured: BurstPod, before: Level | None, containers: Iterable[Judged], percent: int | None
) -> Level | None:
    held = measured.quota_us
    if held is None:
        return None
    if before is not None and before.is_foreign(held):
        return before.left(held)
    level = level_of(held) if before is None else before.seen(held)
    more = sum(each.burst.level.wanted_us - each.burst.level.own_us for each in containers)
    if percent is not None:
        more = min(more, max(level.own_us * (percent - _FULL) // _FULL, 0))
    return msgspec.structs.replace(level, wanted_us=level.own_us + more)


def _writes(
    measured: BurstPod, level: Level | None, containers: dict[str, Judged], bursts: dict[str, int]
) -> tuple[CgroupWrite, ...]:
    levels = {measured.path: level} if level is not None else {}
    levels |= {path: each.burst.level for path, each in containers.items()}
    writes = [
        CgroupWrite(path, CgroupFile.CPU_QUOTA, each.wanted_us) for path, each in levels.items() if each.is_written
    ]
    if bursts and level is not None and measured.burst_us is not None:
        writes.append(CgroupWrite(measured.path, CgroupFile.CPU_BURST, min(sum(bursts.values()), level.own_us)))
    writes += [CgroupWrite(path, CgroupFile.CPU_BURST, value) for path, value in bursts.items()]
    return tuple(writes)


def _reason(burst: BurstView, percent: int | None, parts: Iterable[_PodBurst]) -> str:
    strategy = burst.measured.strategy
    threshold = strategy.sharePoolThresholdPercent if strategy is not None else None
    raised = sum(each.burst.level.is_raised for part in parts for each in part.containers.values())
    used = "not known" if percent is None else f"{percent} %"
    return f"CPU burst: {raised} containers above their limit, use of the share pool {used}, threshold {threshold} %"


def _decision(parts: dict[str, _PodBurst], now: Round, reason: str) -> BurstDecision:
    judged = {path: each for part in parts.values() for path, each in part.containers.items()}
    bursts: dict[str, ContainerBurst] = {path: each.burst for path, each in judged.items()}
    raised = [each for each in judged.values() if each.burst.level.is_raised]
    return BurstDecision(
        state=BurstState(bursts, {path: each.level for path, each in parts.items() if each.level is not None}),
        reason=reason,
        writes=tuple(write for part in parts.values() for write in part.writes),
        node=now.node,
        watched={path: each.burst.level.own_us for path, each in judged.items() if each.may_rise},
        raised=len(raised),
        at_ceiling=sum(each.burst.level.wanted_us >= each.ceiling_us for each in raised),
        left=sum(each.left_until_ns > now.now_ns for each in bursts.values()),
        problems=tuple(part.problem for part in parts.values() if part.problem is not None),
    )


CPU_BURST = CpuBurst()
