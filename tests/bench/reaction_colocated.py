"""Whether the agent decides as soon as before while it also does what koordlet does: in turn with it and without."""

from __future__ import annotations

from pathlib import Path

from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from tests.bench.burst import bursts
from tests.bench.contenders import THRESHOLD_PERCENT, Koordebpf
from tests.bench.figure import figure
from tests.bench.nodes import FullNode, full_node
from tests.bench.reaction import series, warm
from tests.bench.report import CannotMeasure, Report
from tests.bench.steady_colocated import COLOCATED
from tests.host.burst_node import BurstNode
from tests.support.agent_process import AgentProcess
from tests.support.nodes import MIB, NodeCgroup

_BLOCKS = 3  # of each in turn, so that a machine that gets busier favours none
_RATE_MIB_S = 1024
_WAYS = {"all of it off": (), "in koordlet's place": COLOCATED}


class _Colocated(Koordebpf):
    name = "koordebpf in koordlet's place"

    def start(self, folder: Path) -> AgentProcess:
        manifest = self.node.cgroup.write_manifest(folder / "pods.json", THRESHOLD_PERCENT, THRESHOLD_PERCENT - 5)
        return AgentProcess(self.node.cgroup, manifest, *COLOCATED, audit=folder / "audit.jsonl")


def reaction_colocated(report: Report) -> None:
    """Burst memory on a node of 110 pods, and CPU on one of two."""
    with full_node() as node:
        warm(node)
        _evictions(report, node)
    _suppressions(report)


def _evictions(report: Report, node: FullNode) -> None:
    n = 2 if report.quick else 10
    samples: dict[str, list[float]] = {}
    for _ in range(_BLOCKS):
        for kind in (Koordebpf, _Colocated):
            with kind(node) as contender:
                samples.setdefault(kind.name, []).extend(series(report, contender, _RATE_MIB_S, n))
    for name, found in samples.items():
        report.add(figure(f"crossed → decision sent at 1 GiB/s, {name}", "ms", found, "110 pods / 330 containers"))


def _suppressions(report: Report) -> None:
    n = 2 if report.quick else 10
    hierarchy = find_memory_hierarchy()
    samples: dict[str, list[float]] = {way: [] for way in _WAYS}
    try:
        with NodeCgroup(hierarchy.mount_point, hierarchy.version, 1024 * MIB) as cgroup:
            node = BurstNode(cgroup)
            try:
                weight = node.outweigh()
                for _ in range(_BLOCKS):
                    for way, more in _WAYS.items():
                        samples[way] += bursts(node, {}, n, *more)
            finally:
                node.close()
    except (KeyError, OSError) as error:
        raise CannotMeasure(f"no cpu hierarchy that can be written: {error}") from None
    for way, found in samples.items():
        method = f"default wake; from telling a sleeper to work to the quota's write; {weight}"
        report.add(figure(f"LS burst → BE held, {way}", "ms", found, method))
