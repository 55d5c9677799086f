"""A node, its pods and its report, as the tests of batch resources take them. Amounts are cores and GiB."""

from __future__ import annotations

from koordebpf.policy.batch.facts import CpuMemory, HostApplicationUse, NodeFacts, PodRequest, PodUse, Usage
from koordebpf.slo.manager.node_colocation import NodeColocation
from koordebpf.units import NS_PER_S

GIB = 1024**3
MINUTE_NS = 60 * NS_PER_S
NOW_NS = 1_800_000_000 * NS_PER_S
ON = NodeColocation(enable=True)


def both(cores: float = 0, gib: float = 0) -> CpuMemory:
    return CpuMemory(int(cores * 1000), int(gib * GIB))


def pod(name: str, cores: float, gib: float, band: str = "koord-prod", **more: object) -> PodRequest:
    return PodRequest(
        f"d/{name}", band, bool(more.get("lse")), int(cores * 1000), int(gib * GIB), more.get("zones", ())
    )


def use(name: str, cores: float, gib: float, band: str = "koord-prod") -> PodUse:
    return PodUse(f"d/{name}", band, int(cores * 1000), int(gib * GIB))


def application(name: str, cores: float, gib: float, band: str = "koord-prod") -> HostApplicationUse:
    return HostApplicationUse(name, band, int(cores * 1000), int(gib * GIB))


def usage(*pods: PodUse, **more: object) -> Usage:
    return Usage(updated_ns=more.pop("updated_ns", NOW_NS - MINUTE_NS), pods=pods, **more)


# 100 cores and 400 GiB, of which kubelet keeps 2 cores and 4 GiB.
NODE = NodeFacts("n1", both(100, 400), both(98, 396))
