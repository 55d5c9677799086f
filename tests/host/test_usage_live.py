"""Usage of pods and containers from the kernel's counters to the node's series: real cgroups, processes that burn."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from koordebpf.collect.usage.cpu import FileCpu, ScannedCpu
from koordebpf.collect.usage.groups import UsageGroup
from koordebpf.errors import SupportError
from tests.conftest import OTHER_MACHINE
from tests.host.usage_node import MeasuredUsage, UsageNode, group_of, uid_of

Make = Callable[..., MeasuredUsage]


def relative(node: UsageNode, path: Path) -> str:
    return path.relative_to(node.hierarchy.mount_point).as_posix()


def groups(node: UsageNode, *paths: Path) -> dict[int, UsageGroup]:
    return {group_of(path): UsageGroup(group_of(path), relative(node, path), "pod") for path in paths}


def scanned(node: UsageNode) -> ScannedCpu:
    try:
        return ScannedCpu(node.mounts, relative(node, node.memory.path))
    except SupportError as error:
        pytest.skip(f"{OTHER_MACHINE}its kernel has no such pass: {error}")


def test_one_pass_equals_the_files(usage_node: UsageNode) -> None:
    (container,) = usage_node.add_pod("busy")
    (idle,) = usage_node.add_pod("idle")
    pod = container.parent
    pass_ = scanned(usage_node)
    try:
        paths = (container, pod, pod.parent, pod.parent.parent, usage_node.memory.path, idle)
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
    assert its.latest("container_cpu_usage", container.name) == pytest.approx(cores, rel=0.05)
    assert its.latest("pod_cpu_usage", uid) == pytest.approx(cores, rel=0.05)
    assert its.latest("container_cpu_usage", other.name) == 0
    assert its.latest("pod_cpu_usage", uid_of(usage_node, "idle")) == 0
    assert its.latest("node_be", "cpu", "usage") == pytest.approx(cores, rel=0.05)
    assert its.latest("node_cpu_usage") == pytest.approx(cores, rel=0.05)
    assert its.latest("sys_cpu_usage") == pytest.approx(0, abs=0.02)
    memory = its.latest("container_memory_usage", container.name)
    assert memory is not None
    assert memory >= 16 << 20
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
