"""What BEPageCacheSuppress decides from, on trees of both versions of cgroups, and when no pod is looked at."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.io import table
from koordebpf.kernel.io.table import odd_rows
from koordebpf.kube.cache.objects import ClusterState, ObjectMeta, Pod, PodStatus
from koordebpf.strategies.page_cache.run import PageCacheCollector
from koordebpf.strategies.page_cache.values import CachePod, PageCacheMeasured, SensitivePod
from koordebpf.units import MIB, NS_PER_S

V2 = f"""\
anon 4096
file {120 * MIB}
inactive_file {98 * MIB}
active_file {2 * MIB}
workingset_refault_anon 7
workingset_refault_file 30
workingset_activate_anon 5
workingset_activate_file 20
"""
# Rows of the directory alone, then with its children.
V1 = f"""\
inactive_file 4096
active_file 4096
workingset_refault_file 1
total_inactive_file {98 * MIB}
total_active_file {2 * MIB}
total_workingset_refault_anon 7
total_workingset_refault_file 30
"""
PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1200\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n"
_versions = itertools.count(1)


class Node:
    """A tree with a pod of each class: `be`, `ls`, and `none` without a label."""

    def __init__(self, root: Path, version: int = 2, vmstat: str = "workingset_refault_file 0\n") -> None:
        self.root, self.version = root / "cgroup", version
        self.vmstat = root / "vmstat"
        self.refaulted(vmstat)
        self.index, self.known = CgroupIndex(), ClusterView()
        self.pods: list[Pod] = []
        self.cgroups = [(1, 0, ""), (2, 1, "kubepods")]
        for uid, labels, kube_qos in (
            ("be", {"koordinator.sh/qosClass": "BE"}, "BestEffort"),
            ("ls", {"koordinator.sh/qosClass": "LS"}, "Burstable"),
            ("none", None, "BestEffort"),
        ):
            self.add(uid, labels, kube_qos)
        self.learn()
        hierarchy = MemoryHierarchy(version, self.root, 0)  # type: ignore[arg-type]
        self.collector = PageCacheCollector(self.index, self.known, hierarchy, 64, self.vmstat)
        self.collector.is_active = True

    def add(self, uid: str, labels: dict[str, str] | None, kube_qos: str) -> None:
        self.cgroups.append((len(self.cgroups) + 1, 2, f"kubepods/pod{uid}"))
        self.pods.append(
            Pod(ObjectMeta(uid, "team", uid, labels=labels), status=PodStatus("Running", qosClass=kube_qos))
        )
        directory = self.directory(uid)
        directory.mkdir(parents=True)
        is_v2 = self.version == 2
        (directory / "memory.stat").write_text(V2 if is_v2 else V1)
        usage = "memory.current" if is_v2 else "memory.usage_in_bytes"
        (directory / usage).write_text(f"{150 * MIB}\n")
        limits = ("memory.high", "memory.max") if is_v2 else ("memory.soft_limit_in_bytes", "memory.limit_in_bytes")
        for name in limits:
            (directory / name).touch()
        if is_v2:
            (directory / "memory.pressure").write_text(PRESSURE)

    def directory(self, uid: str) -> Path:
        return self.root / f"kubepods/pod{uid}"

    def refaulted(self, text: str) -> None:
        self.vmstat.write_text(text)

    def learn(self) -> None:
        self.index.replace_all(self.cgroups)
        self.index.set_pods(self.pods)
        self.known.learn(ClusterState(next(_versions), 1, pods=tuple(self.pods)))

    def found(self, at_s: float = 1) -> PageCacheMeasured:
        measured = self.collector.measure(int(at_s * NS_PER_S))
        assert measured is not None
        return measured


@pytest.mark.parametrize(("version", "files", "activated", "stalled_us"), [
    (2, ("memory.high", "memory.limit_in_bytes"), 20, 1200),
    (1, ("memory.soft_limit_in_bytes", "memory.limit_in_bytes"), None, None),
])  # fmt: skip
def test_a_best_effort_pod_is_read_and_of_others_what_they_refaulted(
    tmp_path: Path, version: int, files: tuple[str, ...], activated: int | None, stalled_us: int | None
) -> None:
    found = Node(tmp_path, version).found()
    assert found.pods == (CachePod("be", "kubepods/podbe", 150 * MIB, 100 * MIB, activated, stalled_us),)
    assert found.sensitive == {
        "ls": SensitivePod(30, 100 * MIB)
    }  # not those of one that names no class and is best-effort for Kubernetes
    assert found.files == files


def test_a_kernel_that_limits_page_cache_by_itself(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (node.directory("be") / "memory.pagecache_limit.size").touch()
    assert node.found().files[0] == "memory.pagecache_limit.size"


def test_it_is_measured_each_second(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.found(1)
    assert node.collector.measure(int(1.5 * NS_PER_S)) is None
    assert node.collector.measure(2 * NS_PER_S) is not None


@pytest.mark.parametrize("row", ["workingset_refault_file", "workingset_refault"])
def test_while_the_machine_refaults_less_no_pod_is_looked_at(tmp_path: Path, row: str) -> None:
    node = Node(tmp_path, vmstat=f"nr_free_pages 7\n{row} 1000\n")
    node.collector.is_active = False
    assert node.collector.measure(NS_PER_S) is None
    node.refaulted(f"{row} 1063\n")
    assert node.collector.measure(2 * NS_PER_S) is None
    node.refaulted(f"{row} 1127\n")
    assert node.collector.measure(3 * NS_PER_S) is not None
    assert node.collector.measure(4 * NS_PER_S) is None
    node.collector.is_active = True
    assert node.collector.measure(5 * NS_PER_S) is not None


def test_a_machine_whose_count_ran_backwards_is_not_taken_for_calm_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_logged", set())  # a process logs so many files alone
    node = Node(tmp_path, vmstat="workingset_refault_file 1000\n")
    node.collector.is_active = False
    assert node.collector.measure(NS_PER_S) is None
    node.refaulted("workingset_refault_file 10\n")
    assert node.collector.measure(2 * NS_PER_S) is not None
    assert node.collector.measure(3 * NS_PER_S) is None
    node.refaulted("workingset_refault_file 9\n")
    assert node.collector.measure(4 * NS_PER_S) is not None
    assert [each.getMessage().partition(": ")[2] for each in caplog.records] == [
        "the row 'workingset_refault_file 10 after 1000' does not count: "
        "a counter ran backwards, and what it gained is not known"
    ]
    assert odd_rows()["vmstat"] >= 2


def test_a_kernel_that_counts_none_is_calm(tmp_path: Path) -> None:
    node = Node(tmp_path, vmstat="nr_free_pages 7\n")
    node.collector.is_active = False
    assert [node.collector.measure(at_s * NS_PER_S) for at_s in (1, 2)] == [None, None]


def test_nothing_before_the_pods_are_known(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.known.is_whole = False
    assert node.collector.measure(NS_PER_S) is None


def test_without_pressure_accounting_a_pods_refaults_count_alone(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (node.directory("be") / "memory.pressure").write_text("none\n")
    assert node.found().pods[0].stalled_us is None


def test_a_pod_that_is_gone_is_left_out_and_its_files_are_closed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.found()
    before = len(list(Path("/proc/self/fd").iterdir()))
    shutil.rmtree(node.directory("be"))
    node.cgroups = [each for each in node.cgroups if "podbe" not in each[2]]
    node.pods = node.pods[1:]
    node.learn()
    assert node.found(8).pods == ()
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 3


def test_a_file_that_is_garbage_leaves_its_pod_out(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (node.directory("be") / "memory.current").write_text("many\n")
    assert node.found().pods == ()
    assert node.found(8).sensitive == {"ls": SensitivePod(30, 100 * MIB)}


def test_a_directory_that_bears_another_pods_name_is_no_pods(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.pods[0] = Pod(
        ObjectMeta("thief", "team", "thief", labels={"koordinator.sh/qosClass": "BE"}),
        status=PodStatus("Running", qosClass="BestEffort"),
    )
    node.learn()
    assert node.found().pods == ()


def test_all_files_are_closed_at_the_end(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    node = Node(tmp_path)
    node.found()
    node.collector.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
