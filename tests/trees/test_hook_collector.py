"""What runtime hooks decide from, on trees of both cgroup versions and both drivers: what is found, and when."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import msgspec
import pytest

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.collect.pod_directories import HookCollector
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kube.cache.objects import ClusterState, ContainerStatus, ObjectMeta, OwnerReference, Pod, PodStatus
from koordebpf.state.pods.hook_pods import ApplicationDirectory, HooksMeasured
from koordebpf.units import NS_PER_S
from tests.support.values.machines import machine, write_sysfs

MAIN, PAUSE = "a" * 64, "0" * 64
_versions = itertools.count(1)


class Node:
    """A tree with pods `be` and `ls` of one container and a sandbox each."""

    def __init__(self, root: Path, *, is_systemd: bool, version: int = 1) -> None:
        self.root, self.is_systemd = root, is_systemd
        write_sysfs(root / "sys", machine(cores=8))
        self.cpu = ControllerMount(version, root / "cgroup")  # type: ignore[arg-type]
        self.index = CgroupIndex()
        self.known = ClusterView()
        self.pods: list[Pod] = []
        self.cgroups: list[tuple[int, int, str]] = [(1, 0, "")]
        self.slo: dict[str, object] = {}
        self.collector = HookCollector(
            self.index, self.known, self.cpu, sysfs=root / "sys", manager=root / "cpu_manager_state"
        )
        for uid, qos in (("be", "besteffort"), ("ls", "burstable")):
            self.add(uid, qos)

    def path(self, uid: str, qos: str) -> str:
        if self.is_systemd:
            return f"kubepods.slice/kubepods-{qos}.slice/kubepods-{qos}-pod{uid.replace('-', '_')}.slice"
        return f"kubepods/{qos}/pod{uid}"

    def add(self, uid: str, qos: str, *, annotations: dict[str, str] | None = None, named: str | None = None) -> str:
        """Make a pod's directories and its object; `named`: the directory bears another UID."""
        path = self.path(named or uid, qos)
        for name in (PAUSE, MAIN):
            self.make(f"{path}/{'cri-containerd-' if self.is_systemd else ''}{name}{'.scope' * self.is_systemd}")
        owner = [OwnerReference("Node", "n1")] if annotations else None
        meta = ObjectMeta(name=uid, namespace="team", uid=uid, annotations=annotations, ownerReferences=owner)
        status = PodStatus("Running", containerStatuses=[ContainerStatus("main", f"containerd://{MAIN}")])
        self.pods.append(Pod(meta, status=status))
        return path

    def make(self, path: str) -> None:
        so_far = ""
        for name in path.split("/"):
            parent = next(each for each, _, known in self.cgroups if known == so_far)
            so_far = f"{so_far}/{name}".strip("/")
            if not any(known == so_far for _, _, known in self.cgroups):
                self.cgroups.append((len(self.cgroups) + 1, parent, so_far))
                (self.cpu.mount_point / so_far).mkdir(parents=True, exist_ok=True)

    def learn(self) -> None:
        self.index.replace_all(self.cgroups)
        self.index.set_pods(self.pods)
        slo = msgspec.Raw(json.dumps({"spec": self.slo}).encode())
        self.known.learn(ClusterState(next(_versions), 1, pods=tuple(self.pods), nodeslo=slo))

    def measured(self, at_s: float = 1) -> HooksMeasured | None:
        return self.collector.measure(int(at_s * NS_PER_S))

    def found(self, at_s: float = 1) -> HooksMeasured:
        measured = self.measured(at_s)
        assert measured is not None
        return measured


