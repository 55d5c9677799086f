"""The NodeResourceTopology that an agent writes: when it is sent, what of it others keep, and when it is left alone."""

from __future__ import annotations

import json
import logging
import threading
import types
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koordebpf.collect.cluster_view import ClusterView as Cluster
from koordebpf.collect.cpu.collector import CpuManagerReader
from koordebpf.collect.cpu.kubelet_cpus import KubeletCpus
from koordebpf.jobs.node_topology.merge import difference
from koordebpf.jobs.node_topology.publish import Noted, TopologyReporter
from koordebpf.jobs.node_topology.report import TopologyInput, topology_report
from koordebpf.jobs.node_topology.run import NodeInfoReader, NodeSources, TopologyJob
from koordebpf.kernel.cgroup.files import parse_cpu_list
from koordebpf.kube.cache.objects import ClusterState, Node, NodeResourceTopology, Pod
from koordebpf.kube.colocation.node_topologies import TOPOLOGIES_PATH, NodeTopologies
from koordebpf.kube.http.transport import open_cluster
from koordebpf.slo.pods.cpu_placement import MANAGER_POLICY_ANNOTATION, POD_ALLOCATIONS_ANNOTATION, node_cpus
from koordebpf.slo.pods.resource_status import SHARED_POOLS_ANNOTATION
from koordebpf.state.pods.facts import PodFacts, pod_facts
from koordebpf.state.series.store import node_series
from tests.contract.apiserver import Reply, Request, Server, gives, hold_open, let_it_spin, status, until
from tests.contract.objectstore import Store

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NODE = msgspec.convert({"metadata": {"name": "n1", "uid": "uid-n1"}}, Node)
CONFIGZ = {"kubeletconfig": {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0", "port": 10250}}

Open = Callable[..., TopologyReporter]


@pytest.fixture
def store(server: Server) -> Store:
    made = Store(server)
    made.objects[TOPOLOGIES_PATH] = {}
    return made


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reporter(kubeconfig: Path, clock: Clock) -> Iterator[Open]:
    opened: list[TopologyReporter] = []

    def open_it(*, acts: bool = True, asks_kubelet: bool = False) -> TopologyReporter:
        sources = NodeSources(NodeInfoReader(), open_cluster(kubeconfig) if asks_kubelet else None)
        topologies = NodeTopologies(open_cluster(kubeconfig), "n1") if acts else None
        opened.append(TopologyReporter(sources, topologies, clock, apart_s=0.001))
        return opened[-1]

    yield open_it
    for each in opened:
        each.close()


def pod(name: str, cpuset: str = "", namespace: str = "default", **labels: str) -> PodFacts:
    status = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": cpuset})}
    meta = {"name": name, "namespace": namespace, "uid": name, "labels": labels, "annotations": status}
    request = {"cpu": str(len(parse_cpu_list(cpuset, "cpuset")))}
    spec = {"containers": [{"name": "main", "resources": {"requests": request}}]}
    return pod_facts(msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": "Running"}}, Pod))


def kept(store: Store) -> Any:
    return store.objects[TOPOLOGIES_PATH].get("n1")


def writes(store: Store) -> int:
    return len(store.writes(TOPOLOGIES_PATH))


def reads(server: Server) -> int:
    return sum(each.method == "GET" and each.path.startswith(TOPOLOGIES_PATH) for each in list(server.requests))


def test_it_is_made_where_there_is_none_and_written_again_when_it_is_to_say_something_else(
    store: Store, server: Server, reporter: Open
) -> None:
    one = reporter()
    one.set_input(Noted(NODE))
    until(lambda: kept(store), "the object")
    info = NodeInfoReader().read()
    assert info is not None
    assert difference(kept(store), topology_report(TopologyInput(info, NODE))) is None
    before = reads(server)
    for _ in range(3):
        one.set_input(Noted(NODE, (pod("a"),)))
        let_it_spin()
    # What it is to say is the same: neither written nor read.
    assert (writes(store), reads(server)) == (1, before)
    one.set_input(Noted(NODE, (pod("a", "0"),)))
    until(lambda: writes(store) == 2, "the second write")
    pools = json.loads(kept(store)["metadata"]["annotations"][SHARED_POOLS_ANNOTATION]) or []
    assert all("0" not in each["cpuset"].split(",") for each in pools)


def test_one_that_says_it_already_is_not_written(store: Store, reporter: Open, server: Server) -> None:
    reporter().set_input(Noted(NODE))
    until(lambda: kept(store), "the object")
    another = reporter()
    before = reads(server)
    another.set_input(Noted(NODE))
    until(lambda: reads(server) > before, "the look")
    let_it_spin()
    assert writes(store) == 1


def test_what_another_changes_is_brought_back_and_what_another_adds_is_kept(store: Store, reporter: Open) -> None:
    one = reporter()
    one.set_input(Noted(NODE))
    until(lambda: kept(store), "the object")
    changed = json.loads(json.dumps(kept(store)))
    changed["metadata"]["annotations"][SHARED_POOLS_ANNOTATION] = "[]"
    batch = {"name": "kubernetes.io/batch-cpu", "capacity": "1k", "allocatable": "1k", "available": "1k"}
    changed["zones"][0]["resources"].append(batch)
    store.put(TOPOLOGIES_PATH, changed)
    seen = msgspec.convert(
        {"metadata": {"name": "n1", "annotations": {SHARED_POOLS_ANNOTATION: "[]"}}}, NodeResourceTopology
    )
    one.set_input(Noted(NODE, (), seen))
    until(lambda: kept(store)["metadata"]["annotations"][SHARED_POOLS_ANNOTATION] != "[]", "what it is to say")
    assert batch in kept(store)["zones"][0]["resources"]


def test_its_own_write_as_the_watch_shows_it_is_no_news(store: Store, server: Server, reporter: Open) -> None:
    one = reporter()
    one.set_input(Noted(NODE))
    until(lambda: kept(store), "the object")
    seen = msgspec.convert(kept(store), NodeResourceTopology)
    before = reads(server)
    one.set_input(Noted(NODE, (), seen))
    let_it_spin()
    assert (writes(store), reads(server)) == (1, before)


def test_what_it_wrote_reads_back_without_a_problem_and_reserves_nothing(store: Store, reporter: Open) -> None:
    reporter().set_input(Noted(NODE))
    until(lambda: kept(store), "the object")
    said = node_cpus(None, kept(store)["metadata"]["annotations"])
    assert (said.problems, said.reserved_cpus, said.pinned, said.system_cpus) == ((), (), {}, ())


def test_one_that_another_changed_meanwhile_is_read_again(store: Store, reporter: Open, server: Server) -> None:
    one = reporter()
    one.set_input(Noted(NODE))
    until(lambda: kept(store), "the object")
    conflicts = iter([gives(409, status(409, "Conflict", "the object has been modified"))])
    store.faults.append(lambda request: next(conflicts, None) if request.method == "PUT" else None)
    one.set_input(Noted(NODE, (pod("a", "0"),)))
    until(lambda: writes(store) == 3, "the try that conflicts and the next one")
    assert one.problem is None


def test_the_job_notes_what_changed_and_what_kubelet_bound(
    store: Store, reporter: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[Noted] = []
    one = reporter()
    monkeypatch.setattr(one, "set_input", notes.append)
    known, state = Cluster(), tmp_path / "cpu_manager_state"
    job = TopologyJob(known, one, CpuManagerReader(state, None), KubeletCpus(tmp_path / "none"))
    series = node_series()
    job.collect(0, series)
    assert notes == []  # nothing is known of the cluster
    known.learn(ClusterState(version=1, synced_at_ns=1, node=NODE))
    for _ in range(3):
        job.collect(0, series)
    assert notes == [Noted(NODE)]
    state.write_text('{"policyName": "static", "defaultCpuSet": "1", "entries": {"a": {"c": "0"}}}')
    for _ in range(3):
        job.collect(0, series)
    assert [each.manager and each.manager.pinned for each in notes] == [None, {"a": (0,)}]
    known.learn(ClusterState(version=2, synced_at_ns=2, node=NODE, pods=(pod("a").pod,)))
    job.collect(0, series)
    assert [each.uid for each in notes[-1].pods] == ["a"]
    job.close()


def test_a_dry_run_sends_nothing_and_says_what_it_would_write(
    store: Store, server: Server, reporter: Open, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        reporter(acts=False).set_input(Noted(NODE))
        until(lambda: "is not written; it would have node-0" in caplog.text, "the sentence")
    assert server.requests == []


def test_without_the_right_it_says_which(store: Store, reporter: Open, caplog: pytest.LogCaptureFixture) -> None:
    no = gives(403, status(403, "Forbidden", "no", name="n1", kind="noderesourcetopologies"))
    store.faults.append(lambda request: no if request.method == "POST" else None)
    one = reporter()
    one.set_input(Noted(NODE))
    until(lambda: "allow create on noderesourcetopologies" in caplog.text, "the sentence")
    one.set_input(Noted(NODE, (pod("a", "0"),)))
    let_it_spin()
    assert writes(store) == 1
    assert caplog.text.count("allow create") == 1


@pytest.mark.parametrize("is_noted", [False, True])
@pytest.mark.parametrize(
    ("reply", "at_least_s", "at_most_s", "said"),
    [
        (gives(429, status(429, "TooManyRequests", "busy"), **{"Retry-After": "40"}), 40.0, 50.0, 1),
        (gives(429, status(429, "TooManyRequests", "busy")), 0.5, 1.0, 1),
        (gives(409, status(409, "Conflict", "modified")), 0.5, 1.0, 0),  # another wrote first, which is no news
        (gives(403, status(403, "Forbidden", "no")), 15.0, 30.0, 1),
    ],
)
def test_after_a_refusal_it_waits_once_for_as_long_as_it_was_asked_to_and_says_it_once(
    reply: Reply,
    at_least_s: float,
    at_most_s: float,
    said: int,
    is_noted: bool,
    store: Store,
    reporter: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    happened: list[float | str] = []

    class Quick(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            happened.append(timeout or 0.0)
            return super().wait(0.01)

    def refuses_twice(request: Request) -> Reply | None:
        happened.append("asked")
        if happened.count("asked") > 2:
            return None
        if is_noted:
            one.set_input(Noted(NODE, (pod("a"),)))
        return reply

    threads = types.SimpleNamespace(Event=Quick, Thread=threading.Thread)
    monkeypatch.setattr("koordebpf.jobs.node_topology.publish.threading", threads)
    one = reporter()
    store.faults.append(refuses_twice)
    one.set_input(Noted(NODE))
    until(lambda: kept(store), "the object")
    first = happened.index("asked")
    waited = happened[first + 1 : happened.index("asked", first + 1)]
    assert at_least_s <= sum(map(float, waited)) <= at_most_s
    assert caplog.text.count("cannot be reported") == said
    until(lambda: one.problem is None, "no problem is left")


def test_a_request_that_is_cut_by_its_end_is_no_problem(
    server: Server, reporter: Open, caplog: pytest.LogCaptureFixture
) -> None:
    server.on(f"{TOPOLOGIES_PATH}/n1", hold_open)
    one = reporter()
    one.set_input(Noted(NODE))
    until(lambda: server.requests, "the request")
    one.close()
    assert (one.problem, caplog.text) == (None, "")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"spec": {}}', b'{"metadata": []}'])
def test_an_answer_that_is_no_such_object_is_refused(
    body: bytes, server: Server, reporter: Open, caplog: pytest.LogCaptureFixture
) -> None:
    server.on(f"{TOPOLOGIES_PATH}/n1", gives(200, body))
    reporter().set_input(Noted(NODE))
    until(lambda: "the answer is not a NodeResourceTopology" in caplog.text, "the sentence")
    assert all(each.method == "GET" for each in server.requests)


def written_by_koordlet(at: datetime) -> dict[str, Any]:
    entry = {"manager": "koordlet", "operation": "Update", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
    return {"metadata": {"name": "n1", "managedFields": [entry]}, "topologyPolicies": ["None"], "zones": []}


def test_while_koordlet_runs_on_the_node_its_object_is_left_alone(
    store: Store, server: Server, reporter: Open, caplog: pytest.LogCaptureFixture
) -> None:
    one = reporter()
    koordlet = pod("koordlet-x", namespace="koordinator-system", **{"koord-app": "koordlet"})
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            one.set_input(Noted(NODE, (koordlet,)))
            let_it_spin()
        assert server.requests == []
        assert caplog.text.count("pod koordinator-system/koordlet-x keeps the NodeResourceTopology") == 1
        # A tenant's pod with the label changes nothing.
        one.set_input(Noted(NODE, (pod("mine", **{"koord-app": "koordlet"}),)))
        until(lambda: kept(store), "the object")
    assert "koordlet no longer keeps" in caplog.text


def test_one_that_koordlet_wrote_lately_is_left_alone_and_an_older_one_is_taken_over(
    store: Store, server: Server, reporter: Open, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(TOPOLOGIES_PATH, written_by_koordlet(NOW - timedelta(minutes=14)))
    one = reporter()
    one.set_input(Noted(NODE))
    until(lambda: "koordlet wrote the NodeResourceTopology of this node at 2026-01-02" in caplog.text, "the sentence")
    let_it_spin()
    assert writes(store) == 0
    clock.now += timedelta(minutes=2)
    one.set_input(Noted(NODE))
    until(lambda: writes(store) == 1, "the write")


def test_where_koordlet_writes_over_it_the_pauses_become_longer(store: Store, reporter: Open, clock: Clock) -> None:
    one = reporter()
    for pause_min in (15, 30, 60):
        store.put(TOPOLOGIES_PATH, written_by_koordlet(clock.now))
        clock.now += timedelta(minutes=pause_min, seconds=-1)
        before = writes(store)
        seen = msgspec.convert(kept(store), NodeResourceTopology)
        one.set_input(Noted(NODE, (), seen))
        let_it_spin()
        assert writes(store) == before
        clock.now += timedelta(seconds=2)
        one.set_input(Noted(NODE, (), seen))
        until(lambda before=before: writes(store) == before + 1, f"the write after {pause_min} min")
        clock.now += timedelta(seconds=3)


def test_kubelets_configuration_is_asked_and_its_last_answer_stays(
    store: Store, server: Server, reporter: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("koordebpf.jobs.node_topology.run._CONFIG_AGAIN_S", 0.0)
    server.on("/configz", gives(200, CONFIGZ))
    one = reporter(asks_kubelet=True)
    one.set_input(Noted(NODE))
    until(lambda: kept(store), "the object")
    expected = {"policy": "static", "reservedCPUs": "0"}
    assert json.loads(kept(store)["metadata"]["annotations"][MANAGER_POLICY_ANNOTATION]) == expected
    server.on("/configz", gives(500, b"no"))
    one.set_input(Noted(NODE, (pod("a", "0"),)))
    until(lambda: writes(store) == 2, "the second write")
    assert json.loads(kept(store)["metadata"]["annotations"][MANAGER_POLICY_ANNOTATION]) == expected
    assert "the report rests on what it said last" in caplog.text


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (gives(403, status(403, "Forbidden", "no")), "needs RBAC verb get on nodes/configz"),
        (gives(200, b"{}"), "the answer is not kubelet's configuration"),
        (gives(200, {"kubeletconfig": {"cpuManagerPolicy": 7}}), "the answer is not kubelet's configuration"),
    ],
)
def test_without_kubelets_configuration_its_file_is_what_is_known(
    reply: Any,
    said: str,
    store: Store,
    server: Server,
    reporter: Open,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = {"policyName": "static", "defaultCpuSet": "1", "entries": {"a": {"c": "0"}}}
    (tmp_path / "cpu_manager_state").write_text(json.dumps(state))
    server.on("/configz", reply)
    manager = CpuManagerReader(tmp_path / "cpu_manager_state", None).read()
    reporter(asks_kubelet=True).set_input(Noted(NODE, (pod("a"),), manager=manager))
    until(lambda: kept(store), "the object")
    annotations = kept(store)["metadata"]["annotations"]
    assert json.loads(annotations[MANAGER_POLICY_ANNOTATION]) == {"policy": "static"}
    assert json.loads(annotations[POD_ALLOCATIONS_ANNOTATION])[0]["cpuset"] == "0"
    assert said in caplog.text
    assert "the report rests on its file cpu_manager_state alone" in caplog.text
