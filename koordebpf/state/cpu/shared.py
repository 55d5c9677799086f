"""Which CPUs pods share on a node, by what is known of its pods and annotations. Pure."""

from __future__ import annotations

from koordebpf.slo.pods.share_pools import BoundPod, SharePools, share_pools
from koordebpf.state.cpu.measured import CpuPlacement, CpuTopology


def shared_cpus(topology: CpuTopology, placement: CpuPlacement) -> SharePools:
    """Return the share pools of the CPUs that are online."""
    bound = (BoundPod(owner.koord_qos, owner.cpus, owner.by_kubelet) for owner in placement.owners)
    return share_pools(topology.online, bound, placement.reserved_cpus, placement.system_cpus)
