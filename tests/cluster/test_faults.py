"""Faults on the way to a real API server, with figures: what was tried, what survived, what was lost."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.api import ApiExecutor
from koordebpf.kube.clients.evictions import KubeActions
from koordebpf.kube.http.transport import open_cluster
from koordebpf.kube.sources.api import ApiSource
from koordebpf.policy.plan import Candidate, Holding, Victim
from koordebpf.state.amount import MEMORY
from koordebpf.state.outcome import Result
from koordebpf.units import NS_PER_S
from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import nodeslo, pod, running
from tests.cluster.troubled_wire import TroubledWire
from tests.contract.apiserver import until
from tests.support.patience import patience

# How long a fault lasts; with 60 the figures are those of an outage.
FAULT_S = float(os.environ.get("KOORDEBPF_FAULT_S", "8"))
PODS = 20
FLAPS = 20


@pytest.fixture
def wire(cluster: ControlPlane) -> Iterator[TroubledWire]:
    with TroubledWire(cluster.url, cluster.authority.certificate) as wire:
        yield wire


def by_way_of(wire: TroubledWire, kubeconfig: Path, path: Path) -> Path:
    """Write the same credentials for the troubled wire."""
    config = json.loads(kubeconfig.read_text())
    config["clusters"][0]["cluster"] = {"server": wire.url}
    path.write_text(json.dumps(config))
    return path


def running_pod(cluster: ControlPlane, name: str, node_name: str, namespace: str) -> Object:
    made = cluster.api.create(pod(name, node_name, namespace=namespace))
    return cluster.api.patch(made, {"status": running(made, secrets.token_hex(32))}, "status")


def tell(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with capsys.disabled():
        print(f"\n  {text}")


def victim(one: Object) -> Victim:
    metadata = one["metadata"]
    candidate = Candidate(
        rank=1, uid=metadata["uid"], namespace=metadata["namespace"], name=metadata["name"], cgroup_id=1,
        priority=5000, holdings=(Holding(MEMORY, 1, 1),), koordinator_credit_bytes=1,
    )  # fmt: skip
    return Victim(candidate=candidate, reason="evicted", message="m")


class Evictions:
    """Evictions by way of one wire, asked for again when their executor says so."""

    def __init__(self, wire: TroubledWire, kubeconfig: Path, pods: list[Object]) -> None:
        self.wire = wire
        self._outcomes = OutcomeQueue(lambda: None)
        self._executor = ApiExecutor(KubeActions(open_cluster(kubeconfig), "n"), self._outcomes, enforce=True)
        self._victims = {each["metadata"]["uid"]: victim(each) for each in pods}
        self.due_ns = dict.fromkeys(self._victims, 0)  # of those that still run

    def round(self) -> None:
        """Do what the agent's rounds do: retry the evictions that may be retried."""
        now_ns = time.monotonic_ns()
        for uid, due_ns in self.due_ns.items():
            if now_ns >= due_ns and self._executor.submit(self._victims[uid], now_ns).result is Result.SENT:
                self.due_ns[uid] = now_ns + 600 * NS_PER_S
        for outcome in self._outcomes.drain():
            if outcome.result is Result.DONE:
                del self.due_ns[outcome.uid]
            else:
                assert outcome.retry_at_ns is not None
                self.due_ns[outcome.uid] = outcome.retry_at_ns

    def close(self) -> None:
        self._executor.close()


@pytest.mark.slow
def test_no_eviction_is_lost_or_done_twice_while_the_server_answers_with_errors(
    cluster, agent_kubeconfig, node_name, namespace, tmp_path, capsys
):
    with contextlib.ExitStack() as stack:
        runs: dict[int, Evictions] = {}
        for status in (429, 500, 503):
            wire = stack.enter_context(TroubledWire(cluster.url, cluster.authority.certificate))
            wire.answer = status
            pods = [running_pod(cluster, f"p{status}-{n}", node_name, namespace) for n in range(PODS)]
            path = by_way_of(wire, agent_kubeconfig, tmp_path / f"{status}.kubeconfig")
            runs[status] = Evictions(wire, path, pods)
            stack.callback(runs[status].close)
        ends = time.monotonic() + FAULT_S
        gives_up = ends + patience(90)
        while any(run.due_ns for run in runs.values()) and time.monotonic() < gives_up:
            for run in runs.values():
                if time.monotonic() > ends:
                    run.wire.answer = None
                run.round()
            time.sleep(0.01)
    accepted = [each["objectRef"]["name"] for each in cluster.requests() if is_eviction(each, namespace)]
    for status, run in runs.items():
        done = [name for name in accepted if name.startswith(f"p{status}-")]
        tell(
            capsys,
            f"{status} for {FAULT_S:.0f} s: {PODS} evictions tried, {run.wire.counts[status]} requests refused,"
            f" {len(done)} done, {len(run.due_ns)} lost, {len(done) - len(set(done))} twice",
        )
    assert sorted(accepted) == sorted(f"p{status}-{n}" for status in runs for n in range(PODS))
    # Rounds that back-off leaves in the time, and for 500, whose outcome is unknown, four tries in each.
    for status, run in runs.items():
        assert run.wire.counts[status] <= PODS * 8 * (4 if status == 500 else 1)


def is_eviction(request: Object, namespace: str) -> bool:
    """Tell whether a request was an eviction in this namespace that the API server accepted."""
    of = request["objectRef"]
    return (of.get("subresource"), of.get("namespace")) == ("eviction", namespace) and (
        request["responseStatus"]["code"] == 201
    )


