"""The stall net on a node that thrashes at 70 % use: the kernel's stalls, the real agent, a reader that is evicted."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, find_controllers
from koordebpf.policy.ladder_settings import Rung
from tests.conftest import OTHER_MACHINE
from tests.host.live_agent import LiveAgent
from tests.host.rigs.live_node import LiveNode
from tests.support.loads.workloads import BUILD, Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

NODE_MIB = 256
HELD_MIB = 168  # by a third pod: memory that counts as used
WALKED_MIB = 72  # by the latency-sensitive pod; it fits into what is left, and its files with the reader's do not
READ_MIB = 600
SECONDS = 4
# Where only direct reclaim and compaction are timed, what the pod waits for its pages to come back is not in it.
LITTLE_PERCENT = 3


class Thrashing:
    """A node in which two pods read files that do not fit into what a third one leaves."""

    def __init__(self, node: NodeCgroup, stack: ExitStack) -> None:
        self.node = node
        self._stack = stack
        (base,) = node.add_pod("base", be=False)
        (self.web,) = node.add_pod("web", be=False)
        (self.reader,) = node.add_pod("reader", priority=5400)
        node.add_pod("idle", priority=5000)  # which would go first for anything else
        for name in ("base", "web"):
            (found,) = [pod for pod in node.pods if pod["metadata"]["name"] == name]
            (main,) = found["spec"]["containers"]
            main["resources"] = {"requests": {"memory": "200Mi"}}  # what it reads is promised to it
        held = Hog(base, HELD_MIB, hold_s=600)
        stack.callback(held.stop)
        held.wait_for("ready")

    def read(self, container: Path, mib: int) -> subprocess.Popen[bytes]:
        command = [BUILD / "cacheflood", "/var/tmp", str(mib), "600", container / "cgroup.procs"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def both_read(self) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
        return self.read(self.web, WALKED_MIB), self.read(self.reader, READ_MIB)


@pytest.fixture
def thrashing(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> Iterator[Thrashing]:
    with NodeCgroup(memory_cgroup, hierarchy.version, NODE_MIB * MIB) as node, ExitStack() as stack:
        yield Thrashing(node, stack)


def start(thrashing: Thrashing, folder: Path, *rungs: Rung, gate: bool = True, enforce: bool = True) -> LiveAgent:
    config = folder / "config.yaml"
    settings = {"fullPercent": LITTLE_PERCENT, "seconds": SECONDS}
    config.write_text(
        json.dumps(
            {
                "apiVersion": "koordebpf.io/v1alpha1",
                "kind": "AgentConfiguration",
                "featureGates": {"StallEvict": gate},
                "eviction": {"stall": settings, "ladder": {"rungs": [each.value for each in rungs]}},
            }
        )
    )
    manifest = thrashing.node.write_manifest(folder / "pods.json", threshold_percent=95, lower_percent=90)
    arguments = ["--config", config, "--pods", manifest, "--node-cgroup", thrashing.node.path]
    agent = LiveAgent(folder, *arguments, *(["--enforce"] if enforce else []))
    agent.started()
    if "each stall is timed" not in agent.log:
        agent.process.kill()
        pytest.skip(f"{OTHER_MACHINE}no program times stalls here, so that the net does not act")
    return agent


@pytest.mark.slow
def test_a_pod_that_makes_another_stand_still_is_evicted_though_the_node_is_far_below_its_threshold(
    thrashing: Thrashing, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with start(thrashing, tmp_path) as agent:
        web, reader = thrashing.both_read()
        since = time.monotonic()
        assert reader.wait(patience(90)) == -signal.SIGKILL, agent.log
        took_s = time.monotonic() - since
        line = agent.has_plan()
        (feature,) = [each for each in line["features"] if each["verdict"]["feature"] == "StallEvict"]
        assert [each["name"] for each in line["outcomes"]] == ["reader"]
        stall = feature["verdict"]["stall"]
        assert stall["pod"] == "default/web"
        assert stall["ratio"] > LITTLE_PERCENT / 100
        assert stall["above_s"] >= SECONDS
        (judged,) = [each for each in line["features"] if each["verdict"]["feature"] == "BEMemoryEvict"]
        used_percent = judged["verdict"]["evidence"]["used_percent"]
        assert used_percent < 90
        assert "default/web stalls for" in agent.said("evicting default/reader")
        assert web.poll() is None
        with capfd.disabled():
            kind = "every wait" if stall["is_whole"] else "reclaim and compaction alone"
            print(
                f"\n  at {used_percent} % use: web stalled {100 * stall['ratio']:.1f} % ({kind}), "
                f"the reader went after {took_s:.1f} s"
            )
        assert agent.metric('koordebpf_evictions_total{executor="cgroup",reason="StallEvict",result="done"}') == 1
        assert agent.stop() == 0


@pytest.mark.slow
def test_a_milder_rung_has_the_whole_window_to_help_before_the_eviction(thrashing: Thrashing, tmp_path: Path) -> None:
    mounts = find_controllers()
    wanted = ("cpu", "cpuset") if thrashing.node.version == 2 else ("cpu", "cpuset", "freezer")
    if missing := [name for name in wanted if name not in mounts]:
        pytest.skip(f"{OTHER_MACHINE}it has no {' and no '.join(missing)} controller")
    with (
        LiveNode(thrashing.node, wanted) as live,
        start(thrashing, tmp_path, Rung.FREEZE, Rung.EVICT) as agent,
    ):
        _, reader = thrashing.both_read()
        live.hierarchies.join(thrashing.reader, reader.pid)
        agent.said("freezes default/reader", timeout_s=90)
        assert agent.plans() == [] or all(each["result"] == "held" for each in agent.plans()[-1]["outcomes"])
        since = time.monotonic()
        assert reader.wait(patience(90)) == -signal.SIGKILL, agent.log
        assert time.monotonic() - since > SECONDS - 0.5  # of which the log took a part
        assert "freeze was not enough" in agent.log
        assert agent.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["the gate is off", "a dry run"])
def test_no_pod_is_evicted_unless_asked_for(thrashing: Thrashing, tmp_path: Path, how: str) -> None:
    with start(thrashing, tmp_path, gate=how == "a dry run", enforce=how == "the gate is off") as agent:
        _, reader = thrashing.both_read()
        if how == "a dry run":
            agent.said("evicting default/reader", timeout_s=90)
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(5 if how == "a dry run" else 15)
        assert all(each["result"] == "dry_run" for line in agent.plans() for each in line["outcomes"])
        assert agent.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["memory.max", "memory.high"])
def test_a_pod_that_thrashes_at_its_own_limit_costs_no_other_pod(
    thrashing: Thrashing, tmp_path: Path, limit: str
) -> None:
    if thrashing.node.version == 1 and limit == "memory.high":
        pytest.skip(f"{OTHER_MACHINE}cgroup v1 has no memory.high")
    name = limit if thrashing.node.version == 2 else "memory.limit_in_bytes"
    (thrashing.web.parent / name).write_text(str(24 * MIB))
    with start(thrashing, tmp_path) as agent:
        thrashing.read(thrashing.web, WALKED_MIB)
        reader = thrashing.read(thrashing.reader, 24)  # reads all the time, and leaves room
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(15)
        assert agent.plans() == []
        assert "can be evicted" not in agent.log  # what fires and finds no aggressor would say so
        if limit == "memory.max":
            assert agent.metric('koordebpf_pod_stall_seconds_total{namespace="default",pod="web",scope="limit"}') > 0
        else:
            events = (thrashing.web.parent / "memory.events").read_text()
            assert int(events.split("high ")[1].split()[0]) > 0
        assert agent.stop() == 0
