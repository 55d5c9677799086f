"""resctrl over a fake of its files that refuses what the kernel refuses: no CPU of this project's machines has it.

Tasks are real ones of real cgroups.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.restore import restore_journal
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.kernel.cgroup.files import Sysctl
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.policy.reconcile import DesiredState, SysctlWrite
from koordebpf.slo.spec import parse_spec
from koordebpf.state.build import view_of_frame
from koordebpf.strategies.resctrl.decide import Members
from koordebpf.strategies.resctrl.groups import ResctrlGroups, recorded_groups
from koordebpf.strategies.resctrl.monitor import ResctrlMonitor
from koordebpf.strategies.resctrl.run import ResctrlCollector, read_monitoring
from koordebpf.strategies.resctrl.values import GROUPS, BandwidthInfo, CacheInfo, MonitoredDomain, PodTasks
from koordebpf.units import NS_PER_S
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.fake_mount import mounted
from tests.host.live_agent import LiveAgent
from tests.support.fake_resctrl import CBM_MASK, DOMAINS, FakeResctrl
from tests.support.hierarchies import remove_tree
from tests.support.values.builders import frame

ROOT = Path(__file__).parents[2]
BE_30 = {"beClass": {"resctrlQOS": {"enable": True, "catRangeEndPercent": 30, "mbaPercent": 45}}}
POD = "kubepods/besteffort/pod766b3a82-9d62-406d-ab3d-984b1d7ecfec"
# The mask of 30 % of 11 ways; 45 % rounded up to steps of 10.
LIMITED = {"L3": dict.fromkeys(DOMAINS, 0xF), "MB": dict.fromkeys(DOMAINS, 50)}


class NoIndex:
    """Of a node without pods."""

    def pod_cgroups(self) -> dict[str, int]:
        return {}


class OnePod:
    """Of a node with one pod."""

    uid = "766b3a82-9d62-406d-ab3d-984b1d7ecfec"

    def pod_cgroups(self) -> dict[str, int]:
        return {self.uid: 7}

    def owner(self, cgroup_id: int) -> Owner:
        return Owner(cgroup_id, OwnerKind.POD, f"/{POD}")

    def names_to_act_on(self, uid: str) -> frozenset[str]:
        return frozenset({uid})


@pytest.fixture
def fake() -> FakeResctrl:
    return FakeResctrl()


@pytest.fixture
def root(fake: FakeResctrl, tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "sys/fs/resctrl", fake.root())


@pytest.fixture
def pods() -> Iterator[Path]:
    """A directory for pods' cgroups in the hierarchy of the CPU controller, or of cgroup v2."""
    mounts = find_controllers()
    mount = mounts.get("cpu") or next(iter(mounts.values()))
    top = mount.mount_point / f"koordebpf-resctrl-{os.getpid()}"
    top.mkdir()
    yield top
    remove_tree(top)


_SLEEP = """
import threading, time
for _ in range({others}):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(flush=True)
time.sleep(60)
"""