@pytest.mark.slow
def test_what_is_seen_is_true_after_watches_that_are_cut_and_events_that_come_thrice(
    cluster, wire, agent_kubeconfig, node_name, namespace, tmp_path, capsys
):
    wire.watch_s, wire.repeats = 1.0, 3
    source = ApiSource(open_cluster(by_way_of(wire, agent_kubeconfig, tmp_path / "kubeconfig")), node_name)
    versions: list[int] = []
    source.start(lambda: versions.append(source.state().version))
    changes = 0
    ends = time.monotonic() + FAULT_S
    try:
        while time.monotonic() < ends:
            one = cluster.api.create(pod(f"p{changes}", node_name, namespace=namespace))
            cluster.api.patch(one, {"metadata": {"labels": {"seen": str(changes)}}})
            if changes % 2:
                cluster.api.delete(one, gracePeriodSeconds=0)
            changes += 1
            time.sleep(0.1)
        truth = {
            each["metadata"]["uid"]: each["metadata"]["labels"]["seen"]
            for each in cluster.api.items("v1", "Pod", namespace)
        }

        def seen() -> dict[str, str]:
            return {each.uid: (each.metadata.labels or {}).get("seen", "") for each in source.state().pods}

        until(lambda: seen() == truth, f"{len(truth)} pods as they are, not {len(seen())}")
        age_ns = time.monotonic_ns() - source.state().synced_at_ns
    finally:
        source.close()
    events = changes * 2 + changes // 2
    lost = len(truth.keys() - seen().keys())
    tell(
        capsys,
        f"watches cut each second for {FAULT_S:.0f} s, every event thrice: {wire.counts['cut']} cut, {events} events,"
        f" {len(truth)} pods seen as they are, {lost} lost, {len(versions)} states",
    )
    assert wire.counts["cut"] >= 4
    assert age_ns < patience(60) * NS_PER_S
    # An event that is repeated is no news. What else is: that a watch is cut, and that it is there again.
    assert len(versions) < 2 * events + 2 * wire.counts["cut"]


@pytest.mark.slow
def test_a_nodeslo_that_flaps_ten_times_a_second_is_known_as_it_is(cluster, agent_kubeconfig, node_name, capsys):
    slo = cluster.api.create(nodeslo(node_name, memoryEvictThresholdPercent=70))
    source = ApiSource(open_cluster(agent_kubeconfig), node_name)
    lags_ms: list[float] = []
    source.start(lambda: None)
    try:
        until(lambda: percent(source) == 70, "first sight")
        for n in range(FLAPS):
            wanted = 60 + n % 20
            cluster.api.patch(slo, {"spec": {"resourceUsedThresholdWithBE": {"memoryEvictThresholdPercent": wanted}}})
            began = time.monotonic()
            until(lambda wanted=wanted: percent(source) == wanted, f"{wanted} %")
            lags_ms.append((time.monotonic() - began) * 1000)
            time.sleep(0.1)
    finally:
        source.close()
        cluster.api.delete(slo)
    median = sorted(lags_ms)[len(lags_ms) // 2]
    tell(
        capsys,
        f"{FLAPS} changes of a NodeSLO: {len(lags_ms)} seen, the middle one {median:.1f} ms after the server's answer,"
        f" {max(lags_ms):.0f} ms at most",
    )


def percent(source: ApiSource) -> object:
    raw = source.state().nodeslo
    return raw and json.loads(bytes(raw))["spec"]["resourceUsedThresholdWithBE"]["memoryEvictThresholdPercent"]


def test_a_pod_of_a_mebibyte_is_a_pod_as_any(cluster, agent_kubeconfig, node_name, namespace):
    large = pod("large", node_name, namespace=namespace)
    large["spec"]["containers"][0]["env"] = [{"name": f"E{n}", "value": "x" * 1024} for n in range(1024)]
    source = ApiSource(open_cluster(agent_kubeconfig), node_name)
    source.start(lambda: None)
    try:
        until(lambda: source.state().synced_at_ns, "first sight")
        made = cluster.api.create(large)
        assert len(json.dumps(made)) > 1 << 20
        until(lambda: [each.metadata.name for each in source.state().pods] == ["large"], "the pod, by the watch")
        cluster.api.delete(made, gracePeriodSeconds=0)
        until(lambda: not source.state().pods, "its end")
        assert source.state().problems == ()
    finally:
        source.close()


@pytest.mark.slow
def test_of_five_thousand_pods_it_lists_those_of_this_node(cluster, agent_kubeconfig, node_name, namespace, capsys):
    here = {f"here-{n}" for n in range(100)}
    objects = {f"/registry/pods/{namespace}/{name}": stored(name, node_name, namespace) for name in here}
    for n in range(4900):
        objects[f"/registry/pods/{namespace}/there-{n}"] = stored(f"there-{n}", f"other-{n % 49}", namespace)
    cluster.store(objects)
    try:
        everywhere = f"/api/v1/namespaces/{namespace}/pods"
        until(lambda: len(cluster.api.call("GET", f"{everywhere}?resourceVersion=0")["items"]) == 5000, "5,000 pods")
        began = time.monotonic()
        source = ApiSource(open_cluster(agent_kubeconfig), node_name)
        source.start(lambda: None)
        until(lambda: source.state().synced_at_ns, "first sight")
        ready_s = time.monotonic() - began
        assert {each.metadata.name for each in source.state().pods} == here
        source.close()
    finally:
        cluster.forget(f"/registry/pods/{namespace}/")
    tell(capsys, f"5,000 pods in the cluster, 100 of them here: all that is here is known after {ready_s:.2f} s")


def stored(name: str, node_name: str, namespace: str) -> Object:
    """Return a pod as etcd has it."""
    made = pod(name, node_name, namespace=namespace)
    made["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**made, "status": {"phase": "Pending", "qosClass": "BestEffort"}}
