"""What proactive reclaim decides from, on a tree of cgroup v2: who may be trimmed, who must not stall, and swap."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kube.cache.objects import ClusterState, ObjectMeta, Pod, PodStatus
from koordebpf.strategies.proactive_reclaim.run import ReclaimCollector
from koordebpf.strategies.proactive_reclaim.values import ReclaimMeasured
from koordebpf.units import MIB, NS_PER_S

STAT = """\
anon 20971520
file 104857600
inactive_anon {anon}
active_anon 1048576
inactive_file {file}
active_file 2097152
workingset_refault_anon 7
workingset_refault_file 30
workingset_activate_file 9
"""
PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n"
_versions = itertools.count(1)


class Node:
    """A tree with a pod of each class: `be`, `ls`, `none` without a label and `asked` with one of its own."""

    def __init__(self, root: Path, version: int = 2, label: str = "", *, soft_limits: bool = False) -> None:
        self.root = root
        self.index, self.known = CgroupIndex(), ClusterView()
        self.pods: list[Pod] = []
        self.cgroups = [(1, 0, ""), (2, 1, "kubepods")]
        for uid, labels, kube_qos in (
            ("be", {"koordinator.sh/qosClass": "BE"}, "BestEffort"),
            ("ls", {"koordinator.sh/qosClass": "LS"}, "Burstable"),
            ("none", None, "BestEffort"),
            ("asked", {"koordinator.sh/qosClass": "LS", "trim": "true"}, "Burstable"),
        ):
            self.add(uid, labels, kube_qos)
        self.learn()
        hierarchy = MemoryHierarchy(version, root, 0)  # type: ignore[arg-type]
        self.collector = ReclaimCollector(self.index, self.known, hierarchy, label, soft_limits=soft_limits)

    def add(self, uid: str, labels: dict[str, str] | None, kube_qos: str) -> None:
        self.cgroups.append((len(self.cgroups) + 1, 2, f"kubepods/pod{uid}"))
        self.pods.append(
            Pod(ObjectMeta(uid, "team", uid, labels=labels), status=PodStatus("Running", qosClass=kube_qos))
        )
        directory = self.directory(uid)
        directory.mkdir(parents=True)
        (directory / "memory.reclaim").touch()
        (directory / "memory.current").write_text(f"{150 * MIB}\n")
        (directory / "memory.stat").write_text(STAT.format(anon=9 * MIB, file=98 * MIB))
        (directory / "memory.pressure").write_text(PRESSURE.format(1200))

    def directory(self, uid: str) -> Path:
        return self.root / f"kubepods/pod{uid}"

    def learn(self) -> None:
        self.index.replace_all(self.cgroups)
        self.index.set_pods(self.pods)
        self.known.learn(ClusterState(next(_versions), 1, pods=tuple(self.pods)))

    def found(self, at_s: float = 1) -> ReclaimMeasured:
        measured = self.collector.measure(int(at_s * NS_PER_S))
        assert measured is not None
        return measured


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_best_effort_pod_is_read_and_of_others_how_long_they_stalled(node: Node) -> None:
    found = node.found()
    (pod,) = found.pods
    assert (pod.uid, pod.path, pod.usage_bytes) == ("be", "kubepods/podbe", 150 * MIB)
    assert (pod.file_bytes, pod.anon_bytes) == (100 * MIB, 10 * MIB)
    assert (pod.stalled_us, pod.refaulted_pages) == (1200, 37)
    # One that names no class is neither trimmed nor one that must not stall.
    assert found.sensitive_us == {"ls": 1200, "asked": 1200}
    assert found.lacks == ""


def test_a_label_that_the_operator_named_lets_a_pod_be_trimmed(tmp_path: Path) -> None:
    found = Node(tmp_path, label="trim").found()
    assert {each.uid for each in found.pods} == {"be", "asked"}
    assert found.sensitive_us == {"ls": 1200}


def test_it_is_measured_each_six_seconds(node: Node) -> None:
    node.found(1)
    assert node.collector.measure(6 * NS_PER_S) is None
    assert node.collector.measure(7 * NS_PER_S) is not None


def test_nothing_before_the_pods_are_known(node: Node) -> None:
    node.known.is_whole = False
    assert node.collector.measure(NS_PER_S) is None


@pytest.mark.parametrize(("file", "why"), [("memory.reclaim", "Linux 5.19"), ("memory.pressure", "psi=0")])
def test_what_the_kernel_lacks_is_said(node: Node, file: str, why: str) -> None:
    (node.directory("be") / file).unlink()
    assert why in node.found().lacks


def test_on_cgroup_v1_it_says_that_it_cannot(tmp_path: Path) -> None:
    assert Node(tmp_path, version=1).found().lacks.startswith("cgroup v1 has no memory.reclaim")


def test_on_cgroup_v1_pods_are_read_for_their_soft_limits(tmp_path: Path) -> None:
    """Rows with children; nothing is known of stalls."""
    node = Node(tmp_path, version=1, soft_limits=True)
    directory = node.directory("be")
    (directory / "memory.usage_in_bytes").write_text(f"{150 * MIB}\n")
    totals = "".join(f"total_{line}\n" for line in STAT.format(anon=9 * MIB, file=98 * MIB).splitlines())
    (directory / "memory.stat").write_text(f"inactive_file 4096\nactive_file 4096\n{totals}")
    found = node.found()
    (pod,) = found.pods
    assert (pod.uid, pod.usage_bytes, pod.file_bytes, pod.anon_bytes) == ("be", 150 * MIB, 100 * MIB, 10 * MIB)
    assert (found.soft_limits, found.sensitive_us, found.lacks) == (True, {}, "")


def test_a_pod_that_is_gone_is_left_out_and_its_files_are_closed(node: Node) -> None:
    node.found()
    before = len(list(Path("/proc/self/fd").iterdir()))
    shutil.rmtree(node.directory("be"))
    node.cgroups = [each for each in node.cgroups if "podbe" not in each[2]]
    node.pods = node.pods[1:]
    node.learn()
    assert node.found(8).pods == ()
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 3


def test_files_that_are_garbage_leave_their_pod_out(node: Node) -> None:
    (node.directory("be") / "memory.current").write_text("many\n")
    assert node.found().pods == ()
    (node.directory("ls") / "memory.pressure").write_text("none\n")
    assert node.found(8).sensitive_us == {"asked": 1200}


def test_a_directory_that_bears_another_pods_name_is_no_pods(node: Node) -> None:
    pod = node.pods[0]
    node.pods[0] = Pod(
        ObjectMeta("thief", "team", "thief", labels={"koordinator.sh/qosClass": "BE"}),
        status=PodStatus("Running", qosClass="BestEffort"),
    )
    node.learn()
    assert pod.uid == "be"
    assert node.found().pods == ()


def test_all_files_are_closed_at_the_end(node: Node) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    node.found()
    node.collector.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before - 1  # /proc/meminfo, too