class Sleepers:
    """Processes in cgroups of pods, of so many threads each."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, path: str, threads: int = 1) -> int:
        directory = self._top / path
        directory.mkdir(parents=True, exist_ok=True)
        code = _SLEEP.format(others=threads - 1)
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        self._started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        (directory / "cgroup.procs").write_text(str(process.pid))
        return process.pid

    def end(self) -> None:
        for each in self._started:
            each.kill()
            each.communicate()
        self._started = []


@pytest.fixture
def sleepers(pods: Path) -> Iterator[Sleepers]:
    made = Sleepers(pods)
    yield made
    made.end()


class Rig:
    """Groups with their record and what they reported."""

    def __init__(self, root: Path, pods: Path, folder: Path, *, enforce: bool = True) -> None:
        self.record = folder / GROUPS
        self.changes: list[FileChange] = []
        self.groups = ResctrlGroups(root, pods, self.record if enforce else None, self.changes.append)

    @property
    def results(self) -> list[tuple[str, WriteResult]]:
        return [(Path(each.path).name, each.result) for each in self.changes]


def tids(pid: int) -> set[int]:
    return {int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()}


class TestGroups:
    @pytest.fixture
    def rig(self, root: Path, pods: Path, tmp_path: Path) -> Rig:
        return Rig(root, pods, tmp_path)

    def test_every_thread_of_a_pod_is_moved_and_new_ones_are_found(
        self, rig: Rig, fake: FakeResctrl, sleepers: Sleepers
    ) -> None:
        first, other = sleepers.start("be/c1", threads=3), sleepers.start("ls/c1")
        members = (Members("BE", ("be",)),)
        rig.groups.apply(("BE",), members, 0)
        assert fake.tasks == dict.fromkeys(tids(first), "BE")
        second = sleepers.start("be/c2/below", threads=2)
        rig.groups.apply(("BE",), members, 5 * NS_PER_S)  # not due: nothing has changed that it knows of
        assert second not in fake.tasks
        rig.groups.apply(("BE",), members, 10 * NS_PER_S)
        assert set(fake.tasks) == tids(first) | tids(second)
        assert other not in fake.tasks
        assert rig.groups.moved == 5
        # a pod that is new is looked at once
        rig.groups.apply(("BE", "LS"), (*members, Members("LS", ("ls",))), 11 * NS_PER_S)
        assert fake.tasks[other] == "LS"
        rig.groups.restore(12 * NS_PER_S)
        assert (fake.tasks, set(fake.schemata)) == ({}, {""})
        assert not rig.record.exists()

    def test_what_is_no_pods_is_left_alone(self, rig: Rig, fake: FakeResctrl, sleepers: Sleepers) -> None:
        sleepers.start("be/c1")
        rig.groups.apply(("BE",), (Members("BE", ("be", "gone")),), 0)
        assert os.getpid() not in fake.tasks

    def test_a_group_that_is_not_wanted_any_more_gives_its_tasks_back(
        self, rig: Rig, fake: FakeResctrl, sleepers: Sleepers
    ) -> None:
        sleepers.start("be/c1")
        rig.groups.apply(("LSR", "BE"), (Members("BE", ("be",)),), 0)
        assert set(fake.schemata) == {"", "LSR", "BE"}
        rig.groups.apply(("LSR",), (), NS_PER_S)
        assert (set(fake.schemata), fake.tasks) == ({"", "LSR"}, {})
        assert rig.results[-1] == ("BE", WriteResult.WRITTEN)

    def test_more_groups_than_the_hardware_has_are_named_once(self, rig: Rig, fake: FakeResctrl, root: Path) -> None:
        (root / "admins").mkdir()
        for second in range(3):
            rig.groups.apply(("LSR", "LS", "BE"), (), second * NS_PER_S)
        assert rig.results == [
            ("LSR", WriteResult.WRITTEN),
            ("LS", WriteResult.WRITTEN),
            ("BE", WriteResult.REFUSED),
        ]
        assert rig.changes[-1].detail == "ENOSPC"
        assert rig.groups.made == {"LSR", "LS"}
        rig.groups.restore(0)
        assert set(fake.schemata) == {"", "admins"}

    def test_a_killed_agents_groups_are_known_to_the_next(
        self, rig: Rig, fake: FakeResctrl, root: Path, pods: Path, tmp_path: Path
    ) -> None:
        rig.groups.apply(("BE",), (), 0)
        after = Rig(root, pods, tmp_path)
        assert after.groups.made == {"BE"}
        after.groups.restore(1)
        assert set(fake.schemata) == {""}

    def test_a_group_that_another_process_removed_is_made_again(self, rig: Rig, fake: FakeResctrl, root: Path) -> None:
        rig.groups.apply(("BE",), (), 0)
        (root / "BE").rmdir()
        rig.groups.apply(("BE",), (), 1)
        assert "BE" in fake.schemata

    def test_a_group_that_another_process_made_since_stays(self, rig: Rig, fake: FakeResctrl, root: Path) -> None:
        rig.groups.apply(("BE",), (), 0)
        (root / "BE").rmdir()
        (root / "BE").mkdir()
        rig.groups.restore(1)
        assert "BE" in fake.schemata
        assert not rig.record.exists()

    def test_a_dry_run_makes_nothing(
        self, root: Path, pods: Path, tmp_path: Path, fake: FakeResctrl, sleepers: Sleepers
    ) -> None:
        sleepers.start("be/c1")
        rig = Rig(root, pods, tmp_path, enforce=False)
        rig.groups.apply(("BE",), (Members("BE", ("be",)),), 0)
        rig.groups.apply(("BE",), (Members("BE", ("be",)),), 1)
        assert rig.results == [("BE", WriteResult.DRY_RUN)]
        assert (set(fake.schemata), fake.tasks) == ({""}, {})

    def test_a_record_that_cannot_be_written_makes_no_group(self, root: Path, pods: Path, tmp_path: Path) -> None:
        rig = Rig(root, pods, tmp_path / "not-there")
        rig.groups.apply(("BE",), (), 0)
        assert rig.results == [("BE", WriteResult.HELD)]
        assert not (root / "BE").exists()


class TestSchemata:
    @pytest.fixture
    def places(self, root: Path) -> Places:
        (root / "BE").mkdir()
        return Places({}, sysfs=root.parents[1])

    @staticmethod
    def wanted(**parts: int) -> DesiredState:
        each = (
            SysctlWrite(Sysctl.RESCTRL_SCHEMATA, value, f"BE/{resource}/{domain}")
            for resource, value in parts.items()
            for domain in DOMAINS
        )
        return DesiredState("a test", sysctls=tuple(each))

    def test_each_domain_is_a_write_and_all_are_restored(
        self, places: Places, fake: FakeResctrl, tmp_path: Path
    ) -> None:
        with Journal(tmp_path / "journal") as journal:
            writer = CgroupWriter(places, journal, enforce=True)
            report = writer.apply(self.wanted(L3=0xF, MB=50), 0)
            assert [each.new for each in report.changes] == ["L3:0=f", "L3:8=f", "MB:0=50", "MB:8=50"]
            assert fake.schemata["BE"] == LIMITED
            assert writer.apply(self.wanted(L3=0xF, MB=50), 1).changes == ()
            assert not fake.refused
        restore_journal(tmp_path / "journal", places, 2)
        assert fake.schemata["BE"] == fake.schemata[""]

    @pytest.mark.parametrize("mask", [0x1, 0x5, CBM_MASK + 1])
    def test_what_the_kernel_refuses_is_named_and_the_rest_written(
        self, places: Places, fake: FakeResctrl, tmp_path: Path, mask: int
    ) -> None:
        with Journal(tmp_path / "journal") as journal:
            report = CgroupWriter(places, journal, enforce=True).apply(self.wanted(L3=mask, MB=50), 0)
        results = [(each.result, each.detail) for each in report.changes]
        assert results == [(WriteResult.REFUSED, "EINVAL")] * 2 + [(WriteResult.WRITTEN, "")] * 2
        assert fake.schemata["BE"] == {"L3": fake.schemata[""]["L3"], "MB": LIMITED["MB"]}

    def test_a_value_that_the_kernel_rounds_is_named(self, places: Places, tmp_path: Path) -> None:
        with Journal(tmp_path / "journal") as journal:
            report = CgroupWriter(places, journal, enforce=True).apply(self.wanted(MB=45), 0)
        assert {each.detail for each in report.changes} == {"the kernel took another value"}

    def test_a_group_that_is_removed_is_dropped_from_the_journal(
        self, places: Places, root: Path, fake: FakeResctrl, tmp_path: Path
    ) -> None:
        with Journal(tmp_path / "journal") as journal:
            writer = CgroupWriter(places, journal, enforce=True)
            writer.apply(self.wanted(L3=0xF), 0)
            (root / "BE").rmdir()
            results = {each.result for each in writer.apply(self.wanted(L3=0xF), 20 * NS_PER_S).changes}
            assert results == {WriteResult.GONE}
            writer.restore(21 * NS_PER_S)
            assert not journal.originals


class TestCollector:
    def collector(
        self, root: Path, tmp_path: Path, vendor: str = "GenuineIntel", options: str = "rw"
    ) -> ResctrlCollector:
        proc = tmp_path / "proc"
        (proc / "self").mkdir(parents=True, exist_ok=True)
        (proc / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
        (proc / "self/mountinfo").write_text(
            f"23 1 0:21 / /proc rw - proc proc rw\n60 23 0:50 / {root} rw - resctrl resctrl {options}\n"
        )
        return ResctrlCollector(root, NoIndex(), proc)  # type: ignore[arg-type]

    def test_what_the_hardware_takes(self, root: Path, tmp_path: Path) -> None:
        spec, errors = parse_spec(json.dumps({"spec": {"resourceQOSStrategy": BE_30}}).encode())
        assert not errors
        (root / "LS").mkdir()
        (root / "BE").mkdir()
        found = self.collector(root, tmp_path).measure(spec, {"BE"})
        assert found.l3 == CacheInfo(CBM_MASK, 2, ("L3",), DOMAINS)
        assert found.mb == BandwidthInfo(10, 10, "percent", 100, DOMAINS)
        assert (found.groups, found.foreign, found.problem) == (("BE",), ("LS",), "")
        assert (found.classes["BE"].mbaPercent, found.classes["LS"].enable) == (45, False)

    def test_for_a_frame_the_tasks_of_each_pod_are_counted(
        self, root: Path, pods: Path, sleepers: Sleepers, tmp_path: Path
    ) -> None:
        rig = Rig(root, pods, tmp_path)
        sleepers.start(f"{POD}/c1", threads=3)
        rig.groups.apply(("BE",), (Members("BE", (POD,)),), 0)
        index = OnePod()
        collector = ResctrlCollector(root, index, counted_in=pods)  # type: ignore[arg-type]
        made = recorded_groups(rig.record)
        assert collector.measure(None, made).tasks == {index.uid: PodTasks(3, {"BE": 3})}
        sleepers.start(f"{POD}/c2", threads=2)
        found = collector.measure(None, made)
        assert (found.groups, found.foreign) == (("BE",), ())
        assert found.tasks == {index.uid: PodTasks(5, {"BE": 3})}
        assert not ResctrlCollector(root, index).measure(None, made).tasks  # type: ignore[arg-type]
        assert recorded_groups(tmp_path / "none") == frozenset()

    @pytest.mark.parametrize(
        ("vendor", "options", "unit", "most"),
        [
            ("AuthenticAMD", "rw", "absolute", 2048),
            ("HygonGenuine", "rw", "absolute", 2048),
            ("GenuineIntel", "rw,mba_MBps", "mbps", 2048),
            ("GenuineIntel", "rw,cdp", "percent", 100),
        ],
    )
    def test_the_unit_of_bandwidth(self, root: Path, tmp_path: Path, vendor, options, unit, most) -> None:
        found = self.collector(root, tmp_path, vendor, options).measure(None, ()).mb
        assert found is not None
        assert (found.unit, found.most) == (unit, most)

    def test_where_it_is_not_mounted_it_says_so(self, tmp_path: Path) -> None:
        found = self.collector(tmp_path / "fs/resctrl", tmp_path).measure(None, ())
        assert found.problem.startswith(f"resctrl is not mounted at {tmp_path}/fs/resctrl")

    def test_files_of_another_form_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "info/L3").mkdir(parents=True)
        (tmp_path / "schemata").write_text("L3:0=7ff\n")
        (tmp_path / "info/L3/cbm_mask").write_text("many\n")
        (tmp_path / "info/L3/min_cbm_bits").write_text("1\n")
        found = self.collector(tmp_path, tmp_path).measure(None, ())
        assert "cbm_mask: 'many\\n': must be a number" in found.problem


# A /sys/fs with the fake in it, and a CPU of Intel's, in a mount namespace of the agent's own.
_MOUNTS = """mount --bind "$3" /proc/cpuinfo && mount -t tmpfs none "$1" && mkdir "$1/cgroup" "$1/bpf" "$1/resctrl" &&
mount --rbind /sys/fs/cgroup "$1/cgroup" &&
mount --bind "$2" "$1/resctrl" && mount --rbind "$1" /sys/fs && shift 3 && exec "$@\""""


