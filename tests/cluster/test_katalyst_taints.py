"""Taints of Katalyst's conditions on a real API server: others stay, and what an agent left is taken away."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.errors import KubeConflict, KubeDenied, KubeError
from koordebpf.kube.http.transport import open_cluster
from koordebpf.slo.katalyst import TAINT_PREFIX
from koordebpf.strategies.katalyst.taints import OWNED, KatalystTaints, Taint, Tainter
from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import BASE, documents, node
from tests.contract.apiserver import until

TIMEOUT_S = 5.0
RIGHTS = BASE.parent / "components/katalyst/rbac.yaml"
MEMORY, DISK = f"{TAINT_PREFIX}MemoryPressure", f"{TAINT_PREFIX}Disk"
# Another component's, with Katalyst's prefix.
FOREIGN = {"key": f"{TAINT_PREFIX}Foreign", "value": "a", "effect": "NoSchedule"}

Taints = Callable[[], KatalystTaints]


@pytest.fixture
def a_node(cluster: ControlPlane, namespace: str) -> Iterator[Object]:
    made = cluster.api.create(node(f"{namespace}-node"))
    yield cluster.api.patch(made, {"spec": {"taints": [FOREIGN]}})
    cluster.api.delete(made)


@pytest.fixture
def taints(cluster: ControlPlane, a_node: Object) -> Iterator[Taints]:
    opened: list[KatalystTaints] = []

    def make() -> KatalystTaints:
        opened.append(KatalystTaints(open_cluster(cluster.admin_kubeconfig), a_node["metadata"]["name"], TAINT_PREFIX))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def seen(cluster: ControlPlane, one: Object) -> tuple[set[tuple[str, str]], str | None]:
    found: Any = cluster.api.get(one)
    taints = {(each["key"], each["effect"]) for each in found["spec"].get("taints", ())}
    annotations = found["metadata"].get("annotations", {})
    return {each for each in taints if each[0].startswith(TAINT_PREFIX)}, annotations.get(OWNED)


def set_to(mine: KatalystTaints, wanted: Collection[Taint]) -> bool:
    """As the agent does: the control plane writes a new Node, too, and then it is asked once more."""
    while True:
        with contextlib.suppress(KubeConflict):
            return mine.set_to(wanted, timeout_s=TIMEOUT_S)


FOREIGN_ALONE = {(FOREIGN["key"], "NoSchedule")}


def test_they_come_and_go_and_foreign_ones_stay(cluster: ControlPlane, a_node: Object, taints: Taints) -> None:
    mine = taints()
    assert set_to(mine, {(MEMORY, "NoSchedule"), (DISK, "NoExecute")})
    assert seen(cluster, a_node)[0] == FOREIGN_ALONE | {(MEMORY, "NoSchedule"), (DISK, "NoExecute")}
    assert not set_to(mine, {(MEMORY, "NoSchedule"), (DISK, "NoExecute")})
    assert set_to(mine, {(DISK, "NoExecute")})
    assert seen(cluster, a_node) == (FOREIGN_ALONE | {(DISK, "NoExecute")}, f"{DISK}:NoExecute")
    assert set_to(mine, ())
    assert seen(cluster, a_node) == (FOREIGN_ALONE, None)


def test_what_another_component_has_set_is_not_taken_over(
    cluster: ControlPlane, a_node: Object, taints: Taints
) -> None:
    mine = taints()
    assert not set_to(mine, FOREIGN_ALONE)
    assert not set_to(mine, ())
    assert seen(cluster, a_node) == (FOREIGN_ALONE, None)


def test_the_next_agent_takes_away_what_one_that_was_killed_has_left(
    cluster: ControlPlane, a_node: Object, taints: Taints
) -> None:
    set_to(taints(), {(MEMORY, "NoSchedule")})
    tainter = Tainter(taints())
    try:
        until(lambda: seen(cluster, a_node) == (FOREIGN_ALONE, None), "the old taint is gone")
        tainter.wish(frozenset({(DISK, "PreferNoSchedule")}))
        until(lambda: (DISK, "PreferNoSchedule") in seen(cluster, a_node)[0], "the new taint is there")
    finally:
        tainter.close()
    assert seen(cluster, a_node) == (FOREIGN_ALONE, None)


@pytest.mark.parametrize("text", ["", "::", "team:NoSchedule", f"{TAINT_PREFIX}Foreign"])
def test_an_annotation_that_others_wrote_takes_no_taint_away(
    cluster: ControlPlane, a_node: Object, taints: Taints, text: str
) -> None:
    cluster.api.patch(a_node, {"metadata": {"annotations": {OWNED: text}}})
    set_to(taints(), ())
    assert seen(cluster, a_node)[0] == FOREIGN_ALONE


def test_without_the_right_it_says_which(agent_kubeconfig: Path, a_node: Object) -> None:
    mine = KatalystTaints(open_cluster(agent_kubeconfig), a_node["metadata"]["name"], TAINT_PREFIX)
    try:
        with pytest.raises(KubeDenied) as caught:
            set_to(mine, {(MEMORY, "NoSchedule")})
    finally:
        mine.close()
    assert caught.value.resource == "nodes"


def test_the_component_gives_that_right(cluster: ControlPlane, agent_kubeconfig: Path, a_node: Object) -> None:
    mine = KatalystTaints(open_cluster(agent_kubeconfig), a_node["metadata"]["name"], TAINT_PREFIX)
    wanted = {(MEMORY, "NoSchedule")}

    def is_allowed() -> bool:
        try:
            return mine.set_to(wanted, timeout_s=TIMEOUT_S)
        except KubeError:
            return False

    made = documents(RIGHTS)
    cluster.api.create(*made)
    try:
        until(is_allowed, "the right")
        assert seen(cluster, a_node) == (FOREIGN_ALONE | wanted, f"{MEMORY}:NoSchedule")
    finally:
        for one in made:
            cluster.api.delete(one)
        mine.close()
