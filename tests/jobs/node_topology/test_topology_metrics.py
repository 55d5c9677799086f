"""What is shown of the NodeResourceTopology of a node, and koordlet's names of what it and the Node say."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from koordebpf.jobs.node_topology.run import allocatable_families, pool_families
from koordebpf.slo.pods.cpu_placement import SharePool, SharePools

POOLS = SharePools(ls=(SharePool(0, 0, (1, 2)), SharePool(1, 1, (5,))), be=(SharePool(0, 0, (0, 1, 2)),))
ALLOCATABLE = {"cpu": "8", "kubernetes.io/batch-cpu": "2k", "kubernetes.io/mid-memory": "1Gi"}


def shown(families: Iterable[Metric]) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {family.name: [(each.labels, each.value) for each in family.samples] for family in families}


def test_share_pools_are_counted_over_all_numa_nodes() -> None:
    assert shown(pool_families("n1", POOLS)) == {
        "koordlet_cpuset_share_pool_cpu_cores": [({"node": "n1"}, 3)],
        "koordlet_cpuset_be_share_pool_cpu_cores": [({"node": "n1"}, 3)],
    }


def test_batch_and_mid_resources_are_those_that_the_node_has() -> None:
    batch = {"node": "n1", "resource": "kubernetes.io/batch-cpu", "unit": "integer"}
    mid = {"node": "n1", "resource": "kubernetes.io/mid-memory", "unit": "byte"}
    assert shown(allocatable_families("n1", ALLOCATABLE)) == {
        "koordlet_node_resource_allocatable": [(batch, 2000), (mid, 1 << 30)]
    }
    assert shown(allocatable_families("n1", {"cpu": "8", "kubernetes.io/batch-cpu": "much"})) == {}
