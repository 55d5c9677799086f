"""Evictions that bring nothing: the next candidate is evicted at once, and the same one is not chosen over and over."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, find_controllers
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.contract.cri_runtime import RUNNING, Runtime
from tests.host.live_agent import LiveAgent
from tests.host.live_cluster import LiveCluster, is_another, kubeconfig
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

NODE_MIB = 400
HOG_MIB, OTHER_MIB = 200, 100  # 75 % of the node together; each alone covers the need
THRESHOLD_PERCENT = 70
WATCHED_S = 1.0  # Why: the fault was ten evictions within 110 ms


class Shortage:
    """A node of 400 MiB with the pods `hog` (priority 5000) and `other` (5500), and an agent that protects it."""

    def __init__(self, hierarchy: MemoryHierarchy, folder: Path) -> None:
        self.folder = folder
        self.node = NodeCgroup(hierarchy.mount_point, hierarchy.version, NODE_MIB * MIB)
        (self.hog_path,) = self.node.add_pod("hog", priority=5000)
        (self.other_path,) = self.node.add_pod("other", priority=5500)
        self.hogs: list[Hog] = []
        self.agents: list[LiveAgent] = []
        self.files: list[Path] = []

    def uid(self, name: str) -> str:
        return str(next(pod["metadata"]["uid"] for pod in self.node.pods if pod["metadata"]["name"] == name))

    def grow(self, path: Path, mib: int) -> Hog:
        self.hogs.append(Hog(path, mib, rate_mib_s=400, hold_s=120))
        return self.hogs[-1]

    def fill_tmpfs(self, path: Path, mib: int, *, then: str) -> subprocess.Popen[bytes]:
        """Charge a file on a tmpfs of the host to the pod, which outlives every process; then run `then` in the pod."""
        self.files.append(Path(f"/dev/shm/{self.node.path.name}-{len(self.files)}"))
        script = f"echo $$ > {path}/cgroup.procs; head -c {mib}M /dev/zero > {self.files[-1]}; exec {then}"
        return subprocess.Popen(["sh", "-c", script])

    def agent(self, *arguments: object) -> LiveAgent:
        manifest = self.node.write_manifest(self.folder / "pods.json", THRESHOLD_PERCENT, THRESHOLD_PERCENT - 5)
        return self.agent_with("--pods", manifest, *arguments)

    def agent_with(self, *arguments: object) -> LiveAgent:
        self.agents.append(LiveAgent(self.folder, "--enforce", "--node-cgroup", self.node.path, *arguments))
        return self.agents[-1].started()

    def close(self) -> None:
        for agent in self.agents:
            agent.__exit__(None, None, None)
        for hog in self.hogs:
            hog.stop()
        for file in self.files:
            file.unlink(missing_ok=True)
        self.node.close()


@pytest.fixture
def shortage(hierarchy: MemoryHierarchy, tmp_path: Path) -> Iterator[Shortage]:
    made = Shortage(hierarchy, tmp_path)
    yield made
    made.close()


def victims(agent: LiveAgent) -> list[str]:
    """Return the victims of every plan so far, in order."""
    return [uid for line in agent.plans() for feature in line["features"] for uid in feature["victims"]]


def excluded(line: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["name"]: (each["code"], each["why"]) for feature in line["features"] for each in feature["excluded"]}


def seconds_pass(agent: LiveAgent) -> None:
    """Let the agent look at the shortage for a while: with what it did not do there is nothing to wait for."""
    time.sleep(WATCHED_S)
    assert agent.process.poll() is None


@pytest.mark.slow
def test_a_runtime_that_knows_no_container_of_the_victim(shortage: Shortage, tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "cri.sock")
    try:
        runtime.pods = {shortage.uid("other"): {"main": RUNNING}}
        other = shortage.grow(shortage.other_path, OTHER_MIB)
        runtime.on_stop = lambda _: other.process.kill()
        other.wait_for("done")
        agent = shortage.agent("--executor", "cri", "--cri-socket", tmp_path / "cri.sock")
        hog = shortage.grow(shortage.hog_path, HOG_MIB)
        assert other.process.wait(patience(10)) != 0
        seconds_pass(agent)
        assert hog.process.poll() is None

        # THEN each was asked for once, and one alone counts in the budget
        assert runtime.listed == [shortage.uid("hog"), shortage.uid("other")]
        assert victims(agent) == [shortage.uid("hog"), shortage.uid("other")], agent.log
        first, second = agent.plans()
        assert [outcome["result"] for outcome in first["outcomes"]] == ["gone"]
        code, why = excluded(second)["hog"]
        assert code == "no_effect"
        assert why.startswith("its eviction brought nothing: no container of it runs")
        assert "passed over default/hog (its eviction brought nothing" in second["sentence"]
        assert agent.metric('koordebpf_barred_pods{reason="gone"}') == 1
        assert '"uid":"' + shortage.uid("hog") not in (next(tmp_path.glob("run/**/evictions.json"))).read_text()
    finally:
        runtime.close()


@pytest.mark.slow
def test_alone_it_is_not_evicted_again_and_again(shortage: Shortage, tmp_path: Path) -> None:
    runtime = Runtime(tmp_path / "cri.sock")
    try:
        agent = shortage.agent("--executor", "cri", "--cri-socket", tmp_path / "cri.sock")
        shortage.grow(shortage.hog_path, 290).wait_for("done")
        agent.has_plan()
        seconds_pass(agent)
        # `other` holds a few pages of the kernel's at most, and may be asked for those.
        assert runtime.listed[0] == shortage.uid("hog")
        assert len(runtime.listed) == len(set(runtime.listed))
        assert len(victims(agent)) == len(set(victims(agent)))
        agent.said("passed over default/hog (its eviction brought nothing: no container of it runs")
    finally:
        runtime.close()


@pytest.mark.slow
@pytest.mark.parametrize("lives", [True, False])
def test_memory_that_outlives_every_process_of_the_victim(shortage: Shortage, lives: bool) -> None:
    process = shortage.fill_tmpfs(shortage.hog_path, HOG_MIB, then="sleep 300" if lives else "true")
    if not lives:
        process.wait(patience(30))
    until(lambda: shortage.files[0].exists() and shortage.files[0].stat().st_size == HOG_MIB * MIB, "the file")
    agent = shortage.agent("--executor", "cgroup")
    other = shortage.grow(shortage.other_path, OTHER_MIB)
    assert other.process.wait(patience(10)) != 0
    seconds_pass(agent)
    assert victims(agent) == [shortage.uid("hog"), shortage.uid("other")], agent.log
    process.wait(patience(5))
    code, why = excluded(agent.plans()[1])["hog"]
    assert code == "no_effect"
    assert "still holds" in why if lives else "no process" in why
    assert agent.metric(f'koordebpf_barred_pods{{reason="{"memory_stays" if lives else "no_process"}"}}') == 1
    # What killed no process is not in the budget.
    kept = next(shortage.folder.glob("run/**/evictions.json")).read_text()
    assert (shortage.uid("hog") in kept) is lives


@pytest.mark.slow
def test_a_victim_that_cannot_die(shortage: Shortage, hierarchy: MemoryHierarchy) -> None:
    if hierarchy.version == 2 or hierarchy.freezer_mount_point is None:
        pytest.skip(f"{OTHER_MACHINE}nothing that may be made here resists SIGKILL but a cgroup v1 freezer")
    freezer = find_controllers()["freezer"].mount_point / shortage.node.path.name
    freezer.mkdir()
    process = None
    try:
        held = f"tail -f {shortage.folder}/none"
        (shortage.folder / "none").touch()
        process = shortage.fill_tmpfs(shortage.hog_path, HOG_MIB, then=held)
        until(lambda: shortage.files[0].exists() and shortage.files[0].stat().st_size == HOG_MIB * MIB, "the file")
        (freezer / "cgroup.procs").write_text(str(process.pid))
        (freezer / "freezer.state").write_text("FROZEN")
        agent = shortage.agent("--executor", "cgroup")
        other = shortage.grow(shortage.other_path, OTHER_MIB)
        # WHEN the signal has had its ten seconds THEN the other pod is killed
        assert other.process.wait(patience(30)) != 0
        seconds_pass(agent)
        assert process.poll() is None
        assert victims(agent) == [shortage.uid("hog"), shortage.uid("other")], agent.log
        code, why = excluded(agent.plans()[-1])["hog"]
        assert code == "no_effect"
        assert "still there 10 s after the signal" in why
        assert agent.metric('koordebpf_barred_pods{reason="failed"}') == 1
    finally:
        (freezer / "freezer.state").write_text("THAWED")
        if process:
            process.wait(patience(10))
        until(lambda: not (freezer / "cgroup.procs").read_text(), "its end")
        freezer.rmdir()


@pytest.mark.slow
def test_an_api_server_that_knows_it_no_more_while_the_list_still_does(shortage: Shortage) -> None:
    cluster = LiveCluster(shortage.node, THRESHOLD_PERCENT)
    try:
        for _ in range(20):
            cluster.answers["hog"].append(is_another())
        config = kubeconfig(shortage.folder / "kubeconfig", cluster.server.url)
        given = ["--source", "api", "--executor", "api", "--node-name", "n1", "--kubeconfig", config]
        agent = shortage.agent_with(*given).becomes_ready()
        other = shortage.grow(shortage.other_path, OTHER_MIB)
        other.wait_for("done")
        hog = shortage.grow(shortage.hog_path, HOG_MIB)
        assert other.process.wait(patience(20)) != 0
        seconds_pass(agent)
        assert hog.process.poll() is None
        assert cluster.asked() == ["hog", "other"]
        code, why = excluded(agent.plans()[1])["hog"]
        assert code == "no_effect"
        assert "API server" in why
    finally:
        cluster.close()
