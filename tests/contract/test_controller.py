"""The controller against a server that keeps objects and misbehaves."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.controller.reconcile import MANAGED_BY, OURS, desired_nodeslo
from koordebpf.kube.clients.nodeslos import NodeMeta, NodeSLO
from koordebpf.slo.manager.effective import render_spec
from tests.contract.apiserver import Reply, Request, Server, gives, status, until
from tests.contract.controller_rig import Rig, at_50, threshold
from tests.contract.objectstore import CONFIGMAPS, EVENTS, NODES, NODESLOS, Store, config_map, node
from tests.contract.rbac import Rules

BOOTSTRAP = "kubectl apply --server-side -k deploy/bootstrap"

BE_AT_70 = {"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": 70}}
BE_AT_60 = {"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": 60}}
Start = Callable[..., Rig]


@pytest.fixture
def store(server: Server) -> Store:
    store = Store(server)
    for name in ("n1", "n2"):
        store.put(NODES, node(name, pool=name))
    store.put(CONFIGMAPS, config_map(resource_threshold_config=BE_AT_70))
    return store


@pytest.fixture
def start(kubeconfig: Path) -> Iterator[Start]:
    rigs: list[Rig] = []

    def _start(*, adopt: bool = False, dry_run: bool = False) -> Rig:
        rigs.append(Rig(kubeconfig, adopt=adopt, dry_run=dry_run))
        return rigs[-1]

    yield _start
    for rig in rigs:
        rig.close()


def strategy(store: Store, name: str) -> Any:
    return store.objects[NODESLOS][name]["spec"]["resourceUsedThresholdWithBE"]


def burst_policy(store: Store, name: str) -> Any:
    return store.objects[NODESLOS][name]["spec"]["cpuBurstStrategy"]["policy"]


def once(method: str, path: str, reply: Reply | None, effect: Callable[[], object]) -> Callable[..., Any]:
    """A fault of the first such request: `effect` happens, then `reply` answers; None: the store does."""
    left = [reply]

    def fault(request: Request) -> Reply | None:
        if left and request.method == method and request.path.startswith(path):
            left_reply = left.pop()
            effect()
            return left_reply
        return None

    return fault


def always(method: str, path: str, reply: Reply) -> Callable[[Request], Reply | None]:
    return lambda request: reply if request.method == method and request.path.startswith(path) else None


class TestObjects:
    def test_every_node_gets_its_nodeslo(self, store: Store, start: Start) -> None:
        rig = start()
        rig.settle()
        written = store.objects[NODESLOS]["n1"]
        assert written["spec"] == render_spec(
            store.objects[CONFIGMAPS]["slo-controller-config"]["data"], {"pool": "n1"}
        )
        assert written["metadata"]["labels"] == {MANAGED_BY: OURS}
        uid = store.objects[NODES]["n1"]["metadata"]["uid"]
        assert written["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid}
        ]
        assert [r.method for r in store.writes()] == ["POST", "POST"]
        assert rig.reasons == ()

    def test_the_next_controller_finds_nothing_to_write(self, store: Store, start: Start) -> None:
        first = start()
        first.settle()
        first.close()
        second = start()
        second.settle()
        assert len(store.writes()) == 2

    def test_without_a_configmap_there_are_the_defaults(self, store: Store, start: Start) -> None:
        store.remove(CONFIGMAPS, "slo-controller-config")
        start().settle()
        assert store.objects[NODESLOS]["n1"]["spec"] == render_spec({}, {})

    def test_an_edit_reaches_the_nodes_that_it_concerns(self, store: Store, start: Start) -> None:
        rig = start()
        rig.settle()
        mine = {
            "nodeStrategies": [{"nodeSelector": {"matchLabels": {"pool": "n2"}}, "memoryEvictThresholdPercent": 50}]
        }
        store.put(CONFIGMAPS, config_map(resource_threshold_config=BE_AT_70 | mine))
        rig.until(lambda: threshold(store, "n2") == 50, "the edit")
        rig.settle()
        assert threshold(store, "n1") == 70
        assert [r.path for r in store.writes()[2:]] == [f"{NODESLOS}/n2"]

    def test_a_label_of_the_node_counts(self, store: Store, start: Start) -> None:
        store.put(CONFIGMAPS, config_map(resource_threshold_config=BE_AT_70 | at_50(pool="x")))
        rig = start()
        rig.settle()
        store.put(NODES, node("n2", pool="x"))
        rig.until(lambda: threshold(store, "n2") == 50, "the label")
        assert threshold(store, "n1") == 70

    def test_heartbeats_are_no_news(self, store: Store, start: Start) -> None:
        rig = start()
        rig.settle()
        before = rig.source.state()
        store.put(NODES, node("n1", pool="n1") | {"status": {"conditions": [{"lastHeartbeatTime": "1"}]}})
        store.put(NODES, node("n3"))
        rig.until(lambda: "n3" in store.objects[NODESLOS], "the third node")
        kept = {each.name: each for each in rig.source.state().nodes}
        assert kept["n1"] is next(each for each in before.nodes if each.name == "n1")
        assert len(store.writes()) == 3

    def test_what_others_wrote_beside_the_spec_stays(self, store: Store, start: Start) -> None:
        rig = start()
        rig.settle()
        theirs = store.objects[NODESLOS]["n1"]
        theirs["metadata"]["labels"]["team"] = "web"
        theirs["metadata"]["annotations"] = {"note": "x"}
        theirs["metadata"]["finalizers"] = ["example.com/keep"]
        store.put(NODESLOS, theirs)
        store.put(CONFIGMAPS, config_map(resource_threshold_config=BE_AT_60))
        rig.until(lambda: threshold(store, "n1") == 60, "the edit")
        meta = store.objects[NODESLOS]["n1"]["metadata"]
        assert meta["labels"] == {MANAGED_BY: OURS, "team": "web"}
        assert meta["annotations"] == {"note": "x"}
        assert meta["finalizers"] == ["example.com/keep"]

    def test_a_nodeslo_outlives_its_node_until_it_is_collected(self, store: Store, start: Start) -> None:
        rig = start()
        rig.settle()
        store.remove(NODES, "n2")
        rig.until(lambda: rig.metrics.nodeslos["orphaned"] == 1, "the orphan")
        store.remove(NODESLOS, "n2")
        rig.until(lambda: rig.metrics.nodeslos["orphaned"] == 0, "the collection")
        assert len(store.writes()) == 2
        assert {r.method for r in store.server.requests} == {"GET", "POST"}

    def test_a_node_that_came_again_owns_it(self, store: Store, start: Start) -> None:
        rig = start()
        rig.settle()
        store.remove(NODES, "n2")
        uid = store.put(NODES, node("n2", pool="n2"))["metadata"]["uid"]
        rig.until(lambda: store.objects[NODESLOS]["n2"]["metadata"]["ownerReferences"][0]["uid"] == uid, "the owner")

    def test_a_nodeslo_that_is_deleted_comes_back(self, store: Store, start: Start) -> None:
        rig = start()
        rig.settle()
        store.remove(NODESLOS, "n1")
        rig.until(lambda: "n1" in store.objects[NODESLOS], "the NodeSLO")
        assert len(store.writes()) == 3


class TestOthers:
    @pytest.fixture
    def foreign(self, store: Store) -> dict[str, Any]:
        spec = {"resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 80}}
        return store.put(NODESLOS, {"metadata": {"name": "n1"}, "spec": spec})

    def test_nothing_is_written_while_a_manager_may_be_there(
        self, store: Store, start: Start, foreign: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        rig = start()
        rig.until(lambda: rig.metrics.nodeslos.get("foreign"), "the other's object")
        for _ in range(3):
            rig.controller.tick()
        assert store.writes() == []
        assert any("1 of 1 NodeSLOs, as n1, were made by another" in reason for reason in rig.reasons)
        assert sum("made by another" in message for message in caplog.messages) == 1
        store.remove(NODESLOS, "n1")
        rig.settle()
        assert rig.reasons == ()

    def test_adopt_takes_them_over(self, store: Store, start: Start, foreign: dict[str, Any]) -> None:
        rig = start(adopt=True)
        rig.settle()
        assert threshold(store, "n1") == 70
        assert store.objects[NODESLOS]["n1"]["metadata"]["uid"] == foreign["metadata"]["uid"]
        assert sorted(r.method for r in store.writes()) == ["POST", "PUT"]

    def test_what_another_changes_is_put_right_later_each_time(self, store: Store, start: Start) -> None:
        rig = start()
        rig.settle()
        writes = []
        for _ in range(3):
            theirs = store.objects[NODESLOS]["n1"]
            theirs["spec"] = {"resourceUsedThresholdWithBE": {"memoryEvictThresholdPercent": 99}}
            overwritten = rig.reconciler.overwritten
            store.put(NODESLOS, theirs)
            rig.until(lambda count=overwritten: rig.reconciler.overwritten > count, "the other's change")
            rig.controller.tick()
            assert threshold(store, "n1") == 99  # not at once
            rig.wait(2.0)
            rig.until(lambda: threshold(store, "n1") == 70, "ours again")
            writes.append(len(store.writes()))
        assert writes == [3, 4, 5]
        assert any("changed by another" in reason for reason in rig.reasons) is False

    def test_a_server_that_keeps_less_is_not_written_to_again_and_again(
        self, store: Store, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        keep = store._keep

        def prune(path: str, obj: dict[str, Any]) -> dict[str, Any]:
            if path == NODESLOS:
                obj = obj | {"spec": {k: v for k, v in obj["spec"].items() if k != "systemStrategy"}}
            return keep(path, obj)

        store._keep = prune  # type: ignore[method-assign]
        rig = start()
        rig.settle()
        for _ in range(5):
            rig.wait(60)
            rig.controller.tick()
        assert len(store.writes()) == 2
        assert sum("keeps another spec" in message for message in caplog.messages) == 2


class TestEdits:
    def test_a_key_that_is_wrong_stays_as_it_was_and_is_reported_once(
        self, store: Store, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        rig = start()
        rig.settle()
        store.put(
            CONFIGMAPS,
            config_map(
                resource_threshold_config={"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": 700}},
                cpu_burst_config={"clusterStrategy": {"policy": "auto"}},
            ),
        )
        rig.until(lambda: burst_policy(store, "n1") == "auto", "the good key")
        rig.until(lambda: store.objects[EVENTS], "the Event")
        for _ in range(3):
            rig.controller.tick()
        assert threshold(store, "n1") == 70
        (event,) = store.objects[EVENTS].values()
        assert event["reason"] == "SLOCfgInvalid"
        assert event["involvedObject"]["kind"] == "ConfigMap"
        assert event["involvedObject"]["uid"] == store.objects[CONFIGMAPS]["slo-controller-config"]["metadata"]["uid"]
        assert "memoryEvictThresholdPercent: 700: must be 0…100" in event["message"]
        assert "its last good value stays in force" in event["message"]
        assert sum("must be 0…100" in message for message in caplog.messages) == 1
        assert rig.metrics.configmap.problems == {"ConfigParamInvalid": 1}
        assert rig.metrics.configmap.stale_keys == ("resource-threshold-config",)
        assert rig.reasons == ()

        still_wrong = store.objects[CONFIGMAPS]["slo-controller-config"]["data"]["resource-threshold-config"]
        burst = {"clusterStrategy": {"policy": "cpuBurstOnly"}}
        store.put(CONFIGMAPS, config_map(resource_threshold_config=still_wrong, cpu_burst_config=burst))
        rig.until(lambda: burst_policy(store, "n1") == "cpuBurstOnly", "another good key")
        assert sum("must be 0…100" in message for message in caplog.messages) == 1
        assert len(store.objects[EVENTS]) == 1

        store.put(CONFIGMAPS, config_map(resource_threshold_config=BE_AT_60))
        rig.until(lambda: threshold(store, "n1") == 60, "the corrected edit")
        assert rig.metrics.configmap.problems == {}
        assert len(store.objects[EVENTS]) == 1

    def test_a_switch_that_stands_where_a_value_must_be_is_its_entrys_problem_alone(
        self, store: Store, start: Start
    ) -> None:
        rig = start()
        rig.settle()
        pool = {"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}, "cpuSuppressPolicy": {"policy": "none"}}
        config = {"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": 60}, "nodeStrategies": [pool]}
        store.put(NODES, node("n3", pool="a"))
        store.put(CONFIGMAPS, config_map(resource_threshold_config=config))
        rig.until(lambda: "n3" in store.objects[NODESLOS] and threshold(store, "n1") == 60, "the edit")
        rig.settle()
        assert [strategy(store, name)["enable"] for name in ("n1", "n3")] == [True, False]

    def test_two_unusable_edits_leave_off_what_the_first_switched_off_and_the_event_says_so(
        self, store: Store, start: Start
    ) -> None:
        rig = start()
        rig.settle()
        on = {"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": 60}}
        store.put(CONFIGMAPS, config_map(resource_threshold_config=on))
        rig.until(lambda: threshold(store, "n1") == 60, "the good edit")
        for count, switch in enumerate((True, False, "false"), start=1):
            edit = {"clusterStrategy": {"memoryEvictThresholdPercent": 700, "enable": switch}}
            store.put(CONFIGMAPS, config_map(resource_threshold_config=edit))
            rig.until(lambda wanted=count: len(store.objects[EVENTS]) == wanted, f"an Event for {switch}")
            rig.settle()
            assert strategy(store, "n1")["enable"] is (switch is True)
        said = ["but enable is off" in event["message"] for event in store.objects[EVENTS].values()]
        assert sorted(said) == [False, True, True]

    def test_what_is_no_json_has_koordinators_reason(self, store: Store, start: Start) -> None:
        rig = start()
        rig.settle()
        store.put(CONFIGMAPS, config_map(resource_threshold_config='{"clusterStrategy": '))
        rig.until(lambda: store.objects[EVENTS], "the Event")
        (event,) = store.objects[EVENTS].values()
        assert event["reason"] == "SLOCfgUnmarshalFailed"
        assert len(store.writes()) == 2

    def test_after_a_restart_nodeslos_keep_what_they_have_of_a_wrong_key(self, store: Store, start: Start) -> None:
        first = start()
        first.settle()
        first.close()
        store.put(
            CONFIGMAPS,
            config_map(resource_threshold_config="{", cpu_burst_config={"clusterStrategy": {"policy": "auto"}}),
        )
        store.put(NODES, node("n3"))
        second = start()
        second.until(lambda: second.metrics.nodeslos.get("settled") == 3, "three NodeSLOs")
        assert threshold(store, "n1") == 70
        assert store.objects[NODESLOS]["n1"]["spec"]["cpuBurstStrategy"]["policy"] == "auto"
        assert store.objects[NODESLOS]["n3"]["spec"]["resourceUsedThresholdWithBE"]["enable"] is False

    @pytest.mark.parametrize(
        ("percent", "fates"),
        [
            (50, ["memoryEvictThresholdPercent must be greater than memoryEvictLowerPercent (60)", "it is in force"]),
            ("50", ["its last good value stays in force", "its nodes keep what they have, but enable is off, and new"]),
        ],
    )
    def test_a_pool_that_is_off_stays_off_whatever_is_wrong_and_after_a_restart(
        self, percent: Any, fates: list[str], store: Store, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        pool = {"name": "off", "nodeSelector": {"matchLabels": {"pool": "off"}}, "enable": False}
        pool["memoryEvictThresholdPercent"] = 50
        cluster = {"enable": True, "memoryEvictThresholdPercent": 70}
        store.put(NODES, node("n3", pool="off"))
        config = {"clusterStrategy": cluster, "nodeStrategies": [pool]}
        store.put(CONFIGMAPS, config_map(resource_threshold_config=config))
        first = start()
        first.settle()
        cluster["memoryEvictLowerPercent"], pool["memoryEvictThresholdPercent"] = 60, percent
        store.put(CONFIGMAPS, config_map(resource_threshold_config=config))
        first.until(lambda: strategy(store, "n1").get("memoryEvictLowerPercent") == 60, "the edit")
        assert strategy(store, "n3")["enable"] is False
        first.close()
        second = start()
        store.put(NODES, node("n4", pool="off"))
        second.until(lambda: "n4" in store.objects[NODESLOS], "the new Node's")
        second.settle()
        assert [strategy(store, name)["enable"] for name in ("n1", "n3", "n4")] == [True, False, False]
        for fate in fates:
            assert any("nodeStrategies[0] (off)" in each and fate in each for each in caplog.messages)
        assert any(fates[0] in event["message"] for event in store.objects[EVENTS].values())
        rendered = render_spec(store.objects[CONFIGMAPS]["slo-controller-config"]["data"], {"pool": "off"})
        assert rendered["resourceUsedThresholdWithBE"] == strategy(store, "n4")

    def test_after_a_restart_the_nodes_of_an_unusable_entry_keep_what_they_have(
        self, store: Store, start: Start
    ) -> None:
        pool = {"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}, "memoryEvictThresholdPercent": 55}
        store.put(NODES, node("n3", pool="a"))
        store.put(CONFIGMAPS, config_map(resource_threshold_config={**BE_AT_70, "nodeStrategies": [pool]}))
        first = start()
        first.settle()
        first.close()
        pool["memoryEvictThresholdPercent"] = 550
        store.put(CONFIGMAPS, config_map(resource_threshold_config={**BE_AT_60, "nodeStrategies": [pool]}))
        store.put(NODES, node("n4", pool="a"))
        second = start()
        second.until(lambda: "n4" in store.objects[NODESLOS] and threshold(store, "n1") == 60, "the new one")
        second.settle()
        assert threshold(store, "n3") == 55
        assert store.objects[NODESLOS]["n4"]["spec"]["resourceUsedThresholdWithBE"]["enable"] is False

    def test_the_next_leader_does_not_tell_it_again(self, store: Store, start: Start) -> None:
        store.put(CONFIGMAPS, config_map(resource_threshold_config="{"))
        for _ in range(2):
            rig = start()
            rig.until(lambda: store.writes(EVENTS), "the Event")
            rig.settle()
            rig.close()
        assert len(store.objects[EVENTS]) == 1

    def test_an_event_that_cannot_be_recorded_does_not_stop_it(self, store: Store, start: Start) -> None:
        store.faults.append(always("POST", EVENTS, gives(503, b"")))
        store.put(CONFIGMAPS, config_map(resource_threshold_config="{", cpu_burst_config={}))
        rig = start()
        rig.settle()
        for _ in range(5):
            rig.controller.tick()
        assert len(store.writes(EVENTS)) == 1  # and again in half a minute


class TestFaults:
    def test_a_conflict_is_tried_again_on_what_is_newer(self, store: Store, start: Start) -> None:
        rig = start()
        rig.settle()

        def annotate() -> None:
            theirs = store.objects[NODESLOS]["n1"]
            store.put(NODESLOS, theirs | {"metadata": theirs["metadata"] | {"annotations": {"note": "x"}}})

        store.faults.append(once("PUT", f"{NODESLOS}/n1", None, annotate))
        store.put(CONFIGMAPS, config_map(resource_threshold_config=BE_AT_60))
        rig.until(lambda: rig.reconciler.tally.conflicts, "the conflict")
        until(lambda: any(each.metadata.annotations for each in rig.source.state().nodeslos), "the watch's newer one")
        rig.wait(1.0)
        rig.until(lambda: threshold(store, "n1") == 60, "the write")
        assert store.objects[NODESLOS]["n1"]["metadata"]["annotations"] == {"note": "x"}
        assert threshold(store, "n2") == 60
        assert len(store.writes()) == 2 + 3

    @pytest.mark.parametrize("is_shown", [True, False], ids=["newer", "no news"])
    def test_after_a_conflict_it_waits_for_the_watch(self, is_shown: bool, store: Store, start: Start) -> None:
        rig = start()
        rig.settle()
        conflict = gives(409, status(409, "Conflict", "the object has been modified"))
        store.faults.append(once("PUT", f"{NODESLOS}/n1", conflict, lambda: None))
        store.put(CONFIGMAPS, config_map(resource_threshold_config=BE_AT_60))
        rig.until(lambda: rig.reconciler.tally.conflicts, "the conflict")
        rig.until(lambda: threshold(store, "n2") == 60, "the other's write")
        writes = len(store.writes())
        rig.wait(5.0)
        for _ in range(5):
            rig.controller.tick()
        assert len(store.writes()) == writes
        if is_shown:
            theirs = store.objects[NODESLOS]["n1"]
            store.put(NODESLOS, theirs | {"metadata": theirs["metadata"] | {"annotations": {"note": "x"}}})
        else:
            rig.wait(31.0)
        rig.until(lambda: threshold(store, "n1") == 60, "the write")
        assert store.objects[NODESLOS]["n1"]["metadata"].get("annotations") == ({"note": "x"} if is_shown else None)
        assert rig.reconciler.tally.conflicts == 1

    @pytest.mark.parametrize(
        "reply",
        [
            gives(500, status(500, "InternalError", "etcd")),
            gives(503, b"", Retry_After="1"),
            gives(429, b"", Retry_After="1"),
            lambda exchange: exchange.cut(),
        ],
        ids=["500", "503", "429", "cut"],
    )
    def test_a_server_in_trouble_is_not_asked_in_a_loop(self, reply: Reply, store: Store, start: Start) -> None:
        trouble = always("POST", NODESLOS, reply)
        store.faults.append(trouble)
        rig = start()
        rig.until(lambda: rig.reconciler.tally.failures, "the first failure")
        for _ in range(20):
            rig.controller.tick()
        assert len(store.writes()) == 1
        assert any("create nodeslos" in reason for reason in rig.reasons)
        rig.wait(3.0)
        rig.until(lambda: rig.reconciler.tally.failures == 2, "the second")
        store.faults.remove(trouble)
        rig.wait(3.0)
        rig.settle()
        assert rig.reasons == ()

    def test_one_object_that_fails_does_not_hold_up_the_others(self, store: Store, start: Start) -> None:
        def refuse(request: Request) -> Reply | None:
            is_n1 = request.method == "POST" and b'"name":"n1"' in request.body
            return gives(422, status(422, "Invalid", "spec is odd")) if is_n1 else None

        store.faults.append(refuse)
        rig = start()
        rig.until(lambda: "n2" in store.objects[NODESLOS], "the other")
        assert any("spec is odd" in reason for reason in rig.reasons)

    def test_an_internal_error_of_one_object_does_not_hold_up_the_others(self, store: Store, start: Start) -> None:
        def fail(request: Request) -> Reply | None:
            is_n1 = request.method == "POST" and b'"name":"n1"' in request.body
            return gives(500, status(500, "InternalError", "a webhook failed")) if is_n1 else None

        store.faults.append(fail)
        rig = start()
        for _ in range(10):
            rig.until(lambda: rig.reconciler.tally.failures, "a failure")
            rig.wait(0.6)
        rig.until(lambda: "n2" in store.objects[NODESLOS], "the other")

    def test_a_nodeslo_that_cannot_be_made_does_not_hold_up_the_others(
        self, store: Store, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def failing(of: NodeMeta, *others: Any) -> NodeSLO:
            if of.name == "n1":
                raise RecursionError("too deep")
            return desired_nodeslo(of, *others)

        with monkeypatch.context() as patched:
            patched.setattr("koordebpf.controller.reconcile.desired_nodeslo", failing)
            rig = start()
            rig.until(lambda: "n2" in store.objects[NODESLOS], "the other Node's")
            assert "n1" not in store.objects[NODESLOS]
            assert rig.metrics.nodeslos["pending"] == 1
            assert rig.reasons == ("NodeSLO n1 cannot be made: RecursionError: too deep",)
        rig.until(lambda: "n1" in store.objects[NODESLOS], "the Node's")
        rig.settle()
        assert rig.reasons == ()

    def test_watches_that_end_and_expire(self, store: Store, start: Start) -> None:
        rig = start()
        rig.settle()
        for percent, forget in ((60, False), (55, True), (50, False), (45, True)):
            store.end_watches(forget=forget)
            strategy = {"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": percent}}
            store.put(CONFIGMAPS, config_map(resource_threshold_config=strategy))
            rig.until(lambda wanted=percent: threshold(store, "n1") == threshold(store, "n2") == wanted, "the edit")
        assert len(store.writes()) == 2 + 2 * 4

    def test_another_was_faster_to_create(self, store: Store, start: Start) -> None:
        twin = store.put(NODESLOS, {"metadata": {"name": "n1", "labels": {MANAGED_BY: OURS}}, "spec": {}})
        store.remove(NODESLOS, "n1")
        exists = gives(409, status(409, "AlreadyExists", "n1 already exists"))
        store.faults.append(once("POST", NODESLOS, exists, lambda: store.put(NODESLOS, twin)))
        rig = start()
        rig.until(lambda: rig.reconciler.tally.conflicts, "the conflict")
        until(lambda: any(each.metadata.name == "n1" for each in rig.source.state().nodeslos), "the watch's newer one")
        rig.wait(1.0)
        rig.settle()
        assert threshold(store, "n1") == 70

    def test_a_cluster_without_the_crd(self, store: Store, start: Start) -> None:
        missing = lambda request: gives(404, b"") if request.path.startswith(NODESLOS) else None  # noqa: E731
        store.faults.append(missing)
        rig = start()
        rig.until(
            lambda: any(
                all(part in reason for part in ("does not serve NodeSLO", BOOTSTRAP)) for reason in rig.reasons
            ),
            "the complaint",
        )
        assert store.writes() == []
        store.faults.remove(missing)
        rig.settle()

    def test_it_writes_no_more_once_it_leads_no_more(self, store: Store, start: Start) -> None:
        rig = start()
        rig.leads = False
        rig.until(lambda: rig.source.state().is_synced, "the lists")
        rig.controller.tick()
        assert store.writes() == []
        rig.leads = True
        store.faults.append(lambda request: setattr(rig, "leads", False) if request.method == "POST" else None)
        rig.controller.tick()
        assert len(store.writes()) == 1  # of two: the first took the lease away


class TestDryRun:
    def test_it_reports_and_writes_nothing(self, store: Store, start: Start, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        store.put(CONFIGMAPS, config_map(resource_threshold_config=BE_AT_70, cpu_burst_config="{"))
        rig = start(dry_run=True)
        rig.until(lambda: rig.metrics.nodeslos.get("pending") == 2, "two to write")
        for _ in range(3):
            rig.controller.tick()
        would = [message for message in caplog.messages if message.startswith("would create NodeSLO n1: ")]
        assert len(would) == 1
        assert (
            json.loads(would[0].partition(": ")[2])["resourceUsedThresholdWithBE"]["memoryEvictThresholdPercent"] == 70
        )
        assert {r.method for r in store.server.requests} == {"GET"}


class TestRights:
    def exercise(self, store: Store, rig: Rig) -> None:
        """Create, update and say what is wrong."""
        store.put(CONFIGMAPS, config_map(resource_threshold_config=BE_AT_70, cpu_burst_config="{"))
        rig.until(lambda: store.objects[EVENTS] or store.denied, "the Event")
        rig.until(lambda: len(store.objects[NODESLOS]) == 2 or store.denied, "the NodeSLOs")
        store.put(CONFIGMAPS, config_map(resource_threshold_config=BE_AT_60))
        rig.until(lambda: store.denied or (threshold(store, "n1") == threshold(store, "n2") == 60), "the edit")

    def test_those_of_deploy_are_enough(self, store: Store, start: Start) -> None:
        store.rules = Rules("koordebpf-controller")
        self.exercise(store, start())
        assert store.denied == []

    @pytest.mark.parametrize(
        "without", sorted(pair for pair in Rules("koordebpf-controller").granted() if pair[0] != "leases"), ids=str
    )
    def test_each_of_them_is_needed_and_its_lack_is_said(
        self, without: tuple[str, str], store: Store, start: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.rules = Rules("koordebpf-controller", without)
        self.exercise(store, rig := start())
        assert set(store.denied) == {without}
        resource, verb = without
        rig.until(lambda: f"needs RBAC verb {verb} on {resource}" in caplog.text, "what is missing")
        if verb in ("create", "update"):
            for _ in range(20):
                rig.controller.tick()
            assert store.denied == [without]  # asked once, and not again before the permission can have been added