@pytest.mark.slow
class TestAgent:
    @pytest.fixture
    def before(self, root: Path, tmp_path: Path) -> tuple[str, ...]:
        if shutil.which("unshare") is None:
            pytest.skip(f"{OTHER_MACHINE}no unshare")
        fs = tmp_path / "fs"
        fs.mkdir()
        cpuinfo = tmp_path / "cpuinfo"
        cpuinfo.write_text(re.sub(r"(?m)^(vendor_id\s*: ).*", r"\1GenuineIntel", Path("/proc/cpuinfo").read_text()))
        return "unshare", "-m", "sh", "-c", _MOUNTS, "sh", str(fs), str(root), str(cpuinfo)

    @staticmethod
    def arguments(folder: Path, strategy: object, gate: str = "true") -> tuple[object, ...]:
        path = folder / "nodeslo.json"
        node = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeSLO", "metadata": {"name": "node"}}
        items = [node | {"spec": {"resourceQOSStrategy": strategy}}]
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        part.rename(path)
        return "--pods", path, "--feature-gates", f"BEMemoryEvict=false,BECPUSuppress=false,RdtResctrl={gate}"

    def test_a_class_has_its_shares_until_the_agent_stops(
        self, before: tuple[str, ...], fake: FakeResctrl, tmp_path: Path
    ) -> None:
        with LiveAgent(tmp_path, *self.arguments(tmp_path, BE_30), "--enforce", before=before) as agent:
            until(lambda: fake.schemata.get("BE") == LIMITED, lambda: f"shares, but: {fake.schemata}\n{agent.log}")
            self.arguments(tmp_path, {})  # the class is taken away
            until(lambda: "BE" not in fake.schemata, lambda: f"no group, but: {fake.schemata}\n{agent.log}")
            self.arguments(tmp_path, BE_30)
            until(lambda: fake.schemata.get("BE") == LIMITED, lambda: f"shares, but: {fake.schemata}\n{agent.log}")
            assert agent.stop() == 0
        assert (set(fake.schemata), fake.refused) == ({""}, [])

    @pytest.mark.parametrize("gate", ["true", "false"])
    def test_after_a_kill_the_next_agent_has_them_or_removes_them(
        self, before: tuple[str, ...], fake: FakeResctrl, tmp_path: Path, gate: str
    ) -> None:
        with LiveAgent(tmp_path, *self.arguments(tmp_path, BE_30), "--enforce", before=before) as agent:
            until(lambda: fake.schemata.get("BE") == LIMITED, lambda: f"shares, but: {fake.schemata}\n{agent.log}")
            agent.stop(signal.SIGKILL)
        assert fake.schemata["BE"] == LIMITED
        with LiveAgent(tmp_path, *self.arguments(tmp_path, BE_30, gate), "--enforce", before=before) as agent:
            if gate == "true":
                agent.started()
                until(lambda: fake.schemata.get("BE") == LIMITED, lambda: f"shares, but: {fake.schemata}\n{agent.log}")
            else:
                until(lambda: set(fake.schemata) == {""}, lambda: f"no group, but: {fake.schemata}\n{agent.log}")
            assert agent.stop() == 0
        assert set(fake.schemata) == {""}

    def test_a_dry_run_makes_nothing(self, before: tuple[str, ...], fake: FakeResctrl, tmp_path: Path) -> None:
        with LiveAgent(tmp_path, *self.arguments(tmp_path, BE_30), before=before) as agent:
            agent.said("/sys/fs/resctrl/BE")
            assert agent.stop() == 0
        assert set(fake.schemata) == {""}

    def test_this_machine_has_none_of_it_and_that_is_named(self, tmp_path: Path) -> None:
        if Path("/sys/fs/resctrl/schemata").exists():
            pytest.skip(f"{OTHER_MACHINE}it has resctrl")
        with LiveAgent(tmp_path, *self.arguments(tmp_path, BE_30), "--enforce") as agent:
            agent.said("resctrl is not mounted at /sys/fs/resctrl, or the CPU or the kernel has none of it")
            assert agent.stop() == 0


