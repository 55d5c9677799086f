"""CPUBurst as a strategy: what containers may have beyond their CPU limit, as cgroup files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.cpu_burst.quota import Judged, Round, judge
from koordebpf.policy.cpu_burst.room import NodeState, node_state
from koordebpf.policy.cpu_burst.settings import BurstSettings
from koordebpf.policy.cpu_burst.state import BurstState, ContainerBurst, Level, level_of
from koordebpf.policy.hooks.cpu_normalization import is_normalized, normalization_ratio
from koordebpf.policy.hooks.values import CPU_NORMALIZATION
from koordebpf.policy.reconcile.values import CgroupWrite
from koordebpf.policy.strategy import Decision, Strategy
from koordebpf.slo.pods.cpu_burst import pod_cpu_burst
from koordebpf.slo.strategies.cpu_burst import CPUBurstStrategy
from koordebpf.state.cpu_burst.measured import BurstContainer, BurstMeasured, BurstPod, BurstView
from koordebpf.state.cpu_burst.view import burst_view
from koordebpf.state.hooks.pods import HookPod
from koordebpf.state.view import NodeView

CPU_BURST_GATE = "CPUBurst"


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


class _OfPod(msgspec.Struct):
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
        now = Round(view.now_ns, node, measured.cpus, settings, ratio)
        parts = {
            each.path: _of_pod(each, burst.pods[each.uid], strategy, state, now)
            for each in measured.pods
            if each.uid in burst.pods
        }
        return _decision(parts, now, _reason(burst, percent, parts.values()))


# One pod's containers, its own level, and its files.
def _of_pod(measured: BurstPod, pod: HookPod, strategy: CPUBurstStrategy, state: BurstState, now: Round) -> _OfPod:
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
    level = _pod_level(measured, before, containers.values())
    return _OfPod(
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


# What its containers have beyond their own is added to what a pod has; None: it has no limit.
def _pod_level(measured: BurstPod, before: Level | None, containers: Iterable[Judged]) -> Level | None:
    held = measured.quota_us
    if held is None:
        return None
    if before is not None and before.is_foreign(held):
        return before.left(held)
    level = level_of(held) if before is None else before.seen(held)
    more = sum(each.burst.level.wanted_us - each.burst.level.own_us for each in containers)
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


def _reason(burst: BurstView, percent: int | None, parts: Iterable[_OfPod]) -> str:
    strategy = burst.measured.strategy
    threshold = strategy.sharePoolThresholdPercent if strategy is not None else None
    raised = sum(each.burst.level.is_raised for part in parts for each in part.containers.values())
    used = "not known" if percent is None else f"{percent} %"
    return f"CPU burst: {raised} containers above their limit, use of the share pool {used}, threshold {threshold} %"


def _decision(parts: dict[str, _OfPod], now: Round, reason: str) -> BurstDecision:
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
