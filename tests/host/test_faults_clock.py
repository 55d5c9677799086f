"""The wall clock is set by hours, forward and back, under an agent that evicts and a controller that leads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from koordebpf.controller.run import LEASE_NAME
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.report.pages.explain import decode_audit, explained
from tests.contract.apiserver import Server, until
from tests.contract.objectstore import LEASES, NODES, NODESLOS, Store, node
from tests.host.live_agent import ROOT, LiveAgent
from tests.host.live_cluster import LiveCluster, kubeconfig
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience
from tests.support.stepped_clock import SteppedClock

HOUR_S = 3600
STEPS_S = (HOUR_S, -HOUR_S, 24 * HOUR_S)
SLACK_S = 900  # far less than a step, and more than any test takes
NODE_MIB, HOG_MIB = 400, 300


def is_of(clock: SteppedClock, moment: datetime) -> bool:
    """Tell whether a moment was read from this clock just now."""
    return abs((moment - datetime.now(UTC)).total_seconds() - clock.realtime_s) < SLACK_S


@pytest.fixture
def clock(tmp_path: Path) -> SteppedClock:
    return SteppedClock(tmp_path / "clock")


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def cluster(hierarchy: MemoryHierarchy) -> Iterator[LiveCluster]:
    node = NodeCgroup(hierarchy.mount_point, hierarchy.version, NODE_MIB * MIB)
    for number in range(len(STEPS_S)):
        node.add_pod(f"hog-{number}", priority=5000)
    node.add_pod("web", be=False)
    cluster = LiveCluster(node)
    yield cluster
    node.close()
    cluster.close()


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


@pytest.mark.slow
def test_an_agent_evicts_whatever_the_wall_clock_says(
    cluster: LiveCluster, clock: SteppedClock, tmp_path: Path
) -> None:
    node = cluster.node_cgroup
    given = ["--source", "api", "--executor", "api", "--node-name", "n1", "--enforce", "--node-cgroup", node.path]
    given += ["--kubeconfig", kubeconfig(tmp_path / "kubeconfig", cluster.server.url)]
    before = ["env", *(f"{name}={value}" for name, value in clock.environ.items())]
    with LiveAgent(tmp_path, *given, before=before) as agent:
        agent.becomes_ready()
        for number, ahead_s in enumerate(STEPS_S):
            clock.step(realtime_s=ahead_s)
            (container,) = [each for each in node.pod_paths[f"hog-{number}"].iterdir() if each.is_dir()]
            hog = Hog(container, HOG_MIB, rate_mib_s=400, hold_s=600)
            try:
                assert hog.process.wait(patience(30)) == -signal.SIGKILL
            finally:
                hog.stop()
            line = agent.has_plan(number + 1)
            assert is_of(clock, moment(line["time"])), line["time"]
            assert [(each["name"], each["result"]) for each in line["outcomes"]] == [(f"hog-{number}", "done")]
            assert min(ns for ns in line["latencies"].values() if ns is not None) >= 0
            until(lambda n=number: len(cluster.eviction_events) > n, "the Event")
            assert is_of(clock, moment(cluster.eviction_events[number]["firstTimestamp"]))
            until(lambda: agent.readiness() == (200, []), f"ready, but {agent.readiness()}")
        assert cluster.asked() == [f"hog-{number}" for number in range(len(STEPS_S))]
        assert agent.metric('koordebpf_skipped_rounds_total{feature="act",reason="clock_jump"}') == 0
        assert agent.metric("koordebpf_failed_ticks_total") == 0
        assert agent.stop() == 0
        records, problems = decode_audit(agent.audit.read_bytes(), "audit")
    assert problems == () and all(explained(each) for each in records)
    # In the order in which it happened, whatever the times say.
    assert [each.outcomes[0].name for each in records if each.outcomes] == cluster.asked()
    print(f"wall clock set {len(STEPS_S)} times by up to a day: tried {len(STEPS_S)} evictions, survived 3, lost 0")


def controller(config: Path, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "koordebpf", "controller", "--kubeconfig", str(config), "--listen", ""]
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | environ, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_controller_keeps_its_lease_whatever_the_wall_clock_says(
    server: Server, clock: SteppedClock, tmp_path: Path
) -> None:
    store = Store(server)
    store.put(NODES, node("n1"))
    config = kubeconfig(tmp_path / "kubeconfig", server.url)
    processes = [controller(config, clock.environ)]

    def lease() -> dict[str, Any]:
        return dict(store.objects[LEASES].get(LEASE_NAME, {}).get("spec", {}))

    try:
        until(lambda: "n1" in store.objects[NODESLOS], "the first's write")
        holder = lease()["holderIdentity"]
        processes.append(controller(config, {}))  # on another machine, where the clock is right
        for number, ahead_s in enumerate(STEPS_S):
            clock.step(realtime_s=ahead_s)
            for _ in range(2):  # it keeps renewing, by its new time
                old = lease()["renewTime"]
                until(lambda old=old: lease()["renewTime"] != old, "a renewal")
            assert is_of(clock, moment(lease()["renewTime"]))
            store.put(NODES, node(f"m{number}"))
            until(lambda n=number: f"m{n}" in store.objects[NODESLOS], "its write")
            assert (lease()["holderIdentity"], lease()["leaseTransitions"]) == (holder, 0)
        # And the other one takes over when it is gone, not before and not never.
        processes[0].kill()
        store.shorten_lease(LEASE_NAME)
        until(lambda: lease()["holderIdentity"] not in ("", holder), "the second one", timeout_s=60)
        assert lease()["leaseTransitions"] == 1
    finally:
        for process in processes:
            process.kill()
            process.wait()
    print(f"wall clock of the leader set {len(STEPS_S)} times: tried 3, survived 3, lost 0 leases")
