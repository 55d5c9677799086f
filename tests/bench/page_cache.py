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
from koordebpf.collect.cluster_view import Known
from koordebpf.collect.memory.page_cache import PageCacheCollector
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy, walk
from koordebpf.kube.cache.objects import ClusterState, Pod
from koordebpf.units import NS_PER_S
from tests.bench.figure import at_most, figure, percentile
from tests.bench.report import CannotMeasure, Report
from tests.bench.steady import cpu_s
from tests.host.live_agent import LiveAgent
from tests.host.page_cache_node import NODE_BYTES, SET_MIB, PageCacheNode
from tests.support.nodes import MIB, NodeCgroup

_SECONDS, _WARM_S = 3.0, 3.0
_LIMITED_WARM_S = float(os.environ.get("KOORDEBPF_WARM_S", "12"))  # for its own pages to come back
_FEWER = 5  # times
_MEDIAN = "median, 99th percentile and worst of the pairs; the median counts"


def page_cache(report: Report) -> None:
    """Take pairs of windows, with the gate off and on; then time looks at 110 pods."""
    pairs = 5 if report.quick else 20
    hierarchy = find_memory_hierarchy()
    try:
        with (
            tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
            NodeCgroup(hierarchy.mount_point, hierarchy.version, NODE_BYTES) as cgroup,
        ):
            _felt(report, PageCacheNode(cgroup, Path(folder)), Path(folder), pairs)
        with NodeCgroup(hierarchy.mount_point, hierarchy.version, 512 * MIB) as cgroup:
            _looks(report, cgroup)
    except (SupportError, OSError) as error:
        raise CannotMeasure(f"needs a memory hierarchy that can be written: {error}") from None


def _felt(report: Report, node: PageCacheNode, folder: Path, pairs: int) -> None:
    p99, refaults, cpu = ({False: list[float](), True: list[float]()} for _ in range(3))
    for _ in range(pairs):
        for is_limited in (False, True):
            with LiveAgent(folder, *node.arguments(is_on=is_limited), "--enforce", keeps_frames=False) as agent:
                agent.becomes_ready()
                before, began = cpu_s(agent.process.pid), time.monotonic()
                felt = node.felt(_SECONDS, _LIMITED_WARM_S if is_limited else _WARM_S)
                cpu[is_limited].append((cpu_s(agent.process.pid) - before) / (time.monotonic() - began) * 100)
                agent.stop()
            p99[is_limited].append(percentile(felt.took_ms, 0.99))
            refaults[is_limited].append(felt.refaults / _SECONDS)
        report.say(
            f"refaults a second {refaults[False][-1]:.0f} → {refaults[True][-1]:.0f}, "
            f"p99 {p99[False][-1]:.2f} → {p99[True][-1]:.2f} ms, "
            f"agent {cpu[False][-1]:.2f} → {cpu[True][-1]:.2f} % of a core"
        )
    method = (
        f"a file of {SET_MIB} MiB at random, a flood beside it; node of {NODE_BYTES // MIB} MiB; {_SECONDS:g} s each"
    )
    for is_limited, what in ((False, "without limits"), (True, "with limits")):
        report.add(figure(f"refaults of a latency-sensitive pod {what}", "/s", refaults[is_limited], method))
        report.add(figure(f"p99 of its requests {what}", "ms", p99[is_limited], method))
        report.add(figure(f"the agent {what}", "%core", cpu[is_limited], "utime + stime, in all of that time"))
    # A window without any refault counts as one with a page.
    ratios = [max(after, 1 / _SECONDS) / max(before, 1e-9) for before, after in zip(*refaults.values(), strict=True)]
    row = at_most("refaults with limits, share of those without", "", percentile(ratios, 0.5), 1 / _FEWER, _MEDIAN)
    report.add(replace(row, n=len(ratios), p99=percentile(ratios, 0.99), worst=max(ratios)))


def _looks(report: Report, cgroup: NodeCgroup) -> None:
    for number in range(110):
        cgroup.add_pod(f"pod-{number}", be=number % 2 == 0)
    hierarchy = find_memory_hierarchy()
    pods = tuple(msgspec.convert(each, Pod) for each in cgroup.pods)
    index, known = CgroupIndex(), Known()
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
