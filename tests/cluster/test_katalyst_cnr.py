"""The CustomNodeResource on a real API server: it is read, and taints are applied to it beside those of others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from koordebpf.collect.cluster_view import ClusterView
from koordebpf.configuration.settings import AgentConfig
from koordebpf.errors import KubeConflict, KubeDenied, KubeError, KubeGone
from koordebpf.kube.cache.reflector import Pace
from koordebpf.kube.clients.cnr_taints import MANAGER, OWNED, CnrTaints
from koordebpf.kube.http.transport import open_cluster
from koordebpf.kube.sources.api import ApiSource, Wanted
from koordebpf.slo.katalyst import TAINT_PREFIX
from koordebpf.state.cnr import Cnr, CnrZone
from koordebpf.state.pods.requests import RECLAIMED_CPU, RECLAIMED_MEMORY
from koordebpf.strategies.katalyst.decide import KatalystDecision
from koordebpf.strategies.katalyst.requests import LastMet
from koordebpf.strategies.katalyst.rounds import ManagerState
from koordebpf.strategies.katalyst.run import KatalystEffects, open_tainters
from koordebpf.strategies.katalyst.settings import KatalystSettings
from koordebpf.strategies.katalyst.taints import CnrTainter
from koordebpf.strategies.katalyst.values import Condition
from koordebpf.units import GIB
from tests.cluster.api import Object
from tests.cluster.cnr import cnr, defined, definition
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import BASE, applied, node
from tests.contract.apiserver import until
from tests.support.patience import patience

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TIMEOUT_S = 5.0
RIGHTS = BASE.parent / "components/katalyst/rbac.yaml"
LEVEL = "reclaimed_cores"
MEMORY, DISK = (f"{TAINT_PREFIX}Memory", "NoSchedule", LEVEL), (f"{TAINT_PREFIX}Disk", "NoExecute", LEVEL)
# Another component's, with Katalyst's prefix.
FOREIGN = {"key": f"{TAINT_PREFIX}Foreign", "effect": "NoSchedule", "value": "a", "qosLevel": "shared_cores"}
FOREIGN_ALONE = {(FOREIGN["key"], "NoSchedule", "shared_cores")}

Taints = Callable[[], CnrTaints]


@pytest.fixture(scope="module")
def served(cluster: ControlPlane) -> Iterator[None]:
    with defined(cluster):
        yield


@pytest.fixture
def one(served: None, cluster: ControlPlane, namespace: str) -> Iterator[Object]:
    made = cluster.api.create(cnr(f"{namespace}-node", FOREIGN))
    yield made
    cluster.api.delete(made)


@pytest.fixture
def taints(cluster: ControlPlane, namespace: str) -> Iterator[Taints]:
    opened: list[CnrTaints] = []

    def make() -> CnrTaints:
        opened.append(CnrTaints(open_cluster(cluster.admin_kubeconfig), f"{namespace}-node", TAINT_PREFIX))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def entries(cluster: ControlPlane, one: Object) -> list[Object]:
    found: Any = cluster.api.get(one)
    return list(found.get("spec", {}).get("taints") or ())


def seen(cluster: ControlPlane, one: Object) -> tuple[set[tuple[str, str, str]], str | None]:
    found: Any = cluster.api.get(one)
    there = {(each["key"], each["effect"], each["qosLevel"]) for each in entries(cluster, one)}
    return there, found["metadata"].get("annotations", {}).get(OWNED)


def applied_fields(cluster: ControlPlane, one: Object) -> Any:
    """Return what belongs to the agent's field manager."""
    found: Any = cluster.api.get(one)
    managers = found["metadata"]["managedFields"]
    return [each["fieldsV1"] for each in managers if (each["manager"], each["operation"]) == (MANAGER, "Apply")]


def set_to(mine: CnrTaints, *wanted: tuple[str, str, str]) -> bool:
    return mine.set_to(set(wanted), at=AT, timeout_s=TIMEOUT_S)


def test_they_come_and_go_and_foreign_ones_stay(cluster: ControlPlane, one: Object, taints: Taints) -> None:
    mine = taints()
    assert set_to(mine, MEMORY, DISK)
    assert seen(cluster, one)[0] == {*FOREIGN_ALONE, MEMORY, DISK}
    assert FOREIGN in entries(cluster, one)
    added = next(each for each in entries(cluster, one) if each["key"] == MEMORY[0])
    assert added == {"key": MEMORY[0], "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z", "qosLevel": LEVEL}
    assert not set_to(mine, MEMORY, DISK)
    assert set_to(mine, DISK)
    assert seen(cluster, one) == ({*FOREIGN_ALONE, DISK}, ":".join(DISK))
    assert set_to(mine)
    assert seen(cluster, one) == (FOREIGN_ALONE, None)
    assert entries(cluster, one) == [FOREIGN]
    assert not set_to(mine)