def test_monitoring_says_what_each_class_holds(root: Path) -> None:
    assert read_monitoring(root) == ()
    (root / "BE").mkdir()
    (root / "admins").mkdir()
    assert read_monitoring(root) == tuple(MonitoredDomain("BE", domain, 4096, 8192, None) for domain in DOMAINS)
    own = {"koordebpf_resctrl_llc_occupancy_bytes": 4096, "koordebpf_resctrl_memory_bytes_total": 8192}
    koordlets = {"koordlet_resctrl_llc_occupancy": 4096, "koordlet_resctrl_memory_bandwidth": 8192}
    for node, shown in ((None, own), ("n1", own | koordlets)):
        monitor = ResctrlMonitor(root, node)
        monitor.carry_out({}, view_of_frame(frame(())))
        assert {each.name: each.value for family in monitor.families() for each in family.samples} == shown


def test_errors_of_the_fake_are_the_kernels(root: Path) -> None:
    (root / "BE").mkdir()
    for text, error in (("L3:0=f", errno.EINVAL), ("L2:0=f\n", errno.EINVAL), ("L3:1=f\n", errno.EINVAL)):
        with pytest.raises(OSError, match=os.strerror(error)):
            (root / "BE/schemata").write_text(text)
    with pytest.raises(ProcessLookupError):
        (root / "BE/tasks").write_text("4194304")
    with pytest.raises(PermissionError):
        (root / "BE/mon_data/x").mkdir()
