"""Taints of Katalyst's conditions on a Node and on a CustomNodeResource: whose they are, and what is sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from koordebpf.errors import KubeConflict, KubeError, KubeGone
from koordebpf.kube.cache.cnr import CNR_PATH
from koordebpf.kube.clients.cnr_taints import MANAGER, OWNED, CnrTaints
from koordebpf.kube.http.transport import open_cluster
from koordebpf.strategies.katalyst.taints import KatalystTaints
from tests.contract.apiserver import Exchange, Server, gives, status
from tests.contract.node_store import OTHERS, NodeStore

PREFIX = "node.katalyst.kubewharf.io/"
LEVEL = "reclaimed_cores"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
WRITTEN = "2026-01-02T03:04:05Z"
MEMORY, DISK = f"{PREFIX}Memory", f"{PREFIX}Disk"
# Another component's, with Katalyst's prefix.
FOREIGN = {"key": f"{PREFIX}Foreign", "effect": "NoSchedule", "qosLevel": LEVEL}


class CnrStore:
    """One CustomNodeResource that takes server-side apply, its list of taints as one value."""

    def __init__(self, server: Server) -> None:
        self.annotations: dict[str, str] = {}
        self.taints: list[dict[str, Any]] = [FOREIGN]
        self.version = 7
        self.patches: list[Any] = []
        self.after_a_read: Callable[[], None] = lambda: None
        server.on(f"{CNR_PATH}/n1", self.answer)

    def answer(self, exchange: Exchange) -> None:
        if exchange.request.method == "PATCH":
            assert exchange.request.headers["content-type"] == "application/apply-patch+yaml"
            assert exchange.request.query["fieldManager"] == MANAGER
            change = json.loads(exchange.request.body)
            metadata = change["metadata"]
            if (metadata["uid"], metadata["resourceVersion"]) != ("uid-n1", str(self.version)):
                return exchange.answer(409, status(409, "Conflict", "the object has been modified"))
            self.version += 1
            self.patches.append(change)
            self.annotations, self.taints = metadata.get("annotations", {}), change["spec"]["taints"]
        metadata = {"name": "n1", "uid": "uid-n1", "resourceVersion": str(self.version)}
        exchange.answer(
            200, {"metadata": {**metadata, "annotations": self.annotations}, "spec": {"taints": self.taints}}
        )
        return self.after_a_read() if exchange.request.method == "GET" else None


class OfNode:
    """The rig of a Node: a taint is key and effect."""

    others = (*OTHERS, FOREIGN)

    def __init__(self, server: Server, kubeconfig: Path) -> None:
        self.store = NodeStore(server)
        self.store.taints.append(dict(FOREIGN))
        self.client = KatalystTaints(open_cluster(kubeconfig), "n1", PREFIX)

    def set_to(self, *wanted: str) -> bool:
        return self.client.set_to({(each, "NoSchedule") for each in wanted}, timeout_s=20.0)

    def entry(self, key: str) -> dict[str, str]:
        return {"key": key, "effect": "NoSchedule"}

    def text(self, *keys: str) -> str:
        return ",".join(f"{key}:NoSchedule" for key in keys)

    @property
    def annotations(self) -> dict[str, str]:
        return self.store.node["metadata"].setdefault("annotations", {})


class OfCnr:
    """The rig of a CustomNodeResource: a taint has a QoS level, too."""

    others = (FOREIGN,)

    def __init__(self, server: Server, kubeconfig: Path) -> None:
        self.store = CnrStore(server)
        self.client = CnrTaints(open_cluster(kubeconfig), "n1", PREFIX)

    def set_to(self, *wanted: str) -> bool:
        return self.client.set_to({(each, "NoSchedule", LEVEL) for each in wanted}, at=AT, timeout_s=20.0)

    def entry(self, key: str) -> dict[str, str]:
        return {"key": key, "effect": "NoSchedule", "timeAdded": WRITTEN, "qosLevel": LEVEL}

    def text(self, *keys: str) -> str:
        return ",".join(f"{key}:NoSchedule:{LEVEL}" for key in keys)

    @property
    def annotations(self) -> dict[str, str]:
        return self.store.annotations


Rig = OfNode | OfCnr


@pytest.fixture(params=[OfNode, OfCnr])
def rig(request: pytest.FixtureRequest, server: Server, kubeconfig: Path) -> Iterator[Rig]:
    made = request.param(server, kubeconfig)
    yield made
    made.client.close()


def test_they_come_and_go_beside_those_of_others_and_the_annotation_names_them(rig: Rig) -> None:
    assert rig.set_to(MEMORY, DISK)
    assert rig.store.taints == [*rig.others, rig.entry(DISK), rig.entry(MEMORY)]
    assert rig.annotations == {OWNED: rig.text(DISK, MEMORY)}
    sent = len(rig.store.patches)
    assert not rig.set_to(MEMORY, DISK)
    assert len(rig.store.patches) == sent
    assert rig.set_to(DISK)
    assert rig.store.taints == [*rig.others, rig.entry(DISK)]
    assert rig.annotations == {OWNED: rig.text(DISK)}
    assert rig.set_to()
    assert (rig.store.taints, rig.annotations) == ([*rig.others], {})
    sent = len(rig.store.patches)
    assert not rig.set_to()
    assert len(rig.store.patches) == sent


def test_what_another_component_has_set_is_never_taken_over(rig: Rig) -> None:
    assert not rig.set_to(FOREIGN["key"])
    assert rig.set_to(FOREIGN["key"], MEMORY)
    assert rig.annotations == {OWNED: rig.text(MEMORY)}
    assert rig.set_to()
    assert rig.store.taints == [*rig.others]


def test_what_an_agent_left_that_was_killed_is_taken_away_with_what_is_new(rig: Rig) -> None:
    rig.set_to(MEMORY)
    assert rig.set_to(DISK)
    assert rig.store.taints == [*rig.others, rig.entry(DISK)]


def test_one_that_another_took_away_is_set_again_and_no_longer_named_where_it_is_not_wanted(rig: Rig) -> None:
    rig.set_to(MEMORY, DISK)
    del rig.store.taints[-1]  # MEMORY
    assert rig.set_to(MEMORY, DISK)
    assert rig.store.taints == [*rig.others, rig.entry(DISK), rig.entry(MEMORY)]
    del rig.store.taints[-1]
    assert rig.set_to(DISK)
    assert rig.annotations == {OWNED: rig.text(DISK)}


@pytest.mark.parametrize(
    "text", ["::", "team:NoSchedule", "team:NoSchedule:", f"{PREFIX}Foreign", f"x{PREFIX}Foreign:"]
)
def test_an_annotation_that_others_wrote_takes_no_taint_away(rig: Rig, text: str) -> None:
    rig.annotations[OWNED] = text
    rig.set_to()
    assert rig.store.taints == [*rig.others]


def test_one_that_another_adds_meanwhile_is_not_lost(rig: Rig) -> None:
    def another_writes() -> None:
        rig.store.after_a_read = lambda: None
        rig.store.taints.append({"key": "team", "effect": "NoSchedule"})
        rig.store.touch() if isinstance(rig.store, NodeStore) else setattr(rig.store, "version", 8)

    rig.store.after_a_read = another_writes
    with pytest.raises(KubeConflict):
        rig.set_to(MEMORY)
    assert rig.store.taints == [*rig.others, {"key": "team", "effect": "NoSchedule"}]


def test_a_taint_of_another_level_is_another_one(server: Server, kubeconfig: Path) -> None:
    rig = OfCnr(server, kubeconfig)
    other = {**FOREIGN, "key": MEMORY, "qosLevel": "shared_cores"}
    rig.store.taints = [other]
    assert rig.set_to(MEMORY)
    assert rig.store.taints == [other, rig.entry(MEMORY)]
    assert rig.set_to()
    assert rig.store.taints == [other]
    rig.client.close()


def test_where_there_is_no_object_there_is_nothing_to_remove(server: Server, kubeconfig: Path) -> None:
    client = CnrTaints(open_cluster(kubeconfig), "n1", PREFIX)
    assert not client.set_to((), at=AT, timeout_s=20.0)
    with pytest.raises(KubeGone):
        client.set_to({(MEMORY, "NoSchedule", LEVEL)}, at=AT, timeout_s=20.0)
    client.close()


def test_one_without_a_spec_gets_its_first_taint(server: Server, kubeconfig: Path) -> None:
    bare = {"metadata": {"uid": "uid-n1", "resourceVersion": "7"}}
    server.on(f"{CNR_PATH}/n1", gives(200, bare))
    client = CnrTaints(open_cluster(kubeconfig), "n1", PREFIX)
    assert not client.set_to((), at=AT, timeout_s=20.0)
    assert client.set_to({(MEMORY, "NoSchedule", LEVEL)}, at=AT, timeout_s=20.0)
    client.close()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"spec": {}}', b'{"metadata": {"uid": 7, "resourceVersion": "7"}}'])
def test_an_answer_that_is_no_such_object_is_refused(body: bytes, server: Server, kubeconfig: Path) -> None:
    server.on(f"{CNR_PATH}/n1", gives(200, body))
    client = CnrTaints(open_cluster(kubeconfig), "n1", PREFIX)
    with pytest.raises(KubeError, match="the answer is not a CustomNodeResource"):
        client.set_to((), at=AT, timeout_s=20.0)
    client.close()
