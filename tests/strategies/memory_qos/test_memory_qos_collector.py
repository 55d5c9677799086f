"""What memory QoS decides from, on trees of both cgroup versions: which files there are, and what protects above."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.errors import KernelFileError
from koordebpf.strategies.memory_qos.run import MemoryQosCollector
from koordebpf.strategies.memory_qos.values import MemoryQosMeasured, Protection
from koordebpf.units import NS_PER_S
from tests.trees.test_hook_collector import MAIN, Node


class MemoryNode(Node):
    def __init__(self, root: Path, *, version: int, is_systemd: bool = False, files: tuple[str, ...] = ()) -> None:
        super().__init__(root, is_systemd=is_systemd, version=version)
        for path in (self.path("be", "besteffort"), self.path("ls", "burstable")):
            for name in files:
                (self.cpu.mount_point / path / name).write_text("0\n")
        self.memory = MemoryQosCollector(self.collector, self.cpu)

    def look(self, at_s: float = 1) -> MemoryQosMeasured | None:
        return self.memory.measure(int(at_s * NS_PER_S))


V2 = ("memory.min", "memory.low", "memory.high", "memory.max", "memory.oom.group")


@pytest.mark.parametrize("is_systemd", [False, True])
def test_pods_directories_and_files_are_found(tmp_path: Path, *, is_systemd: bool) -> None:
    node = MemoryNode(tmp_path, version=2, is_systemd=is_systemd, files=(*V2, "memory.wmark_ratio"))
    node.slo = {"resourceQOSStrategy": {"lsClass": {"memoryQOS": {"enable": True, "minLimitPercent": 5}}}}
    node.learn()
    found = node.look()
    assert found is not None
    assert {each.uid: each.path for each in found.pods} == {
        "be": node.path("be", "besteffort"), "ls": node.path("ls", "burstable"),
    }  # fmt: skip
    assert MAIN in found.pods[0].containers
    assert found.directories["Guaranteed"] == node.path("ls", "burstable").split("/")[0]
    assert set(found.files) == {
        "memory.min", "memory.low", "memory.high", "memory.limit_in_bytes", "memory.oom.group", "memory.wmark_ratio",
    }  # fmt: skip
    assert found.qos is not None
    assert found.qos.lsClass is not None
    assert found.qos.lsClass.memoryQOS is not None
    assert found.qos.lsClass.memoryQOS.minLimitPercent == 5
    assert found.above == ()


def test_on_v1_there_are_soft_limits_alone(tmp_path: Path) -> None:
    node = MemoryNode(tmp_path, version=1, files=("memory.limit_in_bytes", "memory.soft_limit_in_bytes", "memory.min"))
    node.learn()
    found = node.look()
    assert found is not None
    assert set(found.files) == {"memory.limit_in_bytes", "memory.soft_limit_in_bytes"}


def test_a_look_is_due_each_10_s_and_after_a_change(tmp_path: Path) -> None:
    node = MemoryNode(tmp_path, version=2, files=V2)
    assert node.look() is None  # nothing is known of the cluster yet
    node.learn()
    first = node.look()
    assert first is not None
    assert node.look(2) is None
    node.learn()
    again = node.look(3)
    assert again is first  # an equal look is the same value
    assert node.look(20) is first
    node.memory.close()


class TestAbove:
    def node(self, root: Path, files: dict[str, str]) -> MemoryNode:
        node = MemoryNode(root, version=2)
        node.path = lambda uid, qos: f"kubelet/kubepods/{qos}/pod{uid}"  # type: ignore[method-assign]
        node.pods, node.cgroups = [], [(1, 0, "")]
        node.add("ls", "burstable")
        for name in V2:
            (node.cpu.mount_point / node.path("ls", "burstable") / name).write_text("0\n")
        for name, text in files.items():
            (node.cpu.mount_point / "kubelet" / name).write_text(text)
        node.learn()
        return node

    def test_what_protects_the_directories_above_pods_is_read(self, tmp_path: Path) -> None:
        node = self.node(tmp_path, {"memory.min": "4096\n", "memory.low": "max\n"})
        found = node.look()
        assert found is not None
        assert found.above == (Protection("kubelet", 4096, None),)

    def test_a_node_that_is_a_cgroup_is_not_above_its_pods(self, tmp_path: Path) -> None:
        node = self.node(tmp_path, {"memory.min": "4096\n", "memory.low": "max\n"})
        found = MemoryQosCollector(node.collector, node.cpu, "kubelet").measure(NS_PER_S)
        assert found is not None
        assert found.above == ()

    def test_one_that_lacks_a_file_is_left_out(self, tmp_path: Path) -> None:
        found = self.node(tmp_path, {"memory.min": "4096\n"}).look()
        assert found is not None
        assert found.above == ()

    def test_what_is_no_number_is_named(self, tmp_path: Path) -> None:
        node = self.node(tmp_path, {"memory.min": "much\n", "memory.low": "0\n"})
        with pytest.raises(KernelFileError, match=r"kubelet/memory\.min"):
            node.look()
