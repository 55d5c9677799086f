"""What block IO decides from, on trees of both cgroup drivers: directories, files, volumes, and when."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kube.cache.objects import ClusterState, ContainerStatus, ObjectMeta, OwnerReference, Pod, PodStatus
from koordebpf.strategies.block_io.run import BlockIOCollector
from koordebpf.strategies.block_io.values import BLKIO_QOS_ANNOTATION, BlockIOMeasured
from koordebpf.units import NS_PER_S
from tests.support.values.block_io import block

MAIN = "a" * 64
BE, LS = "kubepods/besteffort/podbe", "kubepods/burstable/podls"
MOUNTS = (
    "1 0 8:0 / / rw - ext4 /dev/sda rw\n"
    "2 1 8:16 / /k/pods/ls/volumes/kubernetes.io~csi/pvc-1/mount rw - ext4 /dev/sdb rw\n"
    "3 1 8:0 / /k/pods/ls/volumes/kubernetes.io~local-volume/pvc-2 rw - ext4 /dev/sda rw\n"
    "4 1 8:0 / /k/pods/ls/volumes/a/b/c/d rw - ext4 /dev/sda rw\n"
    "5 1 8:16 / /k/pods/be/volumes/kubernetes.io~csi/pvc-3/mount rw - ext4 /dev/sdb rw\n"
)


class Node:
    """A tree with pods `be` and `ls`; the second one asks for limits."""

    def __init__(self, root: Path, version: int = 2) -> None:
        self.root = root
        for name, number in (("sda", "8:0"), ("sdb", "8:16")):
            (root / "sys/class/block" / name).mkdir(parents=True)
            (root / "sys/class/block" / name / "dev").write_text(f"{number}\n")
        (root / "mountinfo").write_text(MOUNTS)
        self.index, self.known = CgroupIndex(), ClusterView()
        self.mount = ControllerMount(version, root / "cgroup")  # type: ignore[arg-type]
        self.collector = BlockIOCollector(
            self.index, self.known, self.mount, "/k", root / "sys", [root / "mountinfo"]
        )  # fmt: skip
        self.version = 0
        paths = ["", "kubepods", "kubepods/besteffort", "kubepods/burstable", BE, f"{BE}/{MAIN}", LS, f"{LS}/{MAIN}"]
        self.cgroups = [
            (at, paths.index(path.rpartition("/")[0]) + 1 if path else 0, path) for at, path in enumerate(paths, 1)
        ]
        for path in paths:
            (self.mount.mount_point / path).mkdir(parents=True, exist_ok=True)

    def has(self, path: str, *names: str) -> None:
        for name in names:
            (self.mount.mount_point / path / name).write_text("")

    def learn(self, *, is_asking: bool = True, blocks: tuple[object, ...] = ()) -> None:
        self.version += 1
        pods = []
        for uid in ("be", "ls"):
            annotations = {BLKIO_QOS_ANNOTATION: "{}"} if uid == "ls" and is_asking else None
            meta = ObjectMeta(name=uid, namespace="team", uid=uid, annotations=annotations)
            meta = msgspec.structs.replace(meta, ownerReferences=[OwnerReference("Node", "n1")])
            pods.append(Pod(meta, status=PodStatus("Running", containerStatuses=[ContainerStatus("c", f"x://{MAIN}")])))
        self.index.replace_all(self.cgroups)
        self.index.set_pods(pods)
        slo = {"spec": {"resourceQOSStrategy": {"beClass": {"blkioQOS": {"enable": True, "blocks": blocks}}}}}
        raw = msgspec.Raw(json.dumps(slo).encode())
        self.known.learn(ClusterState(self.version, 1, pods=tuple(pods), nodeslo=raw))

    def measured(self, at_s: float = 1) -> BlockIOMeasured | None:
        return self.collector.measure(int(at_s * NS_PER_S))

    def found(self, at_s: float = 1) -> BlockIOMeasured:
        measured = self.measured(at_s)
        assert measured is not None
        return measured


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_pods_their_containers_and_the_volumes_of_those_that_ask(node: Node) -> None:
    node.learn()
    pods = {each.uid: each for each in node.found().pods}
    assert {uid: each.path for uid, each in pods.items()} == {"be": BE, "ls": LS}
    assert pods["be"].containers == {MAIN: f"{BE}/{MAIN}"}
    assert pods["ls"].volumes == {"pvc-1": ("8:16",), "pvc-2": ("8:0",)}
    assert pods["be"].volumes == {}


def test_directories_and_devices(node: Node) -> None:
    node.learn()
    found = node.found()
    assert found.directories == {
        "BestEffort": "kubepods/besteffort", "Burstable": "kubepods/burstable", "Guaranteed": "kubepods",
    }  # fmt: skip
    assert (found.devices, found.groups, found.version) == ({"/dev/sda": ("8:0",), "/dev/sdb": ("8:16",)}, {}, 2)


def test_no_device_is_looked_for_where_nothing_names_one(node: Node) -> None:
    node.learn(is_asking=False)
    assert node.found().devices == {}
    node.learn(is_asking=False, blocks=(block(),))
    assert node.found().devices != {}


def test_files_that_are_there_count_as_this_nodes(node: Node) -> None:
    node.has("kubepods/besteffort", "io.max", "io.latency", "io.cost.qos")
    node.has("", "io.cost.model", "io.weight")
    node.learn()
    files = node.found().files
    assert {CgroupFile.IO_READ_BPS, CgroupFile.IO_WRITE_IOPS, CgroupFile.IO_LATENCY} <= set(files)
    assert CgroupFile.IO_MODEL_RBPS in files
    assert not {CgroupFile.IO_WEIGHT, CgroupFile.IO_COST_RPCT} & set(files)  # not in that directory


def test_files_of_v1(tmp_path: Path) -> None:
    node = Node(tmp_path, version=1)
    node.has("kubepods/besteffort", "blkio.throttle.write_bps_device", "blkio.bfq.weight_device")
    node.learn()
    assert set(node.found().files) == {CgroupFile.IO_WRITE_BPS, CgroupFile.IO_WEIGHT}


def test_it_is_looked_at_each_ten_seconds_and_after_a_change(node: Node) -> None:
    assert node.measured() is None  # pods are not known yet
    node.learn()
    assert [node.measured(at_s) is not None for at_s in (1, 2, 9, 11, 12)] == [True, False, False, True, False]
    node.learn()
    assert node.measured(13) is not None


def test_a_table_of_mounts_that_cannot_be_read_leaves_the_others(node: Node) -> None:
    tables = [node.root / "mountinfo", node.root / "of-another-process"]
    node.collector = BlockIOCollector(node.index, node.known, node.mount, "/k", node.root / "sys", tables)
    node.learn()
    assert {each.uid: each for each in node.found().pods}["ls"].volumes != {}


def test_without_sysfs_it_says_so(node: Node) -> None:
    node.learn()
    (node.root / "sys").rename(node.root / "gone")
    with pytest.raises(SupportError, match="Mount sysfs"):
        node.measured()
