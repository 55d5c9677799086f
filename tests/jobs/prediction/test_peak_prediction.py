"""The job that trains the models of a node, minute by minute, and keeps them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from koordebpf.collect.cluster_view import ClusterView
from koordebpf.jobs.prediction.keeper import CheckpointFolder, CheckpointKeeper, Found
from koordebpf.jobs.prediction.models import OWN_UIDS
from koordebpf.jobs.prediction.run import PeakPrediction
from koordebpf.jobs.prediction.values import PredictionSettings
from koordebpf.kube.cache.objects import ClusterState, Node, NodeStatus, ObjectMeta, Pod
from koordebpf.state.prediction import LatestPrediction
from koordebpf.state.series.store import node_series
from koordebpf.units import GIB, NS_PER_S
from tests.support.ticked_node import StillClock

RUNS = Path(__file__).parents[2] / "golden/prediction/koordlet-histograms.jsonl"
OLD = "2023-11-01T00:00:00Z"  # two weeks before the clock of these tests
NODE = Node(ObjectMeta(name="n1"), NodeStatus(allocatable={"cpu": "16", "memory": "64Gi"}))


def pod(uid: str, *, created: str = OLD, cpu: str = "4", priority: int = 9500) -> Pod:
    return msgspec.convert(
        {
            "metadata": {"name": f"p-{uid}", "namespace": "d", "uid": uid, "creationTimestamp": created},
            "spec": {
                "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "8Gi"}}}],
                "priority": priority,
            },
            "status": {"phase": "Running"},
        },
        Pod,
    )


class Minutes:
    """A node whose usage is sampled each second, and its job."""

    def __init__(self, folder: Path, *pods: Pod, koordlet: Path | None = None, writes: bool = True) -> None:
        self.clock, self.known, self.latest, self.series = (
            StillClock(),
            ClusterView(),
            LatestPrediction(),
            node_series(),
        )
        self.use: dict[str, tuple[float, float]] = {}
        self.node_use = (8.0, 16.0 * GIB)
        self.keeper = CheckpointKeeper(folder, koordlet, writes=writes)
        self.job = PeakPrediction(self.known, self.latest, PredictionSettings(), self.keeper, self.clock)
        self.version = 0
        if pods:
            self.learn(*pods)

    def learn(self, *pods: Pod, node: Node | None = NODE) -> None:
        self.version += 1
        self.known.learn(ClusterState(version=self.version, synced_at_ns=1, pods=pods, node=node))

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.ns += NS_PER_S
            for uid, (cores, size) in self.use.items():
                self.series.append(("pod_cpu_usage", uid), self.clock.ns, cores)
                self.series.append(("pod_memory_usage", uid), self.clock.ns, size)
            self.series.append(("node_cpu_usage",), self.clock.ns, self.node_use[0])
            self.series.append(("node_memory_usage",), self.clock.ns, self.node_use[1])
            self.job.collect(self.clock.ns, self.series)
            self.until(lambda: not self.keeper.is_busy)

    @staticmethod
    def until(is_true: Callable[[], bool]) -> None:
        for _ in range(2000):
            if is_true():
                return
            time.sleep(0.005)
        raise AssertionError("it takes too long")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "prediction"


def test_before_pods_and_node_are_known_nothing_is_learned(folder):
    node = Minutes(folder)
    node.run(130)
    assert node.job.models == {} and not node.job.has_synced and node.latest.prod is None
    node.job.close()


def test_each_minute_every_model_has_one_more_sample(folder):
    node = Minutes(folder, pod("a"), pod("b"))
    node.use = {"a": (1.0, GIB), "b": (2.0, GIB)}
    node.run(200)
    assert set(node.job.models) == {*OWN_UIDS, "a", "b"}
    first = node.job.models["a"].cpu.total
    node.run(60)
    assert node.job.models["a"].cpu.total > first * 1.2  # the fourth or fifth
    assert 1.0 < node.job.models["a"].cpu.percentile(0.95) < 1.1
    assert 3.0 < node.job.models["__node-koord-prod__"].cpu.percentile(0.95) < 3.3
    assert 5.0 < node.job.models["__node-sys__"].cpu.percentile(0.95) < 5.4
    node.job.close()


def test_what_is_reclaimable_is_there_for_the_report(folder):
    node = Minutes(folder, pod("a"))
    node.use = {"a": (1.0, GIB)}
    node.run(70)
    assert node.latest.prod and node.latest.prod.reclaimable and node.latest.prod.peak
    # by pod: 4 cores − 1.1 × 1.05 at most; by priority the system's 7 cores leave nothing of 4
    assert node.latest.by["podReclaimablePredictor"].reclaimable.cpu_millicpu > 2800
    assert node.latest.prod.reclaimable.cpu_millicpu == 0
    assert node.latest.newer_than(node.clock.ns - 60 * NS_PER_S) is node.latest.prod
    assert node.latest.newer_than(node.clock.ns) is None
    node.job.close()


def test_a_pod_that_is_not_measured_is_neither_learned_nor_predicted(folder):
    node = Minutes(folder, pod("a"), pod("young", created="2023-11-14T22:30:00Z"))
    node.use = {"a": (1.0, GIB)}
    node.run(70)
    assert "young" not in node.job.models
    before = node.latest.by["podReclaimablePredictor"].peak
    node.use["young"] = (1.0, GIB)
    node.run(70)
    after = node.latest.by["podReclaimablePredictor"].peak
    assert before and after and after.cpu_millicpu >= before.cpu_millicpu + 4000  # its whole request
    node.job.close()


def test_a_model_of_a_pod_that_is_gone_is_deleted_with_its_file(folder):
    node = Minutes(folder, pod("a"), pod("b"))
    node.use = {"a": (1.0, GIB), "b": (1.0, GIB)}
    node.run(200)
    assert (folder / "b").exists()
    node.learn(pod("a"))
    node.use.pop("b")
    node.run(31 * 60 + 65)
    assert "b" not in node.job.models and "a" in node.job.models
    assert (folder / "a").exists() and not (folder / "b").exists()
    node.job.close()


def test_the_next_agent_continues_where_this_one_ended(folder):
    node = Minutes(folder, pod("a"))
    node.use = {"a": (3.0, GIB)}
    node.run(130)
    written = (folder / "a").read_bytes()
    node.use = {"a": (6.0, 2.0 * GIB)}
    node.run(130)
    assert (folder / "a").read_bytes() == written  # ten minutes are not over
    peak = node.job.models["a"].peak()
    assert peak.cpu_millicpu > 6000
    node.job.close()
    again = Minutes(folder, pod("a"))
    again.run(10)  # no sample of it yet
    assert again.job.models["a"].peak() == peak
    again.job.close()


def test_koordlets_models_are_the_start(folder, tmp_path):
    theirs = tmp_path / "koordlet"
    theirs.mkdir()
    runs = {run["name"]: run for run in map(json.loads, RUNS.read_text().splitlines())}
    written = {
        "UID": "a",
        "CPU": runs["minutes"]["checkpoint"],
        "Memory": runs["memory"]["checkpoint"],
        "LastUpdated": "2023-11-01T00:00:00Z",
    }
    (theirs / "a").write_text(json.dumps(written))
    (theirs / "gone").write_text(json.dumps(written))
    node = Minutes(folder, pod("a"), koordlet=theirs)
    node.run(3)
    p95, p98 = runs["minutes"]["restored"][4], runs["memory"]["restored"][5]
    assert (node.job.models["a"].peak().cpu_millicpu, node.job.models["a"].peak().memory_bytes) == (
        int(p95 * 1000),
        int(p98),
    )
    assert "gone" not in node.job.models and (theirs / "gone").exists()
    node.job.close()


def test_an_agent_that_only_watches_writes_nothing(folder):
    node = Minutes(folder, pod("a"), writes=False)
    node.use = {"a": (1.0, GIB)}
    node.run(200)
    node.job.close()
    assert node.job.models and not folder.exists()


def test_a_clock_that_is_set_does_not_change_how_old_samples_are(folder):
    node = Minutes(folder, pod("a"))
    node.use = {"a": (1.0, GIB)}
    node.run(70)
    reference_ns = node.job.models["a"].cpu.reference_ns
    node.clock.wall_s = lambda: 4e9  # type: ignore[method-assign]
    node.run(120)
    assert node.job.models["a"].cpu.reference_ns == reference_ns
    node.job.close()


def test_without_the_node_the_reason_is_said_once(folder, caplog):
    node = Minutes(folder)
    node.learn(pod("a"), node=None)
    node.use = {"a": (1.0, GIB)}
    node.run(200)
    assert node.job.problem == "the Node is not known"
    assert caplog.text.count("nothing is predicted to be reclaimable") == 1
    assert node.latest.prod and node.latest.prod.reclaimable is None and node.latest.prod.peak
    node.job.close()


def test_a_corrupt_file_costs_only_its_own_model(folder, caplog):
    node = Minutes(folder, pod("a"), pod("b"))
    node.use = {"a": (1.0, GIB), "b": (1.0, GIB)}
    node.run(200)
    node.job.close()
    (folder / "a").write_bytes((folder / "a").read_bytes()[:40])
    again = Minutes(folder, pod("a"), pod("b"))
    again.run(5)
    assert "a" not in again.job.models and "b" in again.job.models
    assert str(folder / "a") in caplog.text
    again.job.close()


def test_a_disk_that_hangs_is_not_waited_for(folder, caplog, monkeypatch):
    answer = threading.Event()
    monkeypatch.setattr(CheckpointFolder, "load", lambda _self, _wanted: answer.wait(60) and Found({}))
    node = Minutes(folder, pod("a"))
    node.use = {"a": (1.0, GIB)}
    monkeypatch.setattr(node, "until", lambda _is_true: None)
    node.run(100)
    assert "learning begins from nothing" in caplog.text and "a" in node.job.models
    node.job.close()  # within its second, and without a word to the disk
    assert "the disk is slow" in caplog.text.splitlines()[-1]
    answer.set()


def test_a_usage_that_no_machine_has_leaves_only_its_own_pod_out(folder):
    node = Minutes(folder, pod("a"), pod("b"))
    node.use = {"a": (1.0, GIB), "b": (1e12, GIB)}
    node.run(70)
    assert "a" in node.job.models and "b" not in node.job.models
    node.job.close()


def test_with_its_gate_off_nothing_of_it_is_loaded():
    code = (
        "import sys\n"
        "import koordebpf.agent.run\n"
        "from tests.support.contexts import context_of\n"
        "from koordebpf.agent.jobs import open_jobs\n"
        "from koordebpf.configuration.settings import AgentConfig\n"
        "assert open_jobs(context_of(AgentConfig())) == []\n"
        "import json\n"
        "print(json.dumps([name for name in sys.modules if 'predict' in name or 'checkpoint' in name]))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    small = ["jobs.prediction", "jobs.prediction.values", "state.prediction"]
    assert sorted(json.loads(loaded)) == [f"koordebpf.{name}" for name in small]


def test_two_hundred_pods_are_learned_in_steps(folder):
    node = Minutes(folder, *(pod(f"u{n}") for n in range(200)))
    node.use = {f"u{n}": (0.1, GIB) for n in range(200)}
    node.clock.now_ns = _fast(node.clock)  # type: ignore[method-assign]
    node.run(5)
    assert not node.job.has_synced  # two to restore, and three are not enough
    node.run(4)
    assert node.job.has_synced and sum(uid.startswith("u") for uid in node.job.models) == 200
    node.job.close()


def _fast(clock: StillClock) -> Callable[[], int]:
    # Each look at it takes 10 µs: a step of 0.5 ms then ends after 50 pods.
    def now_ns() -> int:
        clock.ns += 10_000
        return clock.ns

    return now_ns
