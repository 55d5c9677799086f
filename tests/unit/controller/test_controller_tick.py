"""One look of the controller: what it says to probes, logs and metrics, and when it looks again."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from koordebpf.controller.batch.part import BatchResources, Looked
from koordebpf.controller.reconcile import Reconciler
from koordebpf.controller.run import Controller, Leadership
from koordebpf.kube.cache.objects import ConfigMap
from koordebpf.kube.clients.nodeslos import ControllerSource, ControllerState, NodeMeta, NodeSLOWriter
from koordebpf.kube.config_map import CONFIG_MAP
from koordebpf.report.http.routes import Health
from koordebpf.report.prom.controller import BatchMetrics, ControllerMetrics
from koordebpf.units import NS_PER_S
from tests.unit.controller.test_reconciler import Api

LISTED = ControllerState((NodeMeta("a", "uid-a"), NodeMeta("b", "uid-b")), is_synced=True)


SELECTED = {
    "resource-threshold-config": '{"nodeStrategies": [{"name": "x", "nodeSelector": {"matchLabels": {"pool": "x"}}}]}'
}


class Batch:
    """Batch resources that were looked at, and are to be again at a time."""

    def __init__(self, due_ns: int, *problems: str) -> None:
        self.looked, self.counted = Looked(due_ns, problems), 0

    def run_due(self, *_: object) -> Looked:
        return self.looked

    def count(self, _metrics: BatchMetrics) -> None:
        self.counted += 1


class Rig:
    config_map = CONFIG_MAP

    def __init__(self, *, is_dry_run: bool = False) -> None:
        self.listed, self.leads, self.election = LISTED, True, ""
        self.api, self.metrics, self.health = Api(), ControllerMetrics(), Health()
        writer = None if is_dry_run else self.api
        self.controller = Controller(
            cast("ControllerSource", self),
            cast("NodeSLOWriter", writer),
            Reconciler(writer, adopts=False, now_ns=lambda: self.api.clock_ns),
            Leadership(lambda: self.leads, lambda: self.election),
            self.metrics,
            self.health,
        )

    def state(self) -> ControllerState:
        return self.listed

    def tick(self, **changed: Any) -> tuple[str, ...]:
        """Look once; return why the controller is not ready."""
        for name, value in changed.items():
            setattr(self, name, value)
        self.controller.tick()
        return self.health.ready(time.monotonic_ns())[1]

    def due_s(self) -> float:
        """Look once; return in how many seconds the next look is due, as it was when this one began or before."""
        before_ns = time.monotonic_ns()
        return (self.controller.tick() - before_ns) / NS_PER_S


@pytest.fixture
def rig() -> Rig:
    return Rig()


class TestNext:
    def test_it_shows_that_it_lives_though_nothing_happens(self, rig: Rig) -> None:
        assert rig.due_s() >= 10

    def test_batch_resources_and_what_is_pending_are_looked_at_when_they_are_due(self, rig: Rig) -> None:
        rig.api.takes_ns = 5 * NS_PER_S  # the second Node is to be written at once
        assert rig.due_s() < 0
        rig.controller.batch = cast("BatchResources", Batch(7))
        assert rig.controller.tick() == 7
        rig.controller.batch = cast("BatchResources", Batch(time.monotonic_ns() + 3600 * NS_PER_S))
        assert rig.due_s() < 3000


class TestSaid:
    def test_until_all_is_listed_it_is_not_ready_and_writes_nothing(self, rig: Rig) -> None:
        assert rig.tick(listed=ControllerState(LISTED.nodes, problems=("403",))) == (
            "not everything was listed yet",
            "403",
        )
        assert rig.api.sent == []
        assert rig.tick(listed=LISTED) == ()

    def test_every_reason_is_in_probes_and_logged_once_while_it_lasts(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        rig.controller.batch = cast("BatchResources", Batch(0, "of batch"))
        for election in ("lost", "lost", "", "lost"):
            found = rig.tick(election=election, listed=ControllerState(LISTED.nodes, problems=("403",)))
            assert found == ("not everything was listed yet", "403", "of batch", *([election] if election else []))
        assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
            *("403", "of batch", "lost", "lost")
        ]

    def test_writes_are_logged_with_how_many_nodes_are_as_they_should_be(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "koordebpf")
        rig.tick()
        rig.tick(listed=ControllerState(LISTED.nodes, tuple(rig.api.kept.values()), is_synced=True))
        said = [record.getMessage() for record in caplog.records if "created" in record.getMessage()]
        assert said == ["NodeSLOs: 2 created, 0 updated; 2 of 2 Nodes are as they should be"]

    def test_a_cluster_without_the_crd_is_reported_and_nothing_is_written(self, rig: Rig) -> None:
        (reason,) = rig.tick(listed=ControllerState(LISTED.nodes, is_synced=True, serves_nodeslos=False))
        assert reason.startswith("the cluster does not serve NodeSLO: ")
        assert (rig.metrics.nodeslos["pending"], rig.api.sent) == (2, [])


class TestCounted:
    def test_each_time_that_it_begins_to_lead_counts(self, rig: Rig) -> None:
        seen = []
        for leads in (True, True, False, True):
            rig.tick(leads=leads)
            seen.append((rig.metrics.is_leader, rig.metrics.led))
        assert seen == [(True, 1), (True, 1), (False, 1), (True, 2)]
        assert (rig.metrics.nodes, rig.metrics.rounds.count) == (2, 4)

    def test_a_dry_run_does_not_lead(self) -> None:
        rig = Rig(is_dry_run=True)
        rig.tick()
        assert (rig.metrics.is_leader, rig.metrics.led, rig.metrics.nodeslos["pending"]) == (False, 0, 2)

    def test_the_problems_of_the_config_map_are_counted_by_reason(self) -> None:
        rig = Rig(is_dry_run=True)
        wrong = '{"clusterStrategy":{"memoryEvictThresholdPercent":170,"memoryEvictLowerPercent":-1}}'
        data = {"resource-threshold-config": wrong, "cpu-burst-config": "{"}
        rig.tick(listed=ControllerState(LISTED.nodes, config_map=ConfigMap(data=data), is_synced=True))
        assert rig.metrics.configmap.problems == {"ConfigParamInvalid": 2, "ParseConfigFail": 1}
        assert rig.metrics.configmap.stale_keys == ("cpu-burst-config", "resource-threshold-config")

    def test_batch_resources_count_their_own(self, rig: Rig) -> None:
        batch = Batch(0)
        rig.controller.batch = cast("BatchResources", batch)
        rig.tick()
        assert batch.counted == 1


def test_a_node_without_labels_is_selected_by_nothing() -> None:
    rig = Rig()
    labelled = NodeMeta("b", "uid-b", {"pool": "x"})
    listed = ControllerState((LISTED.nodes[0], labelled), config_map=ConfigMap(data=SELECTED), is_synced=True)
    assert rig.tick(listed=listed) == ()
    assert sorted(rig.api.kept) == ["a", "b"]