@pytest.fixture(params=["systemd", "cgroupfs"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    made = Node(tmp_path, is_systemd=request.param == "systemd")
    made.learn()
    return made


def test_pods_have_their_directory_and_those_of_their_containers(node: Node) -> None:
    found = {each.uid: each for each in node.found().pods}
    assert found["be"].path == node.path("be", "besteffort")
    assert list(found["be"].containers) == [MAIN]  # no sandbox
    assert found["be"].containers[MAIN].startswith(f"{found['be'].path}/")
    assert node.found(20).online == tuple(range(8))


def test_directories_of_qos_classes(node: Node) -> None:
    top = "kubepods.slice" if node.is_systemd else "kubepods"
    assert node.found().directories == {
        "Guaranteed": top,
        "Burstable": node.path("ls", "burstable").rpartition("/")[0],
        "BestEffort": node.path("be", "besteffort").rpartition("/")[0],
    }


def test_nothing_is_found_before_the_pods_are_known(tmp_path: Path) -> None:
    assert Node(tmp_path, is_systemd=True).measured() is None


class TestPace:
    def test_a_node_that_does_not_change_is_looked_at_each_ten_seconds(self, node: Node) -> None:
        seen = [node.measured(at_s) is not None for at_s in (1, 2, 5, 9, 11, 12, 21)]
        assert seen == [True, False, False, False, True, False, True]

    def test_a_new_container_is_found_at_once(self, node: Node) -> None:
        node.found(1)
        node.make(f"{node.path('be', 'besteffort')}/{'b' * 64}")
        node.index.replace_all(node.cgroups)
        assert "b" * 64 in {each.uid: each for each in node.found(2).pods}["be"].containers

    def test_a_cgroup_of_no_pod_is_no_news(self, node: Node) -> None:
        node.found(1)
        node.make("system.slice/cron.service")
        node.index.replace_all(node.cgroups)
        assert node.measured(2) is None

    def test_what_the_cluster_says_is_news(self, node: Node) -> None:
        node.found(1)
        node.slo = {"resourceUsedThresholdWithBE": {"enable": True}}
        node.learn()
        assert node.measured(2) is not None
        assert node.measured(3) is None

    def test_a_cpu_that_goes_offline_is_news(self, node: Node) -> None:
        node.found(1)
        (node.root / "sys" / "cpu" / "online").write_text("0-6\n")
        assert node.found(2).online == tuple(range(7))

    def test_isolated_cpus_are_those_that_kubelet_does_not_share(self, node: Node) -> None:
        assert node.found(1).isolated == ()
        (node.root / "sys" / "cpu" / "isolated").write_text("6-7\n")
        (node.root / "sys" / "cpu" / "online").write_text("0,1-7\n")  # a CPU went, and came back
        assert node.found(12).isolated == (6, 7)
        state = '{"policyName": "static", "defaultCpuSet": "0-6", "entries": null, "checksum": 1}'
        (node.root / "cpu_manager_state").write_text(state)
        assert node.found(23).isolated == (7,)

    def test_many_new_pods_are_admitted_a_few_at_a_time(self, node: Node) -> None:
        for number in range(40):
            node.add(f"many{number}", "besteffort")
        node.learn()
        counts = [len(node.found(at_s).pods) for at_s in (1, 2, 3)]
        assert counts == [16, 32, 42]
        assert node.measured(4) is None

    def test_as_many_as_are_admitted_at_once_make_no_further_look(self, node: Node) -> None:
        for number in range(14):
            node.add(f"many{number}", "besteffort")
        node.learn()
        assert len(node.found(1).pods) == 16
        assert node.measured(2) is None


def test_a_directory_that_bears_another_uid_is_not_the_pods(node: Node) -> None:
    victim = "11111111-2222-3333-4444-555555555555"
    node.add(victim, "besteffort")
    claims = {"kubernetes.io/config.hash": victim, "kubernetes.io/config.mirror": victim}
    node.add("66666666-2222-3333-4444-555555555555", "besteffort", annotations=claims, named=victim)
    node.learn()
    paths = {each.uid: each.path for each in node.found().pods}
    assert paths.get("66666666-2222-3333-4444-555555555555") is None
    assert paths[victim] == node.path(victim, "besteffort")


@pytest.mark.parametrize(("names", "has"), [
    ((), (False, False)), (("cpu.idle",), (False, True)), (("cpu.bvt_warp_ns", "cpu.idle"), (True, True)),
])  # fmt: skip
def test_what_this_kernel_has(node: Node, names: tuple[str, ...], has: tuple[bool, bool]) -> None:
    for uid, qos in (("be", "besteffort"), ("ls", "burstable")):
        for name in names:
            (node.cpu.mount_point / node.path(uid, qos) / name).write_text("0\n")
    measured = node.found()
    assert (measured.has_bvt, measured.has_idle) == has


def test_host_applications_that_have_a_directory(node: Node) -> None:
    node.slo = {
        "hostApplications": [
            {"name": "nginx", "qos": "LS"},
            {"name": "absent", "qos": "LS"},
            {"name": "yarn", "qos": "BE", "cgroupPath": {"base": "KubepodsBesteffort", "relativePath": "yarn"}},
        ]
    }
    node.learn()
    yarn = f"{node.path('be', 'besteffort').rpartition('/')[0]}/yarn"
    for path in ("host-latency-sensitive/nginx", yarn):
        (node.cpu.mount_point / path).mkdir(parents=True)
    assert node.found().applications == (
        ApplicationDirectory("nginx", "host-latency-sensitive/nginx", "LS"),
        ApplicationDirectory("yarn", yarn, "BE"),
    )
