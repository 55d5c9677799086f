"""Suppression on large machines: which CPUs of 512, and a whole round for 110 pods in 330 containers."""

from __future__ import annotations

from functools import partial

from koordebpf.strategies.cpu_suppress.choose import choose_cpus
from koordebpf.strategies.cpu_suppress.plan import plan_suppress
from koordebpf.strategies.cpu_suppress.values import SuppressState
from tests.bench.figure import figure
from tests.bench.report import Report
from tests.bench.timing import times_ms
from tests.support.values.cpu_nodes import be_tree, node
from tests.support.values.machines import machine

_PODS, _CONTAINERS = 110, 3
_STATE = SuppressState(cpuset="using", quota="recovered")


def suppress(report: Report) -> None:
    """Choose for many counts, then decide again and again for one view where nothing changes."""
    n = 100 if report.quick else 500
    large = machine(sockets=8, nodes=2, cores=16, threads=2)
    counts = range(2, 513, 5)
    samples = [sample for count in counts for sample in times_ms(partial(choose_cpus, large.online, count), n // 50)]
    method = f"choose_cpus, 8 sockets, 16 NUMA nodes, 2 threads; {len(counts)} counts from 2 to 512"
    report.add(figure("CPU choice for 512 CPUs", "ms", samples, method, reach_p99=5))
    for cpus, topology in ((512, large), (64, machine(sockets=2, cores=16, threads=2))):
        tree = be_tree(range(cpus * 65 // 100), pods=_PODS, containers=_CONTAINERS)
        used = {f"ls-{index}": 10 for index in range(_PODS)}
        view = node(topology, be_cgroups=tree, node_used=1100, used=used)
        wanted = len(plan_suppress(view, _STATE).desired.writes)
        method = f"plan_suppress, {_PODS} pods, {_PODS * _CONTAINERS} containers, {wanted} files wanted"
        report.add(
            figure(
                f"a round of suppression, {cpus} CPUs", "ms", times_ms(partial(plan_suppress, view, _STATE), n), method
            )
        )
