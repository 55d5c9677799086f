"""Two controllers and one Lease; and the process as a person starts it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.controller.election import Election, Terms
from koordebpf.controller.run import LEASE_NAME
from koordebpf.kube.clients.lease import LeaseClient
from koordebpf.kube.http.transport import Transport, open_cluster
from tests.contract.apiserver import Reply, Request, Server, gives, let_it_spin, status, until
from tests.contract.objectstore import CONFIGMAPS, LEASES, NODES, NODESLOS, Store, config_map, node
from tests.contract.rbac import Rules, asked
from tests.support.ports import free_port

TERMS = Terms(lease_s=1, renew_s=0.6, retry_s=0.1)
LONG = Terms(lease_s=60, renew_s=40.0, retry_s=0.1)  # on a busy machine no candidate loses it
NAMESPACE = "koordebpf-system"


class Candidate:
    def __init__(self, kubeconfig: Path, identity: str, terms: Terms) -> None:
        self.changes: list[bool] = []
        self.transport: Transport = open_cluster(kubeconfig)
        client = LeaseClient(self.transport, NAMESPACE, LEASE_NAME)
        self.election = Election(client, identity, lambda: self.changes.append(self.leads), terms)
        self.election.start()

    @property
    def leads(self) -> bool:
        return self.election.is_leader()

    def die(self) -> None:
        """Be gone without a word: nothing that it sends arrives any more."""
        self.transport.close()


@pytest.fixture
def store(server: Server) -> Store:
    return Store(server)


@pytest.fixture
def stand(kubeconfig: Path) -> Iterator[Callable[..., Candidate]]:
    candidates: list[Candidate] = []

    def _stand(identity: str, terms: Terms = TERMS) -> Candidate:
        candidates.append(Candidate(kubeconfig, identity, terms))
        return candidates[-1]

    yield _stand
    for candidate in candidates:
        candidate.transport.close()
        candidate.election.close()


Stand = Callable[..., Candidate]


def lease(store: Store) -> Any:
    return store.objects[LEASES][LEASE_NAME]["spec"]


def put_lease(store: Store, **spec: Any) -> None:
    store.put(LEASES, {"metadata": {"name": LEASE_NAME, "namespace": NAMESPACE}, "spec": spec})


def both_lead(first: Candidate, second: Candidate) -> bool:
    # The first is asked again: this thread may have stood still since it was asked before.
    return first.leads and second.leads and first.leads


class TestElection:
    def test_the_first_leads_and_renews(self, store: Store, stand: Stand) -> None:
        store.rules = Rules("koordebpf-controller")
        first = stand("a", LONG)
        until(lambda: first.leads, "a leader")
        assert lease(store)["holderIdentity"] == "a"
        assert lease(store)["leaseDurationSeconds"] == LONG.lease_s
        acquired, renewed = lease(store)["acquireTime"], lease(store)["renewTime"]
        assert len(acquired) == len("2026-01-01T00:00:00.000000Z")
        until(lambda: lease(store)["renewTime"] > renewed, "a renewal")
        assert lease(store)["acquireTime"] == acquired
        assert first.changes == [True]
        assert store.denied == []

    def test_one_of_two_leads(self, store: Store, stand: Stand) -> None:
        first, second = stand("a"), stand("b")
        until(lambda: first.leads or second.leads, "a leader")
        for _ in range(200):
            assert not both_lead(first, second)
            time.sleep(0.005)

    def test_the_second_takes_over_when_the_first_dies(self, store: Store, stand: Stand) -> None:
        first = stand("a")
        until(lambda: first.leads, "a leader")
        second = stand("b")
        until(lambda: second.election.holder == "a", "the second knows the first")
        first.die()

        def second_leads() -> bool:
            assert not both_lead(first, second)
            return second.leads

        until(second_leads, "the take-over")
        until(lambda: first.changes[-1:] == [False], "the first knows")
        assert lease(store)["leaseTransitions"] == 1
        assert lease(store)["holderIdentity"] == "b"

    @pytest.mark.parametrize("is_touched", [False, True])
    def test_a_lease_that_is_released_is_taken_at_once(self, is_touched: bool, store: Store, stand: Stand) -> None:
        # So long that only its return can let another in.
        terms = Terms(lease_s=3600, renew_s=600.0, retry_s=0.1)

        def touch_before_release(request: Request) -> None:
            if request.method == "PUT" and b'"holderIdentity":""' in request.body:
                store.faults.clear()
                put_lease(store, **lease(store))

        first = stand("a", terms)
        until(lambda: first.leads, "a leader")
        second = stand("b", terms)
        until(lambda: second.election.holder == "a", "the second knows the first")
        if is_touched:  # another client annotates it: the version that the first knows is not the newest
            store.faults.append(touch_before_release)
        first.election.close()
        assert not first.leads
        until(lambda: second.leads, "the take-over")

    def test_clocks_that_differ_do_not_matter(self, store: Store, stand: Stand) -> None:
        times = {"acquireTime": "2001-01-01T00:00:00.000000Z", "renewTime": "2001-01-01T00:00:00.000000Z"}
        put_lease(store, holderIdentity="other", leaseDurationSeconds=3600, leaseTransitions=4, **times)
        first = stand("a")
        until(lambda: first.election.holder == "other", "the other's lease")
        let_it_spin()
        assert not first.leads
        future = {"acquireTime": "2101-01-01T00:00:00.000000Z", "renewTime": "2101-01-01T00:00:00.000000Z"}
        put_lease(store, holderIdentity="other", leaseDurationSeconds=1, leaseTransitions=4, **future)
        until(lambda: first.leads, "the take-over of what is not renewed")
        assert lease(store)["leaseTransitions"] == 5

    def test_a_lease_that_is_robbed_is_given_up(self, store: Store, stand: Stand) -> None:
        first = stand("a", LONG)
        until(lambda: first.leads, "a leader")
        put_lease(store, holderIdentity="other", leaseDurationSeconds=3600)
        until(lambda: first.changes == [True, False], "the loss")
        assert lease(store)["holderIdentity"] == "other"

    def test_a_lease_that_is_deleted_is_made_again(self, store: Store, stand: Stand) -> None:
        first = stand("a")
        until(lambda: first.leads, "a leader")
        store.remove(LEASES, LEASE_NAME)
        until(lambda: store.objects[LEASES], "the lease")
        until(lambda: first.leads, "a leader")

    @pytest.mark.parametrize(
        "reply",
        [gives(500, b""), gives(429, b"", Retry_After="1"), gives(200, b"no JSON"), lambda exchange: exchange.hold()],
        ids=["500", "429", "rubbish", "hangs"],
    )
    def test_a_leader_that_cannot_renew_stops_in_time(self, reply: Reply, store: Store, stand: Stand) -> None:
        first = stand("a")
        until(lambda: first.leads, "a leader")
        trouble: list[Reply] = [reply]
        store.faults.append(lambda request: trouble[0] if trouble and request.path.startswith(LEASES) else None)
        until(lambda: not first.leads, "the end")
        until(lambda: first.election.problem, "the problem")
        trouble.clear()
        until(lambda: first.leads, "a leader again")
        assert first.election.problem == ""

    @pytest.mark.parametrize("without", [("leases", verb) for verb in ("create", "get", "update")], ids=str)
    def test_each_right_is_needed(self, without: tuple[str, str], store: Store, stand: Stand) -> None:
        store.rules = Rules("koordebpf-controller", without)
        if without[1] == "update":
            put_lease(store, holderIdentity="")
        first = stand("a")
        until(lambda: f"needs RBAC verb {without[1]} on leases" in first.election.problem, "what is missing")
        assert not first.leads

    def test_the_lease_of_another_is_not_allowed(self) -> None:
        rules = Rules("koordebpf-controller")
        path = f"{LEASES}/kube-scheduler"
        for method in ("GET", "PUT"):
            assert not rules.allow(asked(Request(method, path, {}, {}, b"{}")))


class Process:
    """`koordebpf controller` as a person starts it."""

    def __init__(self, kubeconfig: Path, *options: str) -> None:
        command = [sys.executable, "-m", "koordebpf", "controller", "--kubeconfig", str(kubeconfig)]
        self.popen = subprocess.Popen(
            [*command, "--log-format", "json", *options], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )

    def stop(self) -> list[dict[str, Any]]:
        """Ask it to end, and return its log."""
        self.popen.send_signal(signal.SIGTERM)
        _, log = self.popen.communicate(timeout=30)
        return [json.loads(line) for line in log.splitlines()]


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


@pytest.fixture
def run(kubeconfig: Path) -> Iterator[Callable[..., Process]]:
    processes: list[Process] = []

    def _run(*options: str) -> Process:
        processes.append(Process(kubeconfig, *options))
        return processes[-1]

    yield _run
    for process in processes:
        process.popen.kill()
        with process.popen:
            process.popen.communicate(timeout=30)


Run = Callable[..., Process]


@pytest.fixture
def port() -> int:
    return free_port()


class TestProcess:
    def test_it_writes_reports_and_releases_its_lease(self, store: Store, run: Run, port: int) -> None:
        store.rules = Rules("koordebpf-controller")
        store.put(NODES, node("n1"))
        store.put(CONFIGMAPS, config_map(resource_threshold_config={"clusterStrategy": {"enable": True}}))
        process = run("--listen", f"127.0.0.1:{port}")
        until(lambda: store.objects[NODESLOS], "the NodeSLO")
        until(lambda: get(port, "/readyz")[0] == 200, "readiness")
        assert get(port, "/healthz")[0] == 200
        page = until(lambda: (text := get(port, "/metrics")[1]) and 'state="settled"} 1.0' in text and text, "metrics")
        assert "koordebpf_controller_leader 1.0" in page
        assert 'koordebpf_controller_writes_total{outcome="created"} 1.0' in page
        log = process.stop()
        assert process.popen.returncode == 0
        assert lease(store)["holderIdentity"] == ""
        messages = [line["message"] for line in log]
        assert any("released the lease" in message for message in messages)
        assert not [line for line in log if line["level"] not in ("info",)]
        assert store.denied == []

    @pytest.mark.slow
    def test_another_takes_over_when_it_is_killed(self, store: Store, run: Run) -> None:
        store.put(NODES, node("n1"))
        first = run("--listen", "")
        until(lambda: "n1" in store.objects[NODESLOS], "the first's write")
        run("--listen", "")
        holder = lease(store)["holderIdentity"]
        until(lambda: [r for r in store.server.requests if r.method == "GET" and r.path.startswith(LEASES)][2:], "both")
        first.popen.kill()
        store.shorten_lease(LEASE_NAME)
        store.put(NODES, node("n2"))
        until(lambda: "n2" in store.objects[NODESLOS], "the second's write", timeout_s=60)
        assert lease(store)["holderIdentity"] != holder
        assert lease(store)["leaseTransitions"] == 1

    def test_a_dry_run_only_reads(self, store: Store, run: Run) -> None:
        store.put(NODES, node("n1"))
        process = run("--listen", "", "--dry-run")
        lines: list[str] = []
        assert process.popen.stderr is not None
        while not any("would create NodeSLO n1" in line for line in lines):
            lines.append(process.popen.stderr.readline())
            assert lines[-1], lines
        process.stop()
        assert {r.method for r in store.server.requests} == {"GET"}
        assert not store.objects[LEASES]

    def test_without_an_api_server_it_says_so_and_ends_when_asked(self, run: Run, server: Server, port: int) -> None:
        server.otherwise = gives(503, status(503, "ServiceUnavailable", "starting"))
        process = run("--listen", f"127.0.0.1:{port}")
        until(lambda: "list nodes" in get(port, "/readyz")[1], "a reason")
        code, text = get(port, "/readyz")
        assert code == 503
        assert "503 Service Unavailable" in text
        assert get(port, "/healthz")[0] == 200
        process.stop()
        assert process.popen.returncode == 0

    def test_no_cluster_at_all_is_one_sentence(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "koordebpf", "controller", "--kubeconfig", "/dev/null"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert "must lead to an API server" in done.stderr
        assert "Traceback" not in done.stderr
