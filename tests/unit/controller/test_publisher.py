"""What is written of batch and mid resources, in which order, and when it is written again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from koordebpf.controller.batch.calculations import Calculations, Computed
from koordebpf.controller.batch.facts import TopologyRecord
from koordebpf.controller.batch.publish import Publisher
from koordebpf.errors import KubeError
from koordebpf.kube.colocation.nodes import ColocationNode
from koordebpf.kube.colocation.writes import WrittenMetric
from koordebpf.policy.batch.facts import Calculation, CpuMemory, Zone
from koordebpf.policy.batch.formulas import NodeResult
from koordebpf.slo.manager.node_colocation import NodeColocation
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY
from koordebpf.units import NS_PER_S

OFF = NodeColocation()  # which asks for no NodeMetric
ORIGIN = "node.koordinator.sh/originExtendedAllocatable"


@dataclass
class Api:
    """Takes what it is sent; each write takes so long."""

    clock_ns: int = 1000 * NS_PER_S
    takes_ns: int = 0
    error: KubeError | None = None
    sent: list[str] = field(default_factory=list)

    def patch_node(self, name: str, amounts: Mapping[str, int | None], annotations: Mapping[str, str | None]) -> None:
        self._take(name)

    def create_metric(self, metric: WrittenMetric) -> WrittenMetric:
        self._take(f"create {metric.metadata.name}")
        return metric

    def update_metric(self, metric: WrittenMetric) -> WrittenMetric:
        self._take(f"update {metric.metadata.name}")
        return metric

    def delete_metric(self, name: str, uid: str) -> None:
        self._take(f"delete {name}")

    def change_topology(self, name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._take(f"zones of {name}")

    def _take(self, what: str) -> None:
        self.clock_ns += self.takes_ns
        if self.error is not None:
            raise self.error
        self.sent.append(what)


class Rig:
    def __init__(self, *, adopts: bool = False) -> None:
        self.api = Api()
        self.calculations = Calculations()
        self.publisher = Publisher(self.api, adopts=adopts, now_ns=lambda: self.api.clock_ns)
        self.may_write = True

    def want(self, computed: Computed) -> None:
        self.calculations.computed[computed.node.name] = computed

    def sent(self, after_s: float = 0, *changed: str) -> list[str]:
        """Return what is sent after so long of Nodes that changed; without any of all that differed before."""
        self.api.clock_ns += int(after_s * NS_PER_S)
        self.api.sent = []
        self.publisher.publish(self.calculations, changed, lambda: self.may_write)
        return self.api.sent


def of(name: str, has: int | None, wants: int | None, *, manager: str = "", **more: Any) -> Computed:
    """A Node that has so much batch CPU, and is to have another amount; None: none at all, it is reset."""
    names = (BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY)
    there = {} if has is None else {each: str(has) if each == BATCH_CPU else "0" for each in names}
    text = f'{{"resources":{{"{BATCH_CPU}":"0","{BATCH_MEMORY}":"0"}}}}'
    node = ColocationNode(name, f"uid-{name}", None, {ORIGIN: text} if there else None, there, there, manager)
    results = {each: None if wants is None else wants if each == BATCH_CPU else 0 for each in names}
    calculations = {each: Calculation(each, result=result) for each, result in results.items()}
    result = NodeResult(calculations, reset="it is off" if wants is None else "", zones=more.pop("zones", {}))
    return Computed(node, OFF, result, None, **more)


@pytest.fixture
def rig() -> Rig:
    return Rig()


class TestOrder:
    def test_first_what_is_reset_then_what_falls_then_what_grows(self, rig: Rig) -> None:
        for each in (of("a", 10, 90), of("b", 90, 10), of("c", 90, None), of("d", None, 90), of("e", 1, 0)):
            rig.want(each)
        assert rig.sent(0, *"abcde") == ["c", "b", "e", "a", "d"]

    def test_a_look_ends_after_two_seconds_of_writes_and_the_next_continues(self, rig: Rig) -> None:
        for name in "abcde":
            rig.want(of(name, 10, 90))
        rig.api.takes_ns = NS_PER_S
        assert rig.sent(0, *"abcde") == ["a", "b"]
        assert sorted(rig.publisher.pending) == ["c", "d", "e"]
        assert rig.sent() == ["c", "d"]

    def test_what_may_not_be_written_now_is_written_later(self, rig: Rig) -> None:
        rig.want(of("a", 10, 90))
        rig.may_write = False
        assert (rig.publisher.foreign, rig.sent(0, "a")) == (0, [])
        rig.may_write = True
        assert rig.sent() == ["a"]
        rig.want(of("b", 10, 90))
        rig.publisher.hold(["b"])
        assert rig.sent() == ["b"]


class TestAgain:
    def test_a_write_counts_for_30_s_then_the_watch_does(self, rig: Rig) -> None:
        rig.want(of("a", 10, 90))
        assert rig.sent(0, "a") == ["a"]
        assert rig.sent(29.9) == []
        assert rig.sent(0.1, "a") == ["a"]

    def test_what_another_changed_is_written_as_soon_as_it_shows(self, rig: Rig) -> None:
        rig.want(of("a", 10, 90))
        rig.sent(0, "a")
        rig.want(of("a", 50, 90))
        assert rig.sent(1, "a") == ["a"]

    def test_a_small_difference_waits_until_the_last_write_is_old(self, rig: Rig) -> None:
        rig.want(of("a", 10, 90))
        rig.sent(0, "a")
        rig.want(of("a", 90, 95))
        assert rig.sent(300, "a") == []
        assert rig.sent(0.1) == ["a"]
        rig.want(of("a", 95, 95))
        assert rig.sent(0, "a") == []
        assert rig.sent(1000) == []

    def test_a_node_that_is_gone_is_forgotten(self, rig: Rig) -> None:
        rig.want(of("a", 10, 90))
        rig.sent(0, "a")
        del rig.calculations.computed["a"]
        assert rig.sent(1, "a") == []
        rig.want(of("a", 90, 95))
        assert rig.sent(1, "a") == ["a"]  # when it was written is not known

    def test_what_failed_is_tried_again(self, rig: Rig) -> None:
        rig.want(of("a", 10, 90))
        rig.api.error = KubeError("500")
        assert rig.sent(0, "a") == []
        assert (rig.publisher.failures, rig.publisher.tally.nodes) == (1, 0)
        rig.api.error = None
        assert rig.sent(1) == ["a"]
        assert (rig.publisher.problems, rig.publisher.tally.nodes) == ((), 1)


class TestManagers:
    def test_a_node_of_a_manager_is_left_alone_until_it_is_adopted(self) -> None:
        for adopts in (False, True):
            rig = Rig(adopts=adopts)
            rig.want(of("a", 10, 90, manager="koord-manager"))
            assert rig.sent(0, "a") == ["a"] * adopts
            assert rig.publisher.foreign == (not adopts)

    def test_a_node_whose_strategy_is_not_known_keeps_what_it_has(self, rig: Rig) -> None:
        rig.want(of("a", 10, 90, is_held=True))
        assert rig.sent(0, "a") == []
        assert rig.publisher.pending == {}


class TestZones:
    TOPOLOGY = TopologyRecord("a", (Zone("z", CpuMemory(1, 1)),), {f"z/{BATCH_CPU}": 10})

    def want(self, rig: Rig, topology: TopologyRecord = TOPOLOGY) -> None:
        rig.want(of("a", 90, 90, topology=topology, zones={"z": CpuMemory(90, 0)}))

    def test_zones_are_written_once_until_the_watch_shows_them(self, rig: Rig) -> None:
        self.want(rig)
        assert rig.sent(0, "a") == ["zones of a"]
        assert rig.sent(29.9) == []
        assert rig.sent(0.1, "a") == ["zones of a"]
        assert rig.publisher.tally.topologies == 2

    def test_what_another_changed_is_written_as_soon_as_it_shows(self, rig: Rig) -> None:
        self.want(rig)
        rig.sent(0, "a")
        self.want(rig, replace(self.TOPOLOGY))
        assert rig.sent(1, "a") == ["zones of a"]

    def test_those_of_a_managers_node_are_left_alone_until_it_is_adopted(self) -> None:
        for adopts in (False, True):
            rig = Rig(adopts=adopts)
            zones = {"z": CpuMemory(90, 0)}
            rig.want(of("a", 90, 90, manager="koord-manager", topology=self.TOPOLOGY, zones=zones))
            assert rig.sent(0, "a") == ["zones of a"] * adopts

    def test_they_come_after_the_resources_of_all_nodes(self, rig: Rig) -> None:
        self.want(rig)
        rig.want(of("b", 10, 90))
        assert rig.sent(0, "a", "b") == ["b", "zones of a"]
