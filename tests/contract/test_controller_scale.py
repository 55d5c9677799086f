"""Five hundred nodes: what is asked of the API server, and what is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.apiserver import Server, until
from tests.contract.controller_rig import Rig, at_50, threshold
from tests.contract.objectstore import CONFIGMAPS, NODES, NODESLOS, Store, config_map, node

NODES_COUNT = 500
AT_70 = {"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": 70}}


@pytest.fixture
def store(server: Server) -> Store:
    store = Store(server)
    for number in range(NODES_COUNT):
        store.put(NODES, node(f"n{number}", pool=f"p{number % 10}"))
    store.put(CONFIGMAPS, config_map(resource_threshold_config=AT_70))
    return store


@pytest.fixture
def rig(kubeconfig: Path, store: Store) -> Iterator[Rig]:
    rig = Rig(kubeconfig, adopt=False, dry_run=False)
    yield rig
    rig.close()


def test_each_node_costs_one_write_and_none_afterwards(store: Store, rig: Rig) -> None:
    rig.settle()
    assert len(store.writes()) == NODES_COUNT
    assert len(store.objects[NODESLOS]) == NODES_COUNT
    # Three lists, three watches, and nothing that grows with the nodes.
    assert sum(request.method == "GET" for request in store.server.requests) == 6

    # Every node's heartbeat, an edit without a change, and a label that no selector uses.
    for number in range(NODES_COUNT):
        store.put(NODES, node(f"n{number}", pool=f"p{number % 10}") | {"status": {"capacity": {"memory": "15Gi"}}})
    store.put(CONFIGMAPS, config_map(resource_threshold_config=AT_70 | {"nodeStrategies": []}))
    store.put(NODES, node("n0", pool="p0", other="x"))
    rig.until(lambda: any((n.labels or {}).get("other") for n in rig.source.state().nodes), "the label")
    rig.settle()
    assert len(store.writes()) == NODES_COUNT


def test_an_edit_for_a_tenth_of_them_writes_a_tenth(store: Store, rig: Rig) -> None:
    rig.settle()
    store.put(CONFIGMAPS, config_map(resource_threshold_config=AT_70 | at_50(pool="p3")))
    rig.until(lambda: threshold(store, "n493") == 50, "the edit")
    rig.settle()
    changed = [name for name in store.objects[NODESLOS] if threshold(store, name) == 50]
    assert len(changed) == NODES_COUNT // 10
    assert len(store.writes()) == NODES_COUNT + len(changed)


def test_watches_that_expire_in_the_middle_cost_no_write_twice(store: Store, rig: Rig) -> None:
    stop = threading.Event()

    def cut() -> None:  # again only after it wrote: however slow this machine is, each list comes to its end
        written = -1
        while not stop.wait(0.05):
            if (now := len(store.objects[NODESLOS])) > written:
                written = now
                store.end_watches(forget=True)

    cutting = threading.Thread(target=cut)
    cutting.start()
    try:
        until(lambda: (rig.wait(0.01), rig.controller.tick(), len(store.objects[NODESLOS]) == NODES_COUNT)[2], "all")
    finally:
        stop.set()
        cutting.join()
    rig.settle()
    assert len(store.writes()) == NODES_COUNT
