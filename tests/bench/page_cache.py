"""BEPageCacheSuppress as a latency-sensitive pod feels it beside a flood of page cache; and what its looks cost."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy, walk
from koordebpf.kube.cache.objects import ClusterState, Pod
from koordebpf.strategies.page_cache.run import PageCacheCollector
from koordebpf.strategies.page_cache.values import PageCacheSettings
from koordebpf.units import NS_PER_S
from tests.bench.figure import at_least, at_most, figure, percentile
from tests.bench.page_cache_seconds import Seconds, back_at_s, harmed_at_s, lines
from tests.bench.report import CannotMeasure, Report, pair_count
from tests.bench.steady import cpu_s
from tests.host.live_agent import LiveAgent
from tests.host.rigs.page_cache_node import NODE_BYTES, SET_MIB, PageCacheNode
from tests.support.nodes import MIB, NodeCgroup

_SECONDS, _WARM_S = 3.0, 5.0  # after the first refaults, or once the file is back: the last pages take longest
_WITHIN_S = 90.0  # the flood has filled the node, or with limits the file is back
_FLOOD_AFTER_S = 4  # two of them with requests
_PER_S = PageCacheSettings().refault_rate
_NODE_BYTES = int(os.environ.get("KOORDEBPF_NODE_MIB", NODE_BYTES // MIB)) * MIB  # more than the machine has: that
_V1 = os.environ.get("KOORDEBPF_PAGE_CACHE_V1", "limit")
_FEWER = 5  # times
_MEDIAN = "median, 99th percentile and worst of the pairs; the median counts"


class Window(msgspec.Struct, frozen=True):
    """What a latency-sensitive pod felt in one; the agent's share of a core in all of the time.

    `back_s`  from its first refaults until it had its file back; None: without limits, or not within the bound.
    """

    refaults_per_s: float
    refaults_per_request: float
    p99_ms: float
    agent_percent: float
    back_s: float | None


def page_cache(report: Report) -> None:
    """Take pairs of windows, with the gate off and on; then time looks at 110 pods."""
    pairs = pair_count(5 if report.quick else 20)
    hierarchy = find_memory_hierarchy()
    try:
        with (
            tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
            NodeCgroup(hierarchy.mount_point, hierarchy.version, _NODE_BYTES) as cgroup,
        ):
            _felt(report, PageCacheNode(cgroup, Path(folder), _FLOOD_AFTER_S, _V1), Path(folder), pairs)
        with NodeCgroup(hierarchy.mount_point, hierarchy.version, 512 * MIB) as cgroup:
            _looks(report, cgroup)
    except (SupportError, OSError) as error:
        raise CannotMeasure(f"needs a memory hierarchy that can be written: {error}") from None


def _felt(report: Report, node: PageCacheNode, folder: Path, pairs: int) -> None:
    windows: dict[bool, list[Window]] = {False: [], True: []}
    for _ in range(pairs):
        for is_limited in (False, True):
            windows[is_limited].append(_window(report, node, folder, is_limited=is_limited))
        without, limited = (each[-1] for each in windows.values())
        report.say(
            f"refaults a second {without.refaults_per_s:.0f} → {limited.refaults_per_s:.0f}, "
            f"a request {without.refaults_per_request:.3f} → {limited.refaults_per_request:.3f}, "
            f"p99 {without.p99_ms:.2f} → {limited.p99_ms:.2f} ms, "
            f"back after {'no time' if limited.back_s is None else f'{limited.back_s:.0f} s'}, "
            f"agent {without.agent_percent:.2f} → {limited.agent_percent:.2f} % of a core"
        )
    method = (
        f"a file of {SET_MIB} MiB at random, a flood beside it; node of {_NODE_BYTES // MIB} MiB; {_SECONDS:g} s each, "
        f"{_WARM_S:g} s after the first refaults, and with limits so long after the file is back"
    )
    for made, what in ((windows[False], "without limits"), (windows[True], "with limits")):
        a_second, a_request = [each.refaults_per_s for each in made], [each.refaults_per_request for each in made]
        report.add(figure(f"refaults of a latency-sensitive pod {what}", "/s", a_second, method))
        report.add(figure(f"the same in one of its requests {what}", "pages", a_request, method))
        report.add(figure(f"p99 of its requests {what}", "ms", [each.p99_ms for each in made], method))
        cpu = [each.agent_percent for each in made]
        report.add(figure(f"the agent {what}", "%core", cpu, "utime + stime, in all of that time"))
    back = [each.back_s for each in windows[True] if each.back_s is not None]
    if back:
        report.add(figure("first refaults until its file is back", "s", back, "98 % of it, and hardly any refaults"))
    within = f"within {_WITHIN_S:g} s of the first request"
    report.add(at_least("pairs in which its file is back", "%", 100 * len(back) / pairs, 100, within))
    # A window without any refault counts as one with a page.
    ratios = [
        max(limited.refaults_per_s, 1 / _SECONDS) / max(without.refaults_per_s, 1e-9)
        for without, limited in zip(*windows.values(), strict=True)
    ]
    row = at_most("refaults with limits, share of those without", "", percentile(ratios, 0.5), 1 / _FEWER, _MEDIAN)
    report.add(replace(row, n=len(ratios), p99=percentile(ratios, 0.99), worst=max(ratios)))


def _window(report: Report, node: PageCacheNode, folder: Path, *, is_limited: bool) -> Window:
    node.empty()
    with LiveAgent(folder, *node.arguments(is_on=is_limited), "--enforce", keeps_frames=False) as agent:
        agent.becomes_ready()
        before, began = cpu_s(agent.process.pid), time.monotonic()
        with Seconds(node) as seconds:

            def is_warm(began_s: float) -> bool:
                seen = tuple(seconds.seen)
                since_s = (back_at_s if is_limited else harmed_at_s)(seen, began_s, _PER_S)
                return since_s is not None and time.monotonic() > since_s + _WARM_S

            felt = node.felt(_SECONDS, _WITHIN_S, is_warm)
        percent = (cpu_s(agent.process.pid) - before) / (time.monotonic() - began) * 100
        agent.stop()
    harmed_s = harmed_at_s(seconds.seen, felt.began_s, _PER_S)
    back_s = back_at_s(seconds.seen, felt.began_s, _PER_S)
    for line in lines(seconds.seen, felt.began_s):
        report.say(line)
    return Window(
        felt.refaults / _SECONDS,
        felt.refaults / len(felt.took_ms),
        percentile(felt.took_ms, 0.99),
        percent,
        max(back_s - (harmed_s or back_s), 0) if back_s is not None else None,
    )


def _looks(report: Report, cgroup: NodeCgroup) -> None:
    for number in range(110):
        cgroup.add_pod(f"pod-{number}", be=number % 2 == 0)
    hierarchy = find_memory_hierarchy()
    pods = tuple(msgspec.convert(each, Pod) for each in cgroup.pods)
    index, known = CgroupIndex(), ClusterView()
    index.replace_all(list(walk(cgroup.path, hierarchy.mount_point)))
    index.set_pods(pods)
    known.learn(ClusterState(1, 1, pods=pods))
    took: dict[bool, list[float]] = {}
    n = 100 if report.quick else 1000
    with contextlib.closing(PageCacheCollector(index, known, hierarchy, 1 << 40)) as collector:
        for is_active in (True, False):
            took[is_active] = []
            for second in range(n):
                collector.is_active = is_active
                began = time.perf_counter_ns()
                found = collector.measure((len(took) * 10 * n + second) * NS_PER_S)
                took[is_active].append((time.perf_counter_ns() - began) / 1e6)
                if (found is not None and len(found.pods) == 55) is not is_active:
                    raise RuntimeError(f"a look found {found}")
    report.add(figure("page cache, a look at 110 pods", "ms", took[True], "each second while a pod refaults"))
    report.add(figure("page cache, a look while none refaults", "ms", took[False], "/proc/vmstat alone"))
