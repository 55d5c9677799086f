"""BECPUEvict: do best-effort pods get so little of the CPU they asked for that fewer of them would be better off."""

from __future__ import annotations

import msgspec

from koordebpf.policy.detect.verdict import Need, UseEvidence, UseMoment, Verdict, has_window, skip, skipped_cpu
from koordebpf.slo.strategies.resource_threshold import (
    BY_ALLOCATABLE,
    DEFAULT_BE_USAGE_THRESHOLD_PERCENT,
    be_cpu_evict_problem,
    first_byte_at,
)
from koordebpf.state.amount import BE_REQUESTED_CPU, CPU
from koordebpf.state.cpu.measured import CpuView
from koordebpf.state.cpu.view import MILLI, be_limit_millicpu, be_request_millicpu
from koordebpf.state.pods.requests import BATCH_CPU
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_S, format_millicpu

FEATURE = "BECPUEvict"


class _Moment(msgspec.Struct, frozen=True, gc=False):
    used: int
    request: int
    limit: int  # 0: nothing to have


def be_cpu_evict(view: NodeView, *, below_one_is_busy: bool = False) -> Verdict:
    """Judge what best-effort pods get of the CPU they ask for, averaged over the window and again now.

    Satisfaction is limit / request: the limit is the smallest cpuset or the quota of the best-effort directory, with
    cpuEvictPolicy evictByAllocatable what is allocatable of batch-cpu. They count as busy by their share of the limit,
    however small it is; with `below_one_is_busy` as in Koordinator, whenever the limit is below one CPU.

    Fires if: used ≥ limit · cpuEvictBEUsageThresholdPercent / 100 and limit ≤ request · lower / 100, over the window
             and now. The need is request · upper / 100 − limit, the smaller of both; that of the window where neither
             request nor limit changed.
    Skips:   as every feature of CPU; no_window: less than a third of the window has samples of one of the values;
             no_node: batch-cpu is to be judged and no Node is known.
    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpuevict/cpu_evict.go.
    """
    if (unjudged := skipped_cpu(view, FEATURE, be_cpu_evict_problem)) is not None:
        return unjudged
    cpu, strategy = view.cpu, view.strategy
    if cpu is None or strategy is None:  # `skipped_cpu` has reported it
        return skip(FEATURE, "unmeasured", "the node's CPUs were not measured")
    window = cpu.measured.window
    allocatable = None
    if strategy.cpuEvictPolicy == BY_ALLOCATABLE:
        if cpu.allocatable is None:
            return skip(FEATURE, "no_node", "no Node object is known: what is allocatable is not known")
        if (allocatable := cpu.allocatable.get(BATCH_CPU)) is None:
            return skip(FEATURE, "no_node", f"the Node has no {BATCH_CPU}: there is nothing to compare with")
    average, now = _average(cpu, allocatable), _now(view, cpu, allocatable)
    if window is None or average is None or now is None or not has_window(window):
        return skip(FEATURE, "no_window", "best-effort CPU is known for less than a third of the window")
    lower = strategy.cpuEvictBESatisfactionLowerPercent or 0
    upper = strategy.cpuEvictBESatisfactionUpperPercent or 0
    written = strategy.cpuEvictBEUsageThresholdPercent
    busy = DEFAULT_BE_USAGE_THRESHOLD_PERCENT if written is None else written
    evidence = _evidence(window.window_ns, average, now, (busy, lower, upper))
    for moment, when in ((average, f"in {window.window_ns // NS_PER_S} s"), (now, "now")):
        is_busy = below_one_is_busy and moment.limit < MILLI
        if (why := _why_fine(moment, 0 if is_busy else busy, lower)) is not None:
            return Verdict(FEATURE, False, f"{why} {when}", evidence=evidence)
    need = _need(average, upper)
    if (now.request, now.limit) != (average.request, average.limit):
        need = min(need, _need(now, upper))
    if need <= 0:
        return Verdict(FEATURE, False, f"best-effort pods have what {upper} % of their requests are", evidence=evidence)
    return Verdict(
        feature=FEATURE,
        fires=True,
        reason=(
            f"best-effort pods may have {format_millicpu(average.limit)}, {_percent(average)} % ≤ {lower} % of what "
            f"they ask for, need {format_millicpu(need)} less asked for to reach {upper} %"
        ),
        evidence=evidence,
        needs=(Need(BE_REQUESTED_CPU, need, average.request, average.limit),),
    )


# The percents are those of the strategy: busy, lower, upper.
def _evidence(window_ns: int, average: _Moment, now: _Moment, percents: tuple[int, int, int]) -> UseEvidence:
    busy, lower, upper = percents
    return UseEvidence(
        CPU,
        of=average.limit,
        used=average.used,
        used_percent=average.used * 100 // average.limit if average.limit else None,
        threshold_percent=busy,
        lower_percent=lower,
        threshold=first_byte_at(busy, average.limit),
        lower=average.request * lower // 100,
        window_ns=window_ns,
        upper_percent=upper,
        upper=average.request * upper // 100,
        request=average.request,
        now=UseMoment(now.used, now.limit, now.request),
    )


def _average(cpu: CpuView, allocatable: int | None) -> _Moment | None:
    window = cpu.measured.window
    if window is None or window.be_used_millicpu is None or window.be_request_millicpu is None:
        return None
    limit = window.be_limit_millicpu if allocatable is None else allocatable
    return None if limit is None else _Moment(window.be_used_millicpu, window.be_request_millicpu, limit)


def _now(view: NodeView, cpu: CpuView, allocatable: int | None) -> _Moment | None:
    usage = cpu.measured.usage
    limit = be_limit_millicpu(cpu.measured) if allocatable is None else allocatable
    if usage is None or usage.be_used_millicpu is None or limit is None:
        return None
    return _Moment(usage.be_used_millicpu, be_request_millicpu(view.pods), limit)


# None: it is not fine.
def _why_fine(moment: _Moment, busy_percent: int, lower: int) -> str | None:
    if not moment.request:
        return "no best-effort pod asked for CPU"
    if moment.used * 100 < busy_percent * moment.limit:
        return (
            f"best-effort pods used {format_millicpu(moment.used)} < {busy_percent} % of the "
            f"{format_millicpu(moment.limit)} they may have"
        )
    if moment.limit * 100 > lower * moment.request:
        return f"best-effort pods may have {_percent(moment)} % > {lower} % of what they ask for"
    return None


def _percent(moment: _Moment) -> int:
    return moment.limit * 100 // moment.request


def _need(moment: _Moment, upper: int) -> int:
    return moment.request * upper // 100 - moment.limit
