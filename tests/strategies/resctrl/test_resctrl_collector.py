"""What resctrl takes and which groups there are, on trees; and kubelet's CPU state where it is malformed."""

from __future__ import annotations

import pytest

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.cluster_view import frame_of
from koordebpf.collect.cpu.collector import CpuManagerReader
from koordebpf.kube.cache.objects import ClusterState, Namespace, ObjectMeta
from koordebpf.state.measured import Measured, NodeMeasure
from koordebpf.strategies.resctrl.run import ResctrlCollector
from koordebpf.strategies.resctrl.values import CLASSES, PodTasks
from tests.unit.attribution.test_index import pod, walked

GROUP, OTHER = list(CLASSES)[:2]
INFO = {
    "L3": {"cbm_mask": "7ff\n", "min_cbm_bits": "2\n"},
    "MB": {"min_bandwidth": "10\n", "bandwidth_gran": "20\n"},
}


def machine(vendor: str = "GenuineIntel") -> dict[str, object]:
    return {
        "resctrl": {"schemata": "L3:0=7ff;8=7ff\nMB:0=100;8=4000\n", "info": INFO, GROUP: {"tasks": ""}, OTHER: {}},
        "proc": {"cpuinfo": f"processor\t: 0\nvendor_id\t: {vendor}\n", "self": {"mountinfo": ""}},
    }


def test_what_the_hardware_takes_and_whose_the_groups_are(tree):
    root = tree(machine())
    found = ResctrlCollector(root / "resctrl", CgroupIndex(), root / "proc").measure(None, [GROUP])
    assert not found.problem
    assert found.l3 is not None and found.mb is not None
    assert (found.l3.cbm_mask, found.l3.min_cbm_bits, found.l3.domains) == (0x7FF, 2, (0, 8))
    assert (found.mb.min_bandwidth, found.mb.bandwidth_gran, found.mb.unit, found.mb.most) == (10, 20, "percent", 100)
    assert (found.groups, found.foreign) == ((GROUP,), (OTHER,))


def test_amds_bandwidth_is_no_percentage(tree):
    root = tree(machine("AuthenticAMD"))
    mb = ResctrlCollector(root / "resctrl", CgroupIndex(), root / "proc").measure(None, []).mb
    assert mb is not None
    assert (mb.unit, mb.most) == ("absolute", 4000)


def test_tasks_of_a_pod_are_counted_and_those_in_each_group_where_a_mount_is_given(tree):
    root = tree({
        **machine(),
        "cpu": {"kubepods": {"podu-1": {"tasks": "1\n2\n", "container": {"tasks": "3\n4\n"}}}},
    })  # fmt: skip
    (root / "resctrl" / GROUP / "tasks").write_text("2\n3\n9\n")
    index = walked([pod()])
    counting = ResctrlCollector(root / "resctrl", index, root / "proc", counted_in=root / "cpu")
    assert counting.measure(None, []).tasks == {"u-1": PodTasks(4, {GROUP: 2})}
    assert ResctrlCollector(root / "resctrl", index, root / "proc").measure(None, []).tasks == {}


def test_where_it_is_not_mounted_or_odd_it_is_said(tree):
    root = tree(machine())
    assert "not mounted" in (
        ResctrlCollector(root / "no", CgroupIndex(), root / "proc").measure(None, []).problem or ""
    )
    (root / "resctrl/info/L3/cbm_mask").write_text("x\n")
    problem = ResctrlCollector(root / "resctrl", CgroupIndex(), root / "proc").measure(None, []).problem
    assert problem is not None and "cannot be read" in problem and "must be a number" in problem


def test_a_malformed_cpu_manager_state_is_logged_once_and_again_after_a_good_one(
    tree, caplog: pytest.LogCaptureFixture
):
    file = tree({"cpu_manager_state": "{"}) / "cpu_manager_state"
    reader = CpuManagerReader(file, None)
    assert [reader.read(), reader.read()] == [None, None]
    assert len(caplog.records) == 1
    file.unlink()
    assert reader.read() is None
    file.write_text("{")
    reader.read()
    assert len(caplog.records) == 2


def test_a_frame_has_the_namespaces_that_are_known():
    measured = Measured(1, 1, NodeMeasure("machine", 1000, 1), (), ())
    for state in (None, ClusterState(1, 1, namespaces=None)):
        assert frame_of(state, measured, feature_gates={}, executor="none").namespaces == ()
    known = (Namespace(ObjectMeta("team")),)
    state = ClusterState(1, 1, namespaces=known)
    assert frame_of(state, measured, feature_gates={}, executor="none").namespaces == known


def test_a_mount_in_megabytes_a_second_is_no_percentage(tree):
    root = tree(machine())
    mount = "30 25 0:27 / /sys/fs/resctrl rw shared:1 - resctrl resctrl rw"
    for options, unit in (("", "percent"), (",mba_MBps", "mbps"), (",cdp", "percent")):
        (root / "proc/self/mountinfo").write_text(f"{mount}{options}\n")
        mb = ResctrlCollector(root / "resctrl", CgroupIndex(), root / "proc").measure(None, []).mb
        assert mb is not None and mb.unit == unit