def test_without_others_nothing_of_it_is_left(cluster: ControlPlane, one: Object, taints: Taints) -> None:
    cluster.api.patch(one, {"spec": {"taints": None}})
    mine = taints()
    assert set_to(mine, MEMORY)
    (fields,) = applied_fields(cluster, one)
    assert fields["f:spec"] == {"f:taints": {}}  # one value, whatever is in it
    assert set_to(mine)
    assert seen(cluster, one) == (set(), None)
    (fields,) = applied_fields(cluster, one)
    assert "f:metadata" not in fields


def test_one_that_another_component_adds_meanwhile_is_not_lost(
    cluster: ControlPlane, one: Object, taints: Taints, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = taints()
    read = mine._read
    other = {**FOREIGN, "key": "team"}

    def another_writes(timeout_s: float) -> Any:
        found = read(timeout_s)
        monkeypatch.undo()
        cluster.api.patch(one, {"spec": {"taints": [FOREIGN, other]}})
        return found

    monkeypatch.setattr(mine, "_read", another_writes)
    with pytest.raises(KubeConflict):
        set_to(mine, MEMORY)
    assert entries(cluster, one) == [FOREIGN, other]
    assert set_to(mine, MEMORY)
    assert entries(cluster, one)[:2] == [FOREIGN, other]


def test_an_object_that_is_deleted_meanwhile_is_not_made_again(
    cluster: ControlPlane, one: Object, taints: Taints, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = taints()
    read = mine._read

    def another_deletes(timeout_s: float) -> Any:
        found = read(timeout_s)
        monkeypatch.undo()
        cluster.api.delete(one)
        return found

    monkeypatch.setattr(mine, "_read", another_deletes)
    with pytest.raises(KubeError):
        set_to(mine, MEMORY)
    assert cluster.api.get(one) is None
    with pytest.raises(KubeGone):
        set_to(mine, MEMORY)
    assert not set_to(mine)


def test_one_that_another_component_has_overwritten_is_added_again(
    cluster: ControlPlane, one: Object, taints: Taints
) -> None:
    mine = taints()
    assert set_to(mine, MEMORY)
    cluster.api.patch(one, {"spec": {"taints": [FOREIGN]}})
    assert set_to(mine, MEMORY)
    assert seen(cluster, one) == ({*FOREIGN_ALONE, MEMORY}, ":".join(MEMORY))
    cluster.api.patch(one, {"spec": {"taints": [FOREIGN]}})
    assert set_to(mine)
    assert (entries(cluster, one), seen(cluster, one)[1]) == ([FOREIGN], None)


@pytest.mark.parametrize("text", ["", "::", "a:b:c", f"{TAINT_PREFIX}Foreign:NoSchedule", f"{TAINT_PREFIX}x:y:z"])
def test_an_annotation_that_others_wrote_takes_no_taint_away(
    cluster: ControlPlane, one: Object, taints: Taints, text: str
) -> None:
    cluster.api.patch(one, {"metadata": {"annotations": {OWNED: text}}})
    set_to(taints())
    assert entries(cluster, one) == [FOREIGN]


def test_the_next_agent_takes_away_what_one_that_was_killed_has_left(
    cluster: ControlPlane, one: Object, taints: Taints
) -> None:
    set_to(taints(), MEMORY)
    tainter = CnrTainter(taints())
    try:
        until(lambda: seen(cluster, one) == (FOREIGN_ALONE, None), "the old taint is gone")
        tainter.wish(frozenset({DISK}))
        until(lambda: DISK in seen(cluster, one)[0], "the new taint is there")
    finally:
        tainter.close()
    assert seen(cluster, one) == (FOREIGN_ALONE, None)


def test_the_agent_adds_one_again_that_another_component_has_overwritten(
    cluster: ControlPlane, one: Object, taints: Taints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CnrTainter, "again_s", 0.2)
    tainter = CnrTainter(taints())
    try:
        tainter.wish(frozenset({DISK}))
        until(lambda: DISK in seen(cluster, one)[0], "the taint is there")
        cluster.api.patch(one, {"spec": {"taints": [FOREIGN]}})
        until(lambda: DISK in seen(cluster, one)[0], "the taint is there again")
    finally:
        tainter.close()
    assert seen(cluster, one) == (FOREIGN_ALONE, None)


def test_without_an_object_there_is_nothing_to_remove_and_it_says_what_is_missing(
    served: None, taints: Taints, caplog: pytest.LogCaptureFixture
) -> None:
    tainter = CnrTainter(taints())
    tainter.wish(frozenset({DISK}))
    until(lambda: "cannot be given the taints" in caplog.text, "what it says")
    began = time.monotonic()
    tainter.close()
    assert time.monotonic() - began < patience(10)
    assert caplog.text.count("404 Not Found") == 1
    assert "may keep taints" not in caplog.text


def test_without_the_right_it_says_which(agent_kubeconfig: Path, one: Object) -> None:
    mine = CnrTaints(open_cluster(agent_kubeconfig), one["metadata"]["name"], TAINT_PREFIX)
    try:
        with pytest.raises(KubeDenied) as caught:
            set_to(mine, MEMORY)
    finally:
        mine.close()
    assert caught.value.resource == "customnoderesources"


def test_each_kind_of_condition_taints_its_own_object(cluster: ControlPlane, one: Object) -> None:
    where = cluster.api.create(node(one["metadata"]["name"]))
    config = AgentConfig(
        source="api", enforce=True, kubeconfig=cluster.admin_kubeconfig, node_name=one["metadata"]["name"]
    )
    of_cnr = LastMet(Condition("Memory", "cnr", ("reclaimed_cores/NoSchedule", "shared_cores/NoExecute")), 0)
    of_node = LastMet(Condition("Disk", "node", ("NoExecute",)), 0)

    def node_has() -> list[str]:
        found: Any = cluster.api.get(where)
        return [each["key"] for each in found["spec"].get("taints", ()) if each["key"].startswith(TAINT_PREFIX)]

    with contextlib.ExitStack() as stack:
        stack.callback(cluster.api.delete, where)
        effects = KatalystEffects(None, open_tainters(config, KatalystSettings(), stack), lambda _: None)

        def carry_out(*reported: LastMet) -> None:
            effects.carry_out(KatalystDecision(state=ManagerState(), reason="", reported=reported))

        carry_out(of_cnr, of_node)
        until(lambda: seen(cluster, one)[0] == {*FOREIGN_ALONE, MEMORY}, "the taint of the CNR")
        until(lambda: node_has() == [DISK[0]], "the taint of the Node")
        carry_out(of_node)
        until(lambda: seen(cluster, one) == (FOREIGN_ALONE, None), "the CNR without it")
        assert node_has() == [DISK[0]]
        carry_out(of_cnr)
        until(lambda: MEMORY in seen(cluster, one)[0] and node_has() == [], "the other one")
    # At the agent's end.
    assert seen(cluster, one) == (FOREIGN_ALONE, None)


@pytest.fixture(scope="module")
def rights(cluster: ControlPlane) -> Iterator[None]:
    with applied(cluster.api, RIGHTS):
        yield


STATUS = {
    "topologyPolicy": "none",
    "resources": {"allocatable": {RECLAIMED_CPU: "8k", RECLAIMED_MEMORY: "1500m"}},
    "topologyZone": [
        {
            "type": "Socket",
            "name": "0",
            "resources": {},
            "children": [
                {
                    "type": "Numa",
                    "name": "0",
                    "resources": {"allocatable": {RECLAIMED_MEMORY: "4Gi", "cpu": "8"}},
                    "allocations": [{"consumer": "a/b/u", "requests": {RECLAIMED_MEMORY: "1Gi", "cpu": "1"}}],
                }
            ],
        }
    ],
}


def test_the_agent_reads_it_with_the_rights_of_the_component(
    cluster: ControlPlane, rights: None, one: Object, agent_kubeconfig: Path
) -> None:
    where = cluster.api.create(node(one["metadata"]["name"]))
    cluster.api.patch(one, {"status": STATUS}, "status")
    pace = Pace(first_s=0.05, cap_s=0.2, slow_s=0.2)
    source = ApiSource(open_cluster(agent_kubeconfig), one["metadata"]["name"], pace, Wanted(with_cnr=True))
    known = ClusterView()

    def read() -> Cnr | None:
        known.learn(source.state())
        return known.cnr

    zone = CnrZone("0", {RECLAIMED_MEMORY: 4 * GIB, "cpu": 8}, {"a/b/u": {RECLAIMED_MEMORY: GIB}})
    try:
        source.start(lambda: None)
        until(lambda: read() == Cnr({RECLAIMED_CPU: 8000, RECLAIMED_MEMORY: 2}, (zone,)), "what it has to give")
        cluster.api.patch(one, {"status": STATUS | {"resources": {"allocatable": {RECLAIMED_CPU: "some"}}}}, "status")
        until(lambda: read() is None, "that it cannot be read")
        assert any(f"allocatable.{RECLAIMED_CPU}: 'some'" in each for each in known.problems)
        cluster.api.delete(one)
        until(lambda: source.state().cnr is None, "that it is gone")
        assert read() is None
        assert not known.problems_by_reason["CustomNodeResource"]
    finally:
        source.close()
        cluster.api.delete(where)


def test_to_an_older_definition_without_qos_levels_it_writes_none(
    cluster: ControlPlane, namespace: str, taints: Taints, served: None
) -> None:
    made = cluster.api.create(cnr(f"{namespace}-node"))
    mine, newer = taints(), definition()
    cluster.api.patch(newer, {"spec": {"versions": definition(taints_have_levels=False)["spec"]["versions"]}})

    def refusal() -> str:
        try:
            set_to(mine, MEMORY)
        except KubeError as error:
            return str(error)
        assert set_to(mine)  # the server still has the newer one
        return ""

    try:
        until(lambda: "qosLevel: field not declared in schema" in refusal(), "the refusal")
        assert entries(cluster, made) == []
    finally:
        cluster.api.patch(newer, {"spec": {"versions": newer["spec"]["versions"]}})
        cluster.api.delete(made)
