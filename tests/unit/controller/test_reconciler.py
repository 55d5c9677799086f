"""Which NodeSLOs a round writes, in which order, and how long it waits after what."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import msgspec
import pytest

from koordebpf.controller.reconcile import Reconciler, Round, desired_nodeslo
from koordebpf.controller.settings import Settings, settings_of
from koordebpf.errors import KubeBusy, KubeConflict, KubeDenied, KubeError
from koordebpf.kube.clients.nodeslos import ControllerState, NodeMeta, NodeSLO, NodeSLOMeta
from koordebpf.units import NS_PER_S

START_NS = 1000 * NS_PER_S
AT_70 = settings_of({"resource-threshold-config": '{"clusterStrategy":{"memoryEvictThresholdPercent":70}}'}, None)
AT_60 = settings_of({"resource-threshold-config": '{"clusterStrategy":{"memoryEvictThresholdPercent":60}}'}, None)


@dataclass
class Api:
    """Keeps what it is sent, unless it has an error for that; each request takes so long."""

    clock_ns: int = START_NS
    takes_ns: int = 0
    errors: dict[str, KubeError] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    kept: dict[str, NodeSLO] = field(default_factory=dict)

    def create(self, nodeslo: NodeSLO) -> NodeSLO:
        return self._keep("create", nodeslo)

    def update(self, nodeslo: NodeSLO) -> NodeSLO:
        return self._keep("update", nodeslo)

    def _keep(self, verb: str, nodeslo: NodeSLO) -> NodeSLO:
        self.clock_ns += self.takes_ns
        name = nodeslo.metadata.name
        self.sent.append(f"{verb} {name}")
        if (error := self.errors.get(name)) is not None:
            raise error
        version = str(int(nodeslo.metadata.resourceVersion or 0) + 1)
        self.kept[name] = NodeSLO(msgspec.structs.replace(nodeslo.metadata, resourceVersion=version), nodeslo.spec)
        return self.kept[name]


class Rig:
    def __init__(self, *names: str, adopts: bool = False, is_dry_run: bool = False) -> None:
        self.api = Api()
        self.nodes = {name: NodeMeta(name, f"uid-{name}") for name in names}
        self.others: list[NodeSLO] = []
        self.may_write = True
        writer = None if is_dry_run else self.api
        self.reconciler = Reconciler(writer, adopts=adopts, now_ns=lambda: self.api.clock_ns)

    def round(self, after_s: float = 0, settings: Settings = AT_70) -> Round:
        self.api.clock_ns += int(after_s * NS_PER_S)
        self.api.sent = []
        state = ControllerState(tuple(self.nodes.values()), (*self.api.kept.values(), *self.others))
        return self.reconciler.round(state, settings, lambda: self.may_write)

    def fail(self, error: KubeError | None, *names: str) -> None:
        self.api.errors = {} if error is None else dict.fromkeys(names or self.nodes, error)


class TestARound:
    def test_what_is_not_there_is_created_and_what_differs_is_updated(self) -> None:
        rig = Rig("a", "b")
        assert (rig.round(), rig.api.sent) == (Round(settled=2), ["create a", "create b"])
        assert (rig.round(), rig.api.sent) == (Round(settled=2), [])
        assert (rig.round(settings=AT_60), rig.api.sent) == (Round(settled=2), ["update a", "update b"])
        tally = rig.reconciler.tally
        assert (tally.created, tally.updated, tally.conflicts, tally.failures) == (2, 2, 0, 0)

    def test_it_ends_after_five_seconds_and_the_next_continues(self) -> None:
        rig = Rig("a", "b", "c", "d")
        rig.api.takes_ns = int(2.5 * NS_PER_S)
        found = rig.round()
        assert (found.settled, found.pending, rig.api.sent) == (2, 2, ["create a", "create b"])
        assert found.due_ns is not None and found.due_ns <= rig.api.clock_ns  # at once
        assert rig.round().pending == 0

    def test_without_leave_it_writes_nothing(self) -> None:
        rig = Rig("a")
        rig.may_write = False
        assert (rig.round().pending, rig.api.sent) == (1, [])

    def test_one_without_a_node_is_counted_and_one_of_another_stops_it_unless_it_adopts(self) -> None:
        for adopts in (False, True):
            rig = Rig("a", adopts=adopts)
            rig.others = [desired_nodeslo(NodeMeta("gone", "uid"), None, AT_70), NodeSLO(NodeSLOMeta("theirs"))]
            found = rig.round()
            assert (found.foreign, found.orphaned, found.pending) == (1, 1, 0 if adopts else 1)
            assert (rig.api.sent, found.due_ns) == (["create a"] if adopts else [], None)
            assert [text.partition(",")[0] for text in found.problems] == ["1 of 2 NodeSLOs"] * (not adopts)


class TestFailures:
    @pytest.mark.parametrize(
        ("error", "first_s", "last_s"),
        [
            (KubeDenied("403", "create", "nodeslos"), 5, 60),
            (KubeBusy("503", None), 0.5, 30),
            (KubeError("500"), 0.5, 30),
        ],
        ids=["denied", "busy", "failed"],
    )
    def test_what_would_fail_for_all_rests_all_longer_each_time(
        self, error: KubeError, first_s: float, last_s: float
    ) -> None:
        rig, waits_s = Rig("a", "b"), []
        rig.fail(error)
        for _ in range(12):
            found = rig.round(400)
            assert (found.pending, len(rig.api.sent), found.problems) == (2, 1, (str(error),))
            assert found.due_ns is not None
            waits_s.append((found.due_ns - rig.api.clock_ns) / NS_PER_S)
            assert rig.round((found.due_ns - rig.api.clock_ns - 1) / NS_PER_S).pending == 2
            assert rig.api.sent == []
        assert first_s / 2 <= waits_s[0] <= first_s
        assert last_s / 2 <= waits_s[-1] <= last_s
        rig.fail(None)
        assert (rig.round(400).problems, rig.round().settled) == ((), 2)
        rig.fail(error)
        found = rig.round(0, AT_60)  # a write that succeeded has forgotten them
        assert found.due_ns is not None
        assert found.due_ns - rig.api.clock_ns <= first_s * NS_PER_S

    def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(self) -> None:
        rig = Rig("a")
        rig.fail(KubeBusy("429", 7.0))
        assert rig.round().due_ns == START_NS + 7 * NS_PER_S

    def test_what_fails_for_one_is_tried_last_and_holds_up_no_other(self) -> None:
        rig = Rig("a", "b", "c")
        rig.fail(KubeError("422", retry=False), "a")
        found = rig.round()
        assert (rig.api.sent, found.settled, found.problems) == (["create a", "create b", "create c"], 2, ("422",))
        rig.fail(None)
        rig.nodes["d"] = NodeMeta("d", "uid-d")
        assert (rig.round(1).settled, rig.api.sent) == (4, ["create d", "create a"])

    def test_a_conflict_is_counted_and_is_no_failure(self) -> None:
        rig = Rig("a")
        rig.fail(KubeConflict("409"))
        found = rig.round()
        assert (rig.reconciler.tally.conflicts, rig.reconciler.tally.failures) == (1, 0)
        assert (found.pending, found.problems) == (1, ("409",))

    def test_five_reasons_are_said_and_how_many_more_there_are(self) -> None:
        rig = Rig(*"abcdefg")
        rig.api.errors = {name: KubeError(f"422 {name}", retry=False) for name in "abcdefg"}
        assert rig.round().problems == (*(f"422 {name}" for name in "abcde"), "and 2 more like these")
        del rig.api.errors["f"], rig.api.errors["g"]
        assert sorted(rig.round(1).problems) == [f"422 {name}" for name in "abcde"]


class TestMemory:
    def test_what_another_changed_is_counted_after_the_node_is_gone_too(self) -> None:
        rig = Rig("a", "b")
        for count in (1, 2):
            rig.round()
            theirs = rig.api.kept["a"]
            meta = msgspec.structs.replace(theirs.metadata, resourceVersion="99")
            rig.api.kept["a"] = NodeSLO(meta, {"resourceUsedThresholdWithBE": {"memoryEvictThresholdPercent": 1}})
            rig.round()
            assert rig.reconciler.overwritten == count
            del rig.nodes["a"], rig.api.kept["a"]
            rig.round()
            assert rig.reconciler.overwritten == count
            rig.nodes["a"] = NodeMeta("a", "uid-again")

    def test_a_dry_run_logs_each_write_once_and_has_no_time_to_come_back(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        rig = Rig("a", is_dry_run=True)
        for settings in (AT_70, AT_70, AT_60):
            found = rig.round(1, settings)
            assert (found.pending, found.due_ns) == (1, None)
        assert [record.getMessage()[:26] for record in caplog.records] == ['would create NodeSLO a: {"'] * 2
