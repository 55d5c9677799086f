"""Which CPUs pods share, by Koordinator's rule."""

from __future__ import annotations

from koordebpf.kernel.proc.cpu_topology import Cpu
from koordebpf.slo.pods.cpu_placement import BoundPod, SharePool, SharePools, share_pools

# Two sockets of one NUMA node each, four CPUs a node, two threads a core.
ONLINE = tuple(Cpu(cpu, cpu - cpu % 2, cpu // 4, cpu // 4) for cpu in range(8))


def pools(*bound: BoundPod, reserved: tuple[int, ...] = (), system: tuple[int, ...] = ()) -> SharePools:
    return share_pools(ONLINE, bound, reserved, system)


def test_where_no_pod_is_bound_all_share_everything() -> None:
    everything = (SharePool(0, 0, (0, 1, 2, 3)), SharePool(1, 1, (4, 5, 6, 7)))
    assert pools() == SharePools(everything, everything)


def test_be_pods_share_the_cpus_of_lsr_pods_and_not_those_of_lse_pods() -> None:
    found = pools(BoundPod("LSR", (0, 1)), BoundPod("LSE", (4, 5)))
    assert found.ls == (SharePool(0, 0, (2, 3)), SharePool(1, 1, (6, 7)))
    assert found.be == (SharePool(0, 0, (0, 1, 2, 3)), SharePool(1, 1, (6, 7)))
    assert (found.ls_cpus, found.be_cpus) == ((2, 3, 6, 7), (0, 1, 2, 3, 6, 7))


def test_a_pod_without_a_class_that_the_scheduler_bound_leaves_its_cpus_to_be_pods() -> None:
    found = pools(BoundPod("", (0,)))
    assert (found.ls_cpus, found.be_cpus) == ((1, 2, 3, 4, 5, 6, 7), tuple(range(8)))


def test_what_kubelet_bound_is_in_no_pool() -> None:
    found = pools(BoundPod("", (2, 3), by_kubelet=True))
    assert found.ls_cpus == found.be_cpus == (0, 1, 4, 5, 6, 7)


def test_reserved_and_system_cpus_are_in_no_pool() -> None:
    found = pools(reserved=(0,), system=(7,))
    assert found.ls_cpus == found.be_cpus == (1, 2, 3, 4, 5, 6)


def test_a_numa_node_without_shared_cpus_has_no_pool() -> None:
    found = pools(BoundPod("LSE", (4, 5, 6, 7)))
    assert found.ls == found.be == (SharePool(0, 0, (0, 1, 2, 3)),)


def test_cpus_that_are_not_online_are_in_no_pool_and_change_no_other() -> None:
    assert pools(BoundPod("LSE", (64, 65)), reserved=(99,)) == pools()


def test_pools_come_by_socket_and_then_by_numa_node() -> None:
    # Node 0 is on socket 1, as firmware may number them.
    online = (Cpu(0, 0, 1, 0), Cpu(1, 1, 0, 1), Cpu(2, 2, 0, 2))
    assert [(each.socket, each.numa_node) for each in share_pools(online, ()).ls] == [(0, 1), (0, 2), (1, 0)]
