"""A thousand cgroups created and removed a second: whether the index is right at the end, and what keeping it costs."""

from __future__ import annotations

import time
from pathlib import Path

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.errors import SupportError
from koordebpf.kernel.backends.select import WantedBackend
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy, walk
from koordebpf.kernel.io.loop import Loop
from koordebpf.units import MIB, NS_PER_MS, NS_PER_S, PAGE_BYTES
from tests.bench.figure import at_most
from tests.bench.nodes import full_node
from tests.bench.report import Report
from tests.support.loads.churn import Churn

_PER_S = 1000
_REST_NS = 10 * NS_PER_MS  # as the agent takes its records
_SETTLE_S = 5
_MAX_GROWTH_MIB = 32
_BACKENDS: tuple[WantedBackend, ...] = ("co-re", "bcc", "files")


def cgroup_churn(report: Report) -> None:
    """Let cgroups come and go beside 110 pods, once for each backend that works here."""
    seconds = 3 if report.quick else 30
    for backend in _BACKENDS:
        with full_node() as node:
            try:
                _one(report, backend, node.cgroup.path, seconds)
            except SupportError as error:
                report.cannot(f"cgroup churn with {backend}: {error}")


def _one(report: Report, backend: WantedBackend, node: Path, seconds: int) -> None:
    scope = open_scope(find_memory_hierarchy(), node)
    with NodeWatch(scope, None, 1 << 62, measures=False, backend=backend) as watch, Loop() as loop:
        if (fd := watch.signals.fileno()) is not None:
            loop.watch(fd, lambda: None, rest_ns=_REST_NS)
        before, worst, cpu_s = _rss_mib(), 0.0, time.process_time()
        churn = Churn(node, _PER_S, seconds)
        while not churn.is_over():
            loop.wait(time.monotonic_ns() + NS_PER_S)
            watch.drain()
            worst = max(worst, _rss_mib() - before)
        percent = (time.process_time() - cpu_s) / seconds * 100
        rate = churn.rate()
        wrong = _wrong(watch, scope.path)
        until = time.monotonic() + _SETTLE_S
        while wrong and time.monotonic() < until:
            time.sleep(0.1)
            watch.drain()
            wrong = _wrong(watch, scope.path)
        totals = watch.totals()
        method = f"{rate:.0f} cgroups created and removed a second for {seconds} s beside 110 pods"
        report.add(at_most(f"churn, {backend}: wrong in the index", "cgroups", wrong, 0, f"{method}; against a walk"))
        report.add(at_most(f"churn, {backend}: RSS growth, worst", "MiB", worst, _MAX_GROWTH_MIB, method))
        report.add(at_most(f"churn, {backend}: CPU", "%core", percent, None, method))
        report.add(at_most(f"churn, {backend}: rescans", "", watch.rescans, None, f"{method}; after lost records"))
        if totals:
            report.add(at_most(f"churn, {backend}: creations counted", "", totals.births, None, method))


def _wrong(watch: NodeWatch, root: Path) -> int:
    watch.drain()
    return len({each for each, _, _ in walk(root)} ^ set(watch.index))


def _rss_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / MIB
