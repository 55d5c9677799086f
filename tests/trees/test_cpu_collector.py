"""The CPU collector on trees of both cgroup versions: who is whose, what is read, and what is left out."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from koordebpf.attribution.owner import Owner
from koordebpf.attribution.paths import place_of_path
from koordebpf.collect.cpu.collector import BurstLook, CpuCollector, CpuPaths
from koordebpf.collect.cpu.owners import best_effort_root
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.state.cpu.measured import (
    BeCgroup,
    BeQuota,
    CpuManager,
    HostApplicationCpu,
    MissingDirectory,
    OtherPodsCpu,
    PodCpu,
)
from koordebpf.state.series.store import node_series
from koordebpf.strategies.cpu_suppress.wake import who_may_wake
from koordebpf.units import NS_PER_S
from tests.support.values.machines import machine, write_sysfs

BE = "kubepods.slice/kubepods-besteffort.slice"
BE_POD = f"{BE}/kubepods-besteffort-podbe_1.slice"
LS_POD = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podls_1.slice"
CONTAINER = "cri-containerd-0123456789abcdef.scope"
PATHS = [
    "kubepods.slice", BE, BE_POD, f"{BE_POD}/{CONTAINER}", f"{BE_POD}/{CONTAINER}/nested",
    "kubepods.slice/kubepods-burstable.slice", LS_POD, f"{LS_POD}/{CONTAINER}", "system.slice",
    "host-latency-sensitive", "host-latency-sensitive/nginx", "host-latency-sensitive/nginx/worker",
]  # fmt: skip
APPLICATIONS = {f"{BE}/yarn": "yarn"}


def owners(paths: Iterable[str]) -> list[Owner]:
    places = [(path, place_of_path(path, APPLICATIONS)) for path in paths]
    return [
        Owner(
            number,
            place.kind,
            path,
            place.pod_uid,
            kube_qos=place.kube_qos,
            host_application=place.host_application,
        )
        for number, (path, place) in enumerate(places)
    ]


class Node:
    def __init__(self, root: Path, version: int, paths: Iterable[str] = PATHS) -> None:
        self.root, self.version, self.paths = root, version, list(paths)
        write_sysfs(root / "sys", machine(cores=4))
        top = root / "cgroup"
        if version == 2:
            self.mounts = {name: ControllerMount(2, top) for name in ("cpu", "cpuset")}
        else:
            self.mounts = {name: ControllerMount(1, top / name) for name in ("cpu", "cpuacct", "cpuset")}
        self.set_stat(0)
        for path in self.paths:
            for mount in {each.mount_point for each in self.mounts.values()}:
                (mount / path).mkdir(parents=True, exist_ok=True)
            self.set_used(path, 0)
            self.put("cpuset", path, "cpuset.cpus", "0-3\n" if version == 1 else "\n")
            if version == 1:
                self.put("cpu", path, "cpu.cfs_quota_us", "-1\n")
                self.put("cpu", path, "cpu.cfs_period_us", "100000\n")
            else:
                self.put("cpuset", path, "cpuset.cpus.effective", "0-3\n")
                self.put("cpu", path, "cpu.max", "max 100000\n")

    def put(self, controller: str, path: str, name: str, text: str) -> None:
        (self.mounts[controller].mount_point / path / name).write_text(text)

    def set_used(self, path: str, seconds: float) -> None:
        if self.version == 1:
            self.put("cpuacct", path, "cpuacct.usage", f"{int(seconds * NS_PER_S)}\n")
        else:
            self.put("cpu", path, "cpu.stat", f"usage_usec {int(seconds * 1_000_000)}\n")

    def set_stat(self, seconds: float) -> None:
        ticks = int(seconds * os.sysconf("SC_CLK_TCK"))
        (self.root / "stat").write_text(f"cpu  {ticks} 0 0 9 9 0 0 0 0 0\n")

    def collector(self, **more: object) -> CpuCollector:
        paths = CpuPaths(self.root / "sys", self.root / "stat", self.root / "manager")
        collector = CpuCollector(self.mounts, paths=paths, **more)  # type: ignore[arg-type]
        collector.watch(owners(self.paths))
        return collector


@pytest.mark.parametrize("version", [1, 2])
def test_who_used_what(tmp_path, version):
    node = Node(tmp_path, version, [*PATHS, f"{BE}/yarn", f"{BE}/yarn/job"])
    with node.collector() as collector:
        assert collector.collect(0, node_series()).usage is None
        node.set_stat(3)
        for path, seconds in (
            (BE, 1.5), (BE_POD, 1), (LS_POD, 0.75), ("host-latency-sensitive/nginx", 0.25),
            ("host-latency-sensitive/nginx/worker", 0.2), (f"{BE}/yarn", 0.5),
        ):  # fmt: skip
            node.set_used(path, seconds)
        usage = collector.collect(NS_PER_S, node_series()).usage
    assert (usage.node_used_millicpu, usage.be_used_millicpu, usage.window_ns) == (3000, 1500, NS_PER_S)
    assert set(usage.pods) == {PodCpu("be-1", 1000, True), PodCpu("ls-1", 750, False)}
    # what is below a host application is its own
    assert set(usage.host_applications) == {
        HostApplicationCpu("yarn", 500, True),
        HostApplicationCpu("nginx", 250, False),
    }


def test_what_is_used_of_isolated_cpus_is_told_apart(tmp_path):
    node = Node(tmp_path, 2)
    (tmp_path / "sys/cpu/isolated").write_text("2-3\n")
    tick = os.sysconf("SC_CLK_TCK")

    def set_stat(whole: int, *each: int) -> None:
        lines = [f"cpu{number if number >= 0 else ''} {count} 0 0 9 9 0 0 0 0 0" for number, count in
                 enumerate((whole, *each), start=-1)]  # fmt: skip
        (tmp_path / "stat").write_text("\n".join(lines) + "\n")

    set_stat(0, 0, 0, 0, 0)
    with node.collector() as collector:
        assert collector.collect(0, node_series()).usage is None
        set_stat(3 * tick, tick // 2, tick // 2, tick, tick)
        usage = collector.collect(NS_PER_S, node_series()).usage
        assert (usage.node_used_millicpu, usage.isolated_used_millicpu) == (3000, 2000)
        # AND not of those that the kubelet shares out
        (tmp_path / "manager").write_text('{"policyName":"static","defaultCpuSet":"0-2","entries":{},"checksum":1}')
        collector.collect(2 * NS_PER_S, node_series())
        set_stat(5 * tick, tick, tick, tick, 2 * tick)
        assert collector.collect(4 * NS_PER_S, node_series()).usage.isolated_used_millicpu == 500


@pytest.mark.parametrize("version", [1, 2])
def test_where_no_caller_asks_for_each_pod_the_others_are_measured_together(tmp_path, version):
    node = Node(tmp_path, version)
    with node.collector(burst_window_ns=NS_PER_S // 10) as collector:
        for moment in (0, NS_PER_S * 9 // 10):
            collector.collect(moment, node_series(), each_pod=False)
        for path, seconds in (("kubepods.slice", 0.25), (BE, 0.1), (BE_POD, 0.1), (LS_POD, 0.1)):
            node.set_used(path, seconds)
        usage = collector.collect(NS_PER_S, node_series(), each_pod=False).usage
    # One pod ended within the window: kubepods still knows what it used.
    assert (usage.be_used_millicpu, usage.pods) == (100, ())
    assert usage.other_pods == OtherPodsCpu(150, 1500)
    assert usage.other_pods.claimed_millicpu == 1500


def test_pods_that_have_no_directory_with_the_others_are_measured_one_by_one(tmp_path):
    # GIVEN what another cgroup driver left
    node = Node(tmp_path, 2, [*PATHS, "kubepods", "kubepods/burstable", "kubepods/burstable/podold"])
    with node.collector() as collector:
        collector.collect(0, node_series(), each_pod=False)
        for path, seconds in (("kubepods.slice", 0.3), (BE, 0.1), (LS_POD, 0.2), ("kubepods/burstable/podold", 0.05)):
            node.set_used(path, seconds)
        usage = collector.collect(NS_PER_S, node_series(), each_pod=False).usage
    assert (usage.pods, usage.other_pods) == ((PodCpu("old", 50, False),), OtherPodsCpu(200))


def test_where_an_application_lies_among_the_pods_each_is_measured(tmp_path, monkeypatch):
    inside = "kubepods.slice/nginx"
    monkeypatch.setitem(APPLICATIONS, inside, "nginx")
    node = Node(tmp_path, 2, [*PATHS[:8], inside])
    with node.collector() as collector:
        collector.collect(0, node_series(), each_pod=False)
        for path, seconds in (("kubepods.slice", 0.3), (LS_POD, 0.2), (inside, 0.1)):
            node.set_used(path, seconds)
        usage = collector.collect(NS_PER_S, node_series(), each_pod=False).usage
    assert (usage.pods, usage.other_pods) == ((PodCpu("ls-1", 200, False),), None)
    assert usage.host_applications == (HostApplicationCpu("nginx", 100),)


def test_what_the_others_use_is_never_below_zero(tmp_path):
    # The two files are read one after the other.
    node = Node(tmp_path, 2)
    with node.collector() as collector:
        collector.collect(0, node_series(), each_pod=False)
        node.set_used("kubepods.slice", 0.099)
        node.set_used(BE, 0.1)
        assert collector.collect(NS_PER_S, node_series(), each_pod=False).usage.other_pods == OtherPodsCpu(0)


def test_a_burst_of_those_that_are_not_best_effort(tmp_path):
    node = Node(tmp_path, 2)
    with node.collector(burst_window_ns=NS_PER_S // 10) as collector:
        for moment in (0, NS_PER_S * 9 // 10):
            collector.collect(moment, node_series())
        for path in (BE_POD, LS_POD, "host-latency-sensitive/nginx"):
            node.set_used(path, 0.1)
        usage = collector.collect(NS_PER_S, node_series()).usage
    assert set(usage.pods) == {PodCpu("be-1", 100, True, None), PodCpu("ls-1", 100, False, 1000)}
    assert usage.host_applications == (HostApplicationCpu("nginx", 100, False, 1000),)
    assert {pod.uid: pod.claimed_millicpu for pod in usage.pods} == {"be-1": 100, "ls-1": 1000}


@pytest.mark.parametrize("version", [1, 2])
def test_a_look_between_two_samples(tmp_path, version):
    node = Node(tmp_path, version)
    with node.collector(burst_window_ns=NS_PER_S // 10) as collector:
        collector.collect(0, node_series())
        collector.sample_burst(NS_PER_S * 9 // 10)
        for path, seconds in (("kubepods.slice", 0.08), (BE, 0.05), ("host-latency-sensitive/nginx", 0.02)):
            node.set_used(path, seconds)
        assert collector.sample_burst(NS_PER_S) == BurstLook(others_millicpu=500, best_effort_millicpu=500)
        # WHEN an application is gone THEN the others are looked at all the same
        for mount in {each.mount_point for each in node.mounts.values()}:
            shutil.rmtree(mount / "host-latency-sensitive/nginx")
        node.set_used("kubepods.slice", 0.09)
        assert collector.sample_burst(NS_PER_S * 11 // 10) == BurstLook(100, 0)


def test_a_look_and_a_sample_measure_over_the_same_time(tmp_path):
    # GIVEN samples that ask for each pod, between two looks
    node = Node(tmp_path, 2)
    with node.collector(burst_window_ns=NS_PER_S // 10) as collector:
        collector.collect(0, node_series())
        collector.sample_burst(NS_PER_S)
        for tenth in range(1, 11):
            node.set_used("kubepods.slice", 0.1 * tenth)
            node.set_used(BE, 0.1 * tenth)
            collector.collect(NS_PER_S + tenth * NS_PER_S // 100, node_series())
        assert collector.sample_burst(NS_PER_S * 111 // 100).others_millicpu == 0


def test_without_a_window_of_bursts_a_look_sees_no_pod(tmp_path):
    node = Node(tmp_path, 2)
    with node.collector() as collector:
        collector.collect(0, node_series())
        node.set_used(LS_POD, 1)
        assert collector.sample_burst(NS_PER_S) == BurstLook(0, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_the_best_effort_tree(tmp_path, version):
    node = Node(tmp_path, version)
    name = "cpuset.cpus" if version == 1 else "cpuset.cpus.effective"
    node.put("cpuset", BE_POD, name, "0,2\n")
    node.put(
        "cpu", BE, "cpu.cfs_quota_us" if version == 1 else "cpu.max", "5000\n" if version == 1 else "5000 100000\n"
    )
    with node.collector() as collector:
        measured = collector.collect(0, node_series())
    tree = [
        BeCgroup(BE, "root", None, (0, 1, 2, 3)),
        BeCgroup(BE_POD, "pod", "be-1", (0, 2)),
        BeCgroup(f"{BE_POD}/{CONTAINER}", "container", "be-1", (0, 1, 2, 3)),
    ]
    # v1: the set of a container holds nothing that its children hold and it does not
    nested = [BeCgroup(f"{BE_POD}/{CONTAINER}/nested", "container", "be-1", (0, 1, 2, 3))] if version == 1 else []
    assert list(measured.be_cgroups) == tree + nested
    assert (measured.be_quota, measured.be_parent_cpus, measured.be_idle) == (BeQuota(5000), (0, 1, 2, 3), None)
    assert measured.window.be_limit_millicpu == 50


def test_what_is_gone_is_left_out_and_what_cannot_be_read_is_not_known(tmp_path):
    node = Node(tmp_path, 2)
    with node.collector() as collector:
        collector.collect(0, node_series())
        for name in ("cpuset.cpus.effective", "cpu.max"):
            (tmp_path / "cgroup" / BE / name).unlink()
        for path in (f"{BE_POD}/{CONTAINER}/nested", f"{BE_POD}/{CONTAINER}"):
            for file in (tmp_path / "cgroup" / path).iterdir():
                file.unlink()
            (tmp_path / "cgroup" / path).rmdir()
        collector.watch(owners(PATHS))
        # another collector, without fds of before
        with node.collector() as fresh:
            measured = fresh.collect(NS_PER_S, node_series())
    assert [(each.level, each.cpus) for each in measured.be_cgroups] == [("root", None), ("pod", (0, 1, 2, 3))]
    assert measured.be_quota is None


def reads() -> int:
    """Return how many read system calls this process has made."""
    return int(Path("/proc/self/io").read_text().split("syscr:")[1].split()[0])


class TestManySets:
    """Of 200 containers a part is looked at in each round."""

    CONTAINERS = tuple(f"{BE_POD}/cri-containerd-{number:03}.scope" for number in range(200))

    @pytest.fixture
    def node(self, tmp_path):
        return Node(tmp_path, 2, [*PATHS[:3], *self.CONTAINERS])

    def sets(self, collector: CpuCollector, second: int) -> dict[str, tuple[int, ...] | None]:
        return {each.path: each.cpus for each in collector.collect(second * NS_PER_S, node_series()).be_cgroups}

    def test_where_nothing_changes_most_are_not_read(self, node):
        with node.collector() as collector:
            first = self.sets(collector, 0)
            before = reads()
            assert self.sets(collector, 1) == first
            assert reads() - before < 30

    def test_where_all_change_all_are_read_at_once(self, node):
        with node.collector() as collector:
            self.sets(collector, 0)
            for path in self.CONTAINERS:
                node.put("cpuset", path, "cpuset.cpus.effective", "0-1\n")
            now = self.sets(collector, 1)
        assert {now[path] for path in self.CONTAINERS} == {(0, 1)}
        assert now[BE] == (0, 1, 2, 3)

    def test_what_one_has_instead_is_seen_within_thirty_rounds(self, node):
        path = self.CONTAINERS[170]
        with node.collector() as collector:
            self.sets(collector, 0)
            node.put("cpuset", path, "cpuset.cpus.effective", "0\n")
            assert any(self.sets(collector, second)[path] == (0,) for second in range(1, 31))

    def test_one_that_is_born_is_read_at_once_and_one_that_is_gone_is_left_out(self, node):
        *kept, gone = self.CONTAINERS
        born = f"{BE_POD}/cri-containerd-new.scope"
        with node.collector() as collector:
            self.sets(collector, 0)
            (node.root / "cgroup" / born).mkdir()
            node.put("cpuset", born, "cpuset.cpus.effective", "3\n")
            shutil.rmtree(node.root / "cgroup" / gone)
            collector.watch(owners([*PATHS[:3], *kept, born]))
            now = self.sets(collector, 1)
        assert (now[born], gone in now, len(now)) == ((3,), False, 202)


def test_without_best_effort_pods(tmp_path):
    node = Node(tmp_path, 2, ["kubepods.slice", "system.slice"])
    with node.collector() as collector:
        collector.collect(0, node_series())
        measured = collector.collect(NS_PER_S, node_series())
    assert (measured.be_cgroups, measured.be_quota, measured.be_parent_cpus) == ((), None, None)
    assert measured.usage.be_used_millicpu is None


@pytest.mark.parametrize(
    ("without", "missing"),
    [
        (("cpuset",), ("cpuset",)),
        (("cpu",), ("cpu",)),
        (("cpu", "cpuset"), ("cpu", "cpuset")),
        (("memory", "cpu", "cpuset"), ()),  # it is gone, and the index does not know it yet
        ((), ()),
    ],
)
def test_on_v1_hierarchies_without_the_best_effort_directory_are_named(tmp_path, without, missing):
    node = Node(tmp_path, 1)
    node.mounts["memory"] = ControllerMount(1, tmp_path / "cgroup/memory")
    (tmp_path / "cgroup/memory" / BE).mkdir(parents=True)
    for controller in without:
        shutil.rmtree(tmp_path / "cgroup" / controller / BE)
    with node.collector() as collector:
        measured = collector.collect(0, node_series())
    paths = {each: str(tmp_path / "cgroup" / each / BE) for each in missing}
    assert measured.be_missing == tuple(MissingDirectory(each, path) for each, path in paths.items())
    assert bool(measured.be_cgroups) == ("cpuset" not in without)


CGROUPFS = "kubepods/besteffort"


@pytest.mark.parametrize(
    ("paths", "root"),
    [
        ([CGROUPFS, BE], BE),  # no pod yet: as koordlet
        ([CGROUPFS, BE, BE_POD], BE),
        ([CGROUPFS, BE, f"{CGROUPFS}/podbe-1"], CGROUPFS),
        ([CGROUPFS, BE, f"{CGROUPFS}/podbe-1", BE_POD], BE),
        ([CGROUPFS], CGROUPFS),
        (["kubepods.slice"], None),
        # below a --cgroup-root, beside what was left of another driver
        ([CGROUPFS, "x.slice/x-kubepods.slice/x-kubepods-besteffort.slice",
          "x.slice/x-kubepods.slice/x-kubepods-besteffort.slice/x-kubepods-besteffort-podbe_1.slice"],
         "x.slice/x-kubepods.slice/x-kubepods-besteffort.slice"),
    ],
)  # fmt: skip
def test_which_best_effort_directory_is_the_nodes(paths, root):
    # GIVEN what a change of kubelet's cgroup driver leaves until the next boot
    for order in (paths, paths[::-1]):
        assert best_effort_root({each.path: each for each in owners(order)}) == root


def test_whose_cpu_pressure_wakes_suppression():
    guaranteed = "kubepods.slice/kubepods-podls_2.slice"
    paths = [*PATHS, guaranteed, f"{guaranteed}/{CONTAINER}", f"{BE}/yarn", f"{BE}/yarn/job"]
    assert set(who_may_wake({each.path: each for each in owners(paths)}).values()) == {
        "kubepods.slice/kubepods-burstable.slice",
        guaranteed,
        "host-latency-sensitive/nginx",
    }


def test_kubelets_cpu_manager(tmp_path, caplog):
    node = Node(tmp_path, 2)
    (tmp_path / "manager").write_text(
        '{"policyName":"static","defaultCpuSet":"0,3","entries":{"uid-1":{"main":"1-2"}}}'
    )
    with node.collector() as collector, caplog.at_level(logging.WARNING):
        assert collector.collect(0, node_series()).manager == CpuManager("static", {"uid-1": (1, 2)}, (0, 3))
        (tmp_path / "manager").write_text("rubbish")
        assert [collector.collect(second * NS_PER_S, node_series()).manager for second in (1, 2)] == [None, None]
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # once
