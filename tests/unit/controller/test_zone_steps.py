"""Batch resources of NUMA zones: what is wanted, when it is written, and what of the topology stays."""

from __future__ import annotations

from typing import Any

import pytest

from koordebpf.controller.batch.calculations import Computed
from koordebpf.controller.batch.facts import TopologyRecord
from koordebpf.controller.batch.publish import wanted_zones, with_zones, zone_reason
from koordebpf.kube.colocation.nodes import ColocationNode
from koordebpf.policy.batch.facts import CpuMemory, Zone
from koordebpf.policy.batch.formulas import NodeResult
from koordebpf.slo.manager.node_colocation import NodeColocation
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY
from koordebpf.units import NS_PER_S

CPU, MEMORY = f"z/{BATCH_CPU}", f"z/{BATCH_MEMORY}"
ZONES = (Zone("z", CpuMemory(1, 1)),)


def computed(*, reset: str = "", zones: tuple[Zone, ...] = ZONES, has_topology: bool = True, **batch: int) -> Computed:
    """A Node whose zone is to have 100 of CPU and 200 of memory, and has `batch`."""
    there = {f"z/kubernetes.io/batch-{name}": amount for name, amount in batch.items()}
    result = NodeResult({}, zones={} if reset else {"z": CpuMemory(100, 200)}, reset=reset)
    topology = TopologyRecord("n", zones, there) if has_topology else None
    return Computed(ColocationNode("n", "u"), NodeColocation(), result, None, topology)


def test_each_zone_is_to_have_its_share_and_of_a_node_that_is_reset_nothing_of_what_there_is() -> None:
    assert wanted_zones(computed()) == {CPU: 100, MEMORY: 200}
    assert wanted_zones(computed(reset="off", cpu=7, memory=0)) == {CPU: 0}


@pytest.mark.parametrize("of", [{"zones": ()}, {"has_topology": False}], ids=["no zones", "no topology"])
def test_without_zones_nothing_is_written(of: dict[str, Any]) -> None:
    assert (wanted_zones(computed(**of)), zone_reason(computed(**of), None)) == ({}, "")


@pytest.mark.parametrize(
    ("cpu", "since_s", "is_written"),
    [(100, 999, False), (50, 0, True), (95, 300, False), (95, 301, True), (95, None, True)],
)
def test_a_small_difference_waits_until_the_last_write_is_old(cpu: int, since_s: int | None, is_written: bool) -> None:
    since_ns = None if since_s is None else since_s * NS_PER_S
    assert bool(zone_reason(computed(cpu=cpu, memory=200), since_ns)) is is_written


def amounts(name: str, amount: str) -> dict[str, str]:
    return {"name": name, "capacity": amount, "allocatable": amount, "available": amount}


@pytest.mark.parametrize("topology", [{}, {"zones": None}, {"zones": {}}, {"zones": [None, "z", {"name": "other"}]}])
def test_what_is_no_zone_is_left_as_it_is(topology: dict[str, Any]) -> None:
    assert with_zones(topology, {CPU: 1}) == topology


@pytest.mark.parametrize("there", [None, {}, [None, "cpu"], [amounts(BATCH_CPU, "5")]])
def test_what_a_zone_has_is_replaced(there: Any) -> None:
    zone = {"name": "z", "type": "Node", **({} if there is None else {"resources": there})}
    made = with_zones({"kind": "x", "zones": [zone]}, {CPU: 1, MEMORY: 2})
    resources = [amounts(BATCH_CPU, "1"), amounts(BATCH_MEMORY, "2")]
    assert made == {"kind": "x", "zones": [{"name": "z", "type": "Node", "resources": resources}]}


def test_what_others_wrote_of_a_zone_stays_in_the_order_of_names() -> None:
    others = [amounts("memory", "9"), amounts(BATCH_MEMORY, "5"), amounts("cpu", "8")]
    (zone,) = with_zones({"zones": [{"name": "z", "resources": others}]}, {CPU: 1})["zones"]
    assert zone["resources"] == [
        *(amounts("cpu", "8"), amounts(BATCH_CPU, "1"), amounts(BATCH_MEMORY, "5"), amounts("memory", "9"))
    ]
