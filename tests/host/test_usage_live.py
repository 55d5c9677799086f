"""Usage of pods and containers from the kernel's counters to the node's series: real cgroups, processes that burn."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from koordebpf.collect.scope import open_scope
from koordebpf.errors import SupportError
from koordebpf.jobs.usage_series.cpu import FileCpu, ScannedCpu, open_cpu
from koordebpf.jobs.usage_series.groups import UsageGroup
from koordebpf.jobs.usage_series.pressure import FilePressure
from koordebpf.kernel.proc.cpu_usage import NodeCpuTime
from koordebpf.kernel.proc.meminfo import Meminfo
from tests.conftest import OTHER_MACHINE
from tests.host.rigs.usage_node import HELD, MeasuredUsage, UsageNode, group_of, uid_of

Make = Callable[..., MeasuredUsage]


def relative(node: UsageNode, path: Path) -> str:
    return path.relative_to(node.hierarchy.mount_point).as_posix()


def groups(node: UsageNode, *paths: Path) -> dict[int, UsageGroup]:
    return {group_of(path): UsageGroup(group_of(path), relative(node, path), "pod") for path in paths}


def scanned(node: UsageNode) -> ScannedCpu:
    try:
        return ScannedCpu(node.mounts, relative(node, node.node.path))
    except SupportError as error:
        pytest.skip(f"{OTHER_MACHINE}its kernel has no such pass: {error}")


def test_one_pass_equals_the_files(usage_node: UsageNode) -> None:
    (container,) = usage_node.add_pod("busy")
    (idle,) = usage_node.add_pod("idle")
    pod = container.parent
    pass_ = scanned(usage_node)
    try:
        paths = (container, pod, pod.parent, pod.parent.parent, usage_node.node.path, idle)
        pass_.watch(groups(usage_node, *paths))
        burning = usage_node.burn(container)
        for _ in range(23):
            time.sleep(0.03)
            before = [usage_node.accounted_ns(path) for path in paths]
            seen = pass_.read().usage_ns
            after = [usage_node.accounted_ns(path) for path in paths]
            for path, (low, unit), (high, _) in zip(paths, before, after, strict=True):
                assert low <= seen[group_of(path)] < high + unit, path
        usage_node.end(burning)
        time.sleep(0.05)
        # Nothing runs any more: to the nanosecond on v1, to the microsecond that cpu.stat has on v2.
        seen = pass_.read().usage_ns
        for path in paths:
            used, unit = usage_node.accounted_ns(path)
            assert seen[group_of(path)] // unit * unit == used, path
        assert seen[group_of(idle)] == usage_node.accounted_ns(idle)[0]
    finally:
        pass_.close()


def test_throttled_periods_equal_the_files(usage_node: UsageNode) -> None:
    (container,) = usage_node.add_pod("busy")
    usage_node.limit_cpu(container, 10_000)
    pass_ = scanned(usage_node)
    files = FileCpu(usage_node.mounts, "a test")
    try:
        its = groups(usage_node, container, container.parent)
        pass_.watch(its)
        files.watch(its)
        burning = usage_node.burn(container)
        time.sleep(1)
        usage_node.end(burning)
        time.sleep(0.3)  # the last period ends
        seen, by_files = pass_.read(), files.read()
        assert seen.throttling == by_files.throttling
        periods, throttled = seen.throttling[group_of(container)]
        assert periods >= 5
        assert 3 <= throttled <= periods
        assert group_of(container.parent) not in seen.throttling  # it has no quota, so no periods
    finally:
        pass_.close()
        files.close()


@pytest.mark.slow
def test_a_busy_container_and_its_pod_are_measured_as_the_kernel_counts_them(
    usage_node: UsageNode,
    measured_usage: Make,
) -> None:
    container, other = usage_node.add_pod("busy", containers=2)
    (_,) = usage_node.add_pod("idle", be=False)
    usage_node.burn(container)
    time.sleep(0.5)
    its = measured_usage()
    its.round()
    start, (used_ns, _) = time.monotonic_ns(), usage_node.accounted_ns(container)
    time.sleep(1.5)
    its.round()
    elapsed, (now_ns, _) = time.monotonic_ns() - start, usage_node.accounted_ns(container)
    cores = (now_ns - used_ns) / elapsed
    uid = uid_of(usage_node, "busy")
    assert its.latest("container_cpu_usage", container.name) == pytest.approx(cores, rel=0.2)
    assert its.latest("pod_cpu_usage", uid) == pytest.approx(cores, rel=0.2)
    assert its.latest("container_cpu_usage", other.name) == 0
    assert its.latest("pod_cpu_usage", uid_of(usage_node, "idle")) == 0
    assert its.latest("node_be", "cpu", "usage") == pytest.approx(cores, rel=0.2)
    assert its.latest("node_cpu_usage") == pytest.approx(cores, rel=0.2)
    assert its.latest("sys_cpu_usage") == pytest.approx(0, abs=0.1)
    memory = its.latest("container_memory_usage", container.name)
    assert memory is not None
    assert memory >= HELD
    assert its.latest("pod_memory_usage", uid) == pytest.approx(memory, rel=0.05)
    assert its.latest("container_memory_usage", other.name) == 0


@pytest.mark.slow
def test_nothing_is_recorded_before_the_second_reading(usage_node: UsageNode, measured_usage: Make) -> None:
    (container,) = usage_node.add_pod("busy")
    its = measured_usage()
    its.round()
    uid = uid_of(usage_node, "busy")
    keys = ("pod_cpu_usage", uid), ("pod_memory_usage", uid), ("container_cpu_usage", container.name)
    assert [its.latest(*key) for key in keys] == [None, None, None]
    time.sleep(1)
    its.round()
    assert None not in [its.latest(*key) for key in keys]


def test_files_report_what_the_pass_reports(usage_node: UsageNode) -> None:
    containers = usage_node.add_pod("busy", containers=3)
    paths = [*containers, containers[0].parent]
    pass_, files = scanned(usage_node), FileCpu(usage_node.mounts, "a comparison")
    try:
        pass_.watch(groups(usage_node, *paths))
        files.watch(groups(usage_node, *paths))
        burning = usage_node.burn(containers[1])
        time.sleep(0.5)
        usage_node.end(burning)
        time.sleep(0.05)
        seen, by_files = pass_.read(), files.read()
        unit = usage_node.accounted_ns(containers[0])[1]
        assert {group: used // unit * unit for group, used in seen.usage_ns.items()} == by_files.usage_ns
        assert seen.usage_ns.keys() == groups(usage_node, *paths).keys()
    finally:
        pass_.close()
        files.close()


def test_a_node_that_another_hierarchy_lacks_is_read_by_files(usage_node: UsageNode) -> None:
    counters = open_cpu(usage_node.mounts, "no-such-node")
    assert isinstance(counters, FileCpu)
    (container,) = usage_node.add_pod("some")
    counters.watch(groups(usage_node, container))
    assert counters.read().usage_ns.keys() == {group_of(container)}
    counters.close()


def test_files_are_read_in_turn(usage_node: UsageNode) -> None:
    paths = [path for number in range(30) for path in usage_node.add_pod(f"pod-{number}", containers=5)]
    its = groups(usage_node, *paths)
    files = FileCpu(usage_node.mounts, "a test")
    try:
        files.watch(its)
        first, second = files.read().usage_ns.keys(), files.read().usage_ns.keys()
        assert len(first) == len(second) == 128
        assert first | second == its.keys()
        usage_node.hierarchies.remove(paths[0])
        left = its.keys() - {next(iter(its))}
        assert files.read().usage_ns.keys() | files.read().usage_ns.keys() == left
    finally:
        files.close()


def test_a_cgroup_that_is_made_again_is_found_again(usage_node: UsageNode) -> None:
    (container,) = usage_node.add_pod("again")
    pass_ = scanned(usage_node)
    try:
        its = groups(usage_node, container)
        pass_.watch(its)
        (group,) = its
        assert pass_.read().usage_ns.keys() == {group}
        usage_node.hierarchies.remove(container)
        assert pass_.read().usage_ns == {}
        usage_node.hierarchies.make(container)
        assert pass_.read().usage_ns.keys() == {group}
        # Another group: its row was that of one that is gone.
        (other,) = usage_node.add_pod("other")
        pass_.watch(groups(usage_node, other))
        assert pass_.read().usage_ns.keys() == {group_of(other)}
        pass_.watch({})
        assert pass_.read().usage_ns == {}
    finally:
        pass_.close()


def test_more_cgroups_than_rows_leave_the_first_ones_measured(
    usage_node: UsageNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = usage_node.add_pod("many", containers=5)
    pass_ = scanned(usage_node)
    monkeypatch.setattr(pass_._scan, "most", 3)
    try:
        its = groups(usage_node, *paths)
        pass_.watch(its)
        assert pass_.read().usage_ns.keys() == set(list(its)[:3])
        pass_.watch(dict(list(its.items())[2:]))
        assert pass_.read().usage_ns.keys() == set(list(its)[2:])
    finally:
        pass_.close()


@pytest.mark.slow
def test_host_applications_are_measured_and_are_no_part_of_the_system(
    usage_node: UsageNode, measured_usage: Make
) -> None:
    directory = usage_node.node.path / "system" / "nginx"
    usage_node.hierarchies.make(directory.parent)
    usage_node.hierarchies.make(directory)
    usage_node.burn(directory)
    time.sleep(0.5)
    its = measured_usage({"system/nginx": "nginx", "system/absent": "absent"})
    its.rounds(2)
    cpu = its.latest("host_application_cpu_usage", "nginx")
    assert cpu is not None, its.dropped()
    assert cpu > 0.02
    assert its.latest("node_cpu_usage") == pytest.approx(cpu, rel=0.2)
    assert its.latest("sys_cpu_usage") == pytest.approx(0, abs=0.1)
    held = its.latest("host_application_memory_usage", "nginx")
    assert held is not None
    assert held >= HELD
    assert (its.latest("host_application_memory_usage_with_page_cache", "nginx") or 0) >= held
    assert its.latest("host_application_cpu_usage", "absent") is None


@pytest.mark.slow
def test_a_container_that_makes_cgroups_of_its_own_changes_nothing_for_others(
    usage_node: UsageNode, measured_usage: Make
) -> None:
    (hostile,) = usage_node.add_pod("hostile")
    (good,) = usage_node.add_pod("good")
    for number in range(200):
        usage_node.hierarchies.make(hostile / f"nested-{number}")
    nested = hostile / "nested-0"
    usage_node.burn(nested)
    usage_node.burn(good)
    time.sleep(0.5)
    its = measured_usage()
    its.rounds(3)
    # What is below a container is the container's, and the sandbox is none.
    pod = its.latest("pod_cpu_usage", uid_of(usage_node, "hostile"))
    assert pod is not None, its.dropped()
    assert its.latest("container_cpu_usage", hostile.name) == pytest.approx(pod, rel=0.1)
    assert (its.latest("container_memory_usage", hostile.name) or 0) >= HELD
    assert (its.latest("container_cpu_usage", good.name) or 0) > 0.02
    assert its.latest("container_cpu_usage", "nested-0") is None
    assert {group.name for group in its.usage.groups.by_id.values() if group.kind == "container"} == {
        hostile.name,
        good.name,
    }


@pytest.mark.slow
def test_a_throttled_container_is_recorded_and_one_without_quota_is_not(
    usage_node: UsageNode, measured_usage: Make
) -> None:
    limited, free = usage_node.add_pod("busy", containers=2)
    usage_node.limit_cpu(limited, 5_000)
    usage_node.burn(limited)
    usage_node.burn(free)
    time.sleep(0.5)
    its = measured_usage()
    its.rounds(3)
    ratio = its.latest("container_cpu_throttled", limited.name)
    assert ratio is not None
    assert 0.3 < ratio <= 1
    assert its.latest("container_cpu_throttled", free.name) is None
    assert its.latest("container_cpu_usage", limited.name) == pytest.approx(0.05, rel=0.6)


@pytest.mark.slow
def test_a_pod_that_is_gone_gets_no_more_samples(usage_node: UsageNode, measured_usage: Make) -> None:
    (container,) = usage_node.add_pod("short")
    usage_node.add_pod("stays")
    its = measured_usage()
    its.rounds(2)
    usage_node.hierarchies.remove(container)
    usage_node.hierarchies.remove(container.parent)
    started_ns = time.monotonic_ns()
    its.rounds(2)
    assert its.count(started_ns, "pod_cpu_usage", uid_of(usage_node, "short")) == 0
    assert its.count(started_ns, "pod_cpu_usage", uid_of(usage_node, "stays")) > 0


@pytest.mark.slow
def test_pressure_of_a_container_is_what_its_files_say(usage_node: UsageNode) -> None:
    (container,) = usage_node.add_pod("waits")
    if not (container / "cpu.pressure").exists():
        pytest.skip(f"{OTHER_MACHINE}its cgroups have no pressure files")
    usage_node.limit_cpu(container, 10_000)
    for _ in range(2):
        usage_node.burn(container)
    time.sleep(5)
    (group,) = groups(usage_node, container).values()
    reader = FilePressure(open_scope(usage_node.hierarchy, usage_node.node.path))
    try:
        # The kernel works the averages out each two seconds: between two equal readings they did not change.
        for _ in range(10):
            before, seen = (container / "cpu.pressure").read_text(), reader.read(group)
            after = (container / "cpu.pressure").read_text()
            if [line.split()[1] for line in before.splitlines()] == [line.split()[1] for line in after.splitlines()]:
                break
        by_files = {line.split()[0]: float(line.split()[1].removeprefix("avg10=")) for line in after.splitlines()}
        assert {degree: value for resource, degree, value in seen if resource == "cpu"} == by_files
        assert by_files["some"] > 1
        assert {resource for resource, _, _ in seen} == {"cpu", "mem", "io"}
    finally:
        reader.close()


@pytest.mark.slow
def test_the_machine_is_measured_as_its_files_say_and_the_system_is_the_rest(
    usage_node: UsageNode, measured_usage: Make
) -> None:
    (container,) = usage_node.add_pod("busy")
    usage_node.burn(container)
    time.sleep(0.5)
    its = measured_usage(is_machine=True)
    with NodeCpuTime() as stat, Meminfo() as meminfo:
        its.round()
        start_ns, used_ns = time.monotonic_ns(), stat.used_ns()
        time.sleep(2)
        its.round()
        cores = (stat.used_ns() - used_ns) / (time.monotonic_ns() - start_ns)
        held = meminfo.read().used_bytes
    cpu, pod = its.latest("node_cpu_usage"), its.latest("pod_cpu_usage", uid_of(usage_node, "busy"))
    assert cpu is not None
    assert pod is not None
    # /proc/stat counts ticks of 10 ms for each CPU.
    assert cpu == pytest.approx(cores, abs=0.1)
    assert pod > 0.02
    assert its.latest("sys_cpu_usage") == pytest.approx(max(cpu - pod, 0))
    memory = its.latest("node_memory_usage")
    assert memory == pytest.approx(held, rel=0.1)
    pods_held = its.latest("pod_memory_usage", uid_of(usage_node, "busy"))
    assert its.latest("sys_memory_usage") == memory - pods_held
    nodes = [path.name.removeprefix("node") for path in Path("/sys/devices/system/node").glob("node[0-9]*")]
    of_nodes = [its.latest("node_numa_cpu_usage", node) for node in nodes]
    assert sum(each for each in of_nodes if each is not None) == pytest.approx(cpu, abs=0.1)
    assert None not in [its.latest("node_numa_memory_usage", node) for node in nodes]
    of_system = [its.latest("sys_numa_cpu_usage", node) or 0 for node in nodes]
    assert sum(of_system) == pytest.approx(its.latest("sys_cpu_usage"), abs=1e-6)
    assert None not in [its.latest("sys_numa_memory_usage", node) for node in nodes]


@pytest.mark.slow
def test_counters_that_are_added_up_meanwhile_do_not_run_backwards(usage_node: UsageNode) -> None:
    containers = usage_node.add_pod("busy", containers=3)
    paths = [*containers, containers[0].parent, usage_node.node.path / "kubepods", usage_node.node.path]
    pass_ = scanned(usage_node)
    try:
        pass_.watch(groups(usage_node, *paths))
        for path in containers:
            usage_node.burn(path)
        # On v2 each reading of cpu.stat adds up what the CPUs counted, below the pass's hands.
        files = " ".join(str(path) for path in usage_node.stat_files(paths))
        reader = usage_node.start(containers[0], "sh", "-c", f"while :; do cat {files} > /dev/null; done")
        time.sleep(0.5)
        last = pass_.read().usage_ns
        deadline, compared, back = time.monotonic() + 5, 0, 0
        while time.monotonic() < deadline:
            now = pass_.read().usage_ns
            assert now.keys() == last.keys()
            compared += len(now)
            back += sum(now[group] < last[group] for group in now)
            last = now
        usage_node.end(reader)
        assert compared > 100
        assert back <= compared / 100, f"{back} of {compared}"
        # A sum of many readings is exact all the same.
        before = [usage_node.accounted_ns(path) for path in paths]
        seen = pass_.read().usage_ns
        after = [usage_node.accounted_ns(path) for path in paths]
        for path, (low, unit), (high, _) in zip(paths, before, after, strict=True):
            assert low <= seen[group_of(path)] < high + unit, path
    finally:
        pass_.close()
