"""One Node's NodeSLO over time, and the object that it should be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koordebpf.controller.reconcile import MANAGED_BY, OURS, Keeper, desired_nodeslo, is_ours
from koordebpf.controller.settings import Settings, settings_of
from koordebpf.kube.clients.nodeslos import NodeMeta, NodeSLO, NodeSLOMeta, Owner
from koordebpf.units import NS_PER_S

NODE = NodeMeta("n1", "uid-n1", {"pool": "a"})
AT_70 = settings_of({"resource-threshold-config": '{"clusterStrategy":{"memoryEvictThresholdPercent":70}}'}, None)
AT_60 = settings_of({"resource-threshold-config": '{"clusterStrategy":{"memoryEvictThresholdPercent":60}}'}, None)


def percent(nodeslo: NodeSLO) -> Any:
    return nodeslo.spec["resourceUsedThresholdWithBE"]["memoryEvictThresholdPercent"]


def answered(nodeslo: NodeSLO, version: int) -> NodeSLO:
    """The object as a server answers that takes it as it is."""
    meta = msgspec.structs.replace(nodeslo.metadata, uid="uid-slo", resourceVersion=str(version))
    return NodeSLO(meta, nodeslo.spec)


def changed(nodeslo: NodeSLO, version: int, value: int) -> NodeSLO:
    spec = {**nodeslo.spec, "resourceUsedThresholdWithBE": {"memoryEvictThresholdPercent": value}}
    return NodeSLO(msgspec.structs.replace(nodeslo.metadata, resourceVersion=str(version)), spec)


def wanted(keeper: Keeper, seen: NodeSLO | None, settings: Settings = AT_70, now_ns: int = 0) -> NodeSLO:
    found = keeper.wanted(NODE, seen, settings, now_ns)
    assert found is not None
    return found


class TestDesired:
    def test_a_new_one_is_ours_and_its_nodes(self) -> None:
        made = desired_nodeslo(NODE, None, AT_70)
        assert is_ours(made)
        assert made.metadata == NodeSLOMeta(
            name="n1", labels={MANAGED_BY: OURS}, ownerReferences=(Owner("v1", "Node", "n1", "uid-n1"),)
        )
        assert percent(made) == 70

    def test_owners_of_another_kind_stay(self) -> None:
        team, old = Owner("example.com/v1", "Team", "web", "uid-web"), Owner("v1", "Node", "n1", "uid-old", True)
        current = NodeSLO(NodeSLOMeta("n1", ownerReferences=(old, team)))
        assert desired_nodeslo(NODE, current, AT_70).metadata.ownerReferences == (
            Owner("v1", "Node", "n1", "uid-n1"),
            team,
        )

    def test_it_is_what_a_server_sends_back(self) -> None:
        text = '{"applications":[{"name":"a","cgroupPath":{"base":"Kubepods","relativePath":"x/"}}]}'
        made = desired_nodeslo(NODE, None, settings_of({"host-application-config": text}, None))
        assert msgspec.json.decode(msgspec.json.encode(made), type=NodeSLO) == made

    @pytest.mark.parametrize("spec", [None, [], "x", {}])
    def test_a_held_key_of_an_object_that_has_none_is_the_default(self, spec: Any) -> None:
        held = settings_of({"resource-threshold-config": "{"}, None)
        assert percent(desired_nodeslo(NODE, NodeSLO(NodeSLOMeta("n1"), spec), held)) == 70


class TestKeeper:
    def test_what_is_right_is_left_alone(self) -> None:
        there = answered(desired_nodeslo(NODE, None, AT_70), 5)
        keeper = Keeper()
        assert keeper.wanted(NODE, there, AT_70, 0) is None
        assert percent(wanted(keeper, there, AT_60)) == 60

    def test_the_answer_to_a_write_is_known_before_the_watch_reports_it(self) -> None:
        keeper = Keeper()
        sent = wanted(keeper, None)
        assert keeper.wrote(sent, answered(sent, 5), 0)
        assert keeper.wanted(NODE, None, AT_70, 1) is None
        # An edit meanwhile is made from the answer, not from nothing.
        assert wanted(keeper, None, AT_60, 2).metadata.resourceVersion == "5"

    def test_a_watch_that_caught_up_is_believed_when_it_is_gone(self) -> None:
        keeper = Keeper()
        sent = wanted(keeper, None)
        keeper.wrote(sent, answered(sent, 5), 0)
        assert keeper.wanted(NODE, answered(sent, 5), AT_70, 1) is None
        assert wanted(keeper, None).metadata.resourceVersion == ""

    def test_a_watch_without_events_is_believed_after_a_while(self) -> None:
        keeper = Keeper()
        sent = wanted(keeper, None)
        keeper.wrote(sent, answered(sent, 5), 0)
        assert keeper.wanted(NODE, None, AT_70, 29 * NS_PER_S) is None
        assert keeper.wanted(NODE, None, AT_70, 31 * NS_PER_S) is not None

    def test_failures_wait_longer_each_time_and_a_success_forgets_them(self) -> None:
        keeper = Keeper()
        waits = []
        for _ in range(12):
            keeper.failed("it is odd", 1000)
            waits.append(keeper.due_ns - 1000)
        assert waits[0] <= 0.2 * NS_PER_S
        assert 150 * NS_PER_S <= waits[-1] <= 300 * NS_PER_S
        assert keeper.problem == "it is odd"
        sent = wanted(keeper, None)
        keeper.wrote(sent, answered(sent, 5), 0)
        assert (keeper.due_ns, keeper.problem) == (0, "")

    def test_anothers_change_is_counted_once_and_fought_slower_each_time(self) -> None:
        keeper = Keeper()
        sent = wanted(keeper, None)
        keeper.wrote(sent, answered(sent, 1), 0)
        waits = []
        for version in range(2, 30, 2):
            theirs = changed(sent, version, 99)
            again = wanted(keeper, theirs, now_ns=0)
            assert keeper.wanted(NODE, theirs, AT_70, 0) is again
            waits.append(keeper.due_ns)
            keeper.wrote(again, answered(again, version + 1), 0)
        assert keeper.overwritten == 14
        assert waits[0] <= 0.2 * NS_PER_S
        assert 150 * NS_PER_S <= waits[-1] <= 300 * NS_PER_S

    def test_one_change_of_another_is_fought_once_however_often_it_is_seen(self) -> None:
        keeper = Keeper()
        sent = wanted(keeper, None)
        keeper.wrote(sent, answered(sent, 1), 0)
        for now_ns in (0, NS_PER_S):
            wanted(keeper, changed(sent, 2, 99), now_ns=now_ns)
        assert keeper.overwritten == 1
        assert keeper.due_ns <= 0.2 * NS_PER_S

    def test_our_own_edit_is_not_foreign(self) -> None:
        keeper = Keeper()
        sent = wanted(keeper, None)
        there = answered(sent, 5)
        keeper.wrote(sent, there, 0)
        wanted(keeper, there, AT_60)
        assert (keeper.overwritten, keeper.due_ns) == (0, 0)

    def test_a_server_that_keeps_less_gets_it_once(self) -> None:
        keeper = Keeper()
        sent = wanted(keeper, None)
        kept = answered(NodeSLO(sent.metadata, {"cpuBurstStrategy": {}}), 5)
        assert not keeper.wrote(sent, kept, 0)
        assert keeper.wanted(NODE, kept, AT_70, 1) is None
        assert keeper.wanted(NODE, kept, AT_60, 1) is not None
        assert keeper.overwritten == 0

    def test_after_a_conflict_it_waits_for_what_is_newer(self) -> None:
        keeper, there = Keeper(), answered(desired_nodeslo(NODE, None, AT_70), 5)
        keeper.conflicted(wanted(keeper, there, AT_60), "409", 0)
        # The same version again, and other settings, are no news of the object.
        wanted(keeper, answered(there, 5), AT_60, 1)
        text = '{"clusterStrategy":{"memoryEvictThresholdPercent":55}}'
        wanted(keeper, there, settings_of({"resource-threshold-config": text}, None), 1)
        assert keeper.due_ns == 30 * NS_PER_S
        assert wanted(keeper, answered(there, 6), AT_60, NS_PER_S).metadata.resourceVersion == "6"
        assert keeper.due_ns <= 0.2 * NS_PER_S
        assert keeper.problem == "409"

    def test_what_is_gone_or_has_come_is_news_after_a_conflict_too(self) -> None:
        there = answered(desired_nodeslo(NODE, None, AT_70), 5)
        for before, after in ((there, None), (None, changed(there, 5, 99))):
            keeper = Keeper()
            keeper.conflicted(wanted(keeper, before, AT_60), "409", 0)
            assert keeper.due_ns == 30 * NS_PER_S
            wanted(keeper, after, AT_60, 1)
            assert keeper.due_ns <= 0.2 * NS_PER_S

    def test_a_watch_that_is_behind_the_last_write_is_no_news_after_a_conflict(self) -> None:
        keeper, old = Keeper(), answered(desired_nodeslo(NODE, None, AT_70), 4)
        sent = wanted(keeper, old, AT_60)
        keeper.wrote(sent, answered(sent, 6), 0)
        keeper.conflicted(wanted(keeper, old, AT_70, 1), "409", 1)
        wanted(keeper, answered(old, 5), AT_70, 2)
        assert keeper.due_ns == 1 + 30 * NS_PER_S
        wanted(keeper, changed(sent, 7, 99), AT_70, 3)
        assert keeper.due_ns <= NS_PER_S

    def test_conflicts_wait_longer_each_time_and_a_failure_waits_for_no_news(self) -> None:
        keeper, there = Keeper(), answered(desired_nodeslo(NODE, None, AT_70), 5)
        sent = wanted(keeper, there, AT_60)
        waits = []
        for _ in range(12):
            keeper.conflicted(sent, "409", 0)
            waits.append(keeper.due_ns)
        assert waits[0] == 30 * NS_PER_S
        assert 150 * NS_PER_S <= waits[-1] <= 300 * NS_PER_S
        keeper.wrote(sent, answered(sent, 6), 0)
        keeper.conflicted(wanted(keeper, answered(sent, 6), AT_70), "409", 0)
        keeper.failed("500", 0)
        assert keeper.due_ns <= NS_PER_S
