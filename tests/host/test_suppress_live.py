"""Suppression from the kernel's counters to its files: real cgroups, processes that burn, and the writer."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.change import WriteResult
from koordebpf.act.writer.foreign import ForeignPolicy
from koordebpf.act.writer.settings import WriterSettings
from koordebpf.collect.cpu.collector import CpuCollector
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.files import CgroupFile, format_cpu_list
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.proc.cpu_usage import CgroupCpu
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.cpu.measured import CpuUsage
from koordebpf.state.series.store import node_series
from koordebpf.strategies.cpu_suppress.values import SuppressSettings
from koordebpf.units import NS_PER_S
from tests.conftest import OTHER_MACHINE
from tests.host.provoke import MACHINE_BYTES, MIB
from tests.host.rigs.cgroups import BE_ROOT, CpuNode, cpu_node
from tests.host.suppression_loop import BY_QUOTA, SuppressionLoop
from tests.support.patience import patience

QUOTA, CPUS = CgroupFile.CPU_QUOTA, CgroupFile.CPUSET_CPUS
BY_CPUSET = ResourceThresholdStrategy(enable=True, cpuSuppressThresholdPercent=65, cpuSuppressPolicy="cpuset")
OFF = ResourceThresholdStrategy(enable=False)
PERIOD_US = 100_000


@pytest.fixture
def node() -> Iterator[CpuNode]:
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes cgroups")
    try:
        with cpu_node() as made:
            made.hierarchies.outweigh()
            yield made
    except (SupportError, KeyError, OSError) as error:
        pytest.skip(f"{OTHER_MACHINE}it has no cpu and cpuset hierarchies that can be written: {error}")


@pytest.fixture
def suppression(node: CpuNode, tmp_path: Path) -> Iterator[SuppressionLoop]:
    made = SuppressionLoop(node, tmp_path / "journal")
    yield made
    made.close()


def quota_us(node: CpuNode) -> int | None:
    with CgroupCpu(find_controllers(), node.path(BE_ROOT)) as files:
        return files.bandwidth().quota_us


def test_the_quota_follows_what_others_leave_and_the_kernel_holds_it(node, suppression):
    before = node.text(BE_ROOT, QUOTA)
    for _ in range(2):
        node.burn(f"{BE_ROOT}/podbe-1/c1")
    # GIVEN only best-effort pods at work WHEN 65 % of the node are theirs THEN this is their quota
    cpus = len(os.sched_getaffinity(0))
    plan = suppression.until(BY_QUOTA, lambda plan: plan.quota_us is not None and quota_us(node) == plan.quota_us)
    assert plan.amount.pods_millicpu == 0
    assert plan.quota_us <= cpus * 1000 * 65 // 100 * PERIOD_US // 1000
    # AND they get no more than it, by the kernel's own count
    with CgroupCpu(find_controllers(), node.path(BE_ROOT)) as files:
        start_ns, used_ns = time.monotonic_ns(), files.used_ns()
        time.sleep(1)
        used_ns, elapsed_ns = files.used_ns() - used_ns, time.monotonic_ns() - start_ns
    # One period's quota may be spent at either end of the second.
    assert used_ns <= (elapsed_ns / 1000 + 2 * PERIOD_US) * plan.quota_us / PERIOD_US * 1000

    # WHEN a latency-sensitive pod begins to work THEN the quota falls by what it uses
    node.burn("kubepods/burstable/podls-1/c1")
    busy = suppression.until(BY_QUOTA, lambda now: now.amount.pods_millicpu > 100 and now.quota_us < plan.quota_us)
    wanted = max(busy.amount.be_millicpu * PERIOD_US // 1000, 2000)
    assert abs(busy.quota_us - wanted) < cpus * PERIOD_US * 0.01  # the bypass
    assert quota_us(node) == busy.quota_us

    # WHEN suppression is switched off THEN there is no quota any more, and the file is as it was, to the byte
    suppression.round(OFF)
    assert quota_us(node) is None
    written = len(suppression.changes)
    for _ in range(3):
        suppression.round(OFF)
    assert len(suppression.changes) == written
    assert node.text(BE_ROOT, QUOTA) == before


def test_with_nothing_to_change_nothing_is_written(node, suppression):
    for strategy in (BY_QUOTA, BY_CPUSET):
        suppression.until(strategy, lambda plan: plan.skipped is None)
        suppression.round(strategy)
        written = len(suppression.changes)
        for _ in range(20):
            assert suppression.round(strategy).skipped is None
            time.sleep(0.02)
        assert suppression.changes[written:] == []


@pytest.mark.parametrize("each_pod", [True, False])
def test_the_measurement_is_the_kernels(each_pod, node, suppression):
    suppression.each_pod = each_pod
    burner = node.burn("kubepods/burstable/podls-1/c1")
    with CgroupCpu(find_controllers(), node.path("kubepods/burstable/podls-1")) as files:

        def looked() -> tuple[CpuUsage | None, tuple[int, int], tuple[int, int]]:
            # What is measured, and the kernel's counter and the time before and after it.
            before = time.monotonic_ns(), files.used_ns()
            usage = suppression.view(BY_QUOTA).cpu.measured.usage
            return usage, before, (time.monotonic_ns(), files.used_ns())

        none, first_before, first_after = looked()
        assert none is None  # the first one has no rates
        time.sleep(0.5)
        usage, before, after = looked()
    burner.kill()
    least = (before[1] - first_after[1]) * 1000 / (after[0] - first_before[0])
    most = (after[1] - first_before[1]) * 1000 / (before[0] - first_after[0])
    (ls,) = (pod for pod in usage.pods if pod.uid == "ls-1") if each_pod else (usage.other_pods,)
    for used in (ls.used_millicpu, usage.node_used_millicpu):  # nothing else runs in this node
        assert least - 2 <= used <= most + 2
    assert usage.be_used_millicpu == 0


def test_the_best_effort_tree_is_seen_with_its_cpus(node, suppression):
    measured = suppression.view(BY_QUOTA).cpu.measured
    online = tuple(sorted(measured.topology.cpus))
    tree = {each.path.removeprefix(f"{node.name}/"): (each.level, each.uid, each.cpus) for each in measured.be_cgroups}
    assert tree == {
        BE_ROOT: ("root", None, online),
        f"{BE_ROOT}/podbe-1": ("pod", "be-1", online),
        f"{BE_ROOT}/podbe-1/c1": ("container", "be-1", online),
    }
    assert measured.be_parent_cpus == online
    assert (measured.be_quota.quota_us, measured.be_quota.period_us) == (None, PERIOD_US)


def test_a_burst_is_reported_before_the_window_is_full(node):
    with CpuCollector(
        find_controllers(), node_path=node.name, window_ns=60 * NS_PER_S, burst_window_ns=NS_PER_S // 10
    ) as collector:
        collector.watch(node.owners())
        start_ns = time.monotonic_ns()
        collector.collect(start_ns, node_series())
        collector.collect(start_ns + 59 * NS_PER_S, node_series())  # an idle minute
        burner = node.burn("kubepods/burstable/podls-1/c1")
        deadline = time.monotonic() + patience(20)
        used = burst = 0
        while burst <= 2 * used + 100:
            assert time.monotonic() < deadline, (used, burst)
            time.sleep(0.02)
            now_ns = start_ns + 59 * NS_PER_S + (time.monotonic_ns() - start_ns)
            usage = collector.collect(now_ns, node_series()).usage
            (pod,) = (pod for pod in usage.pods if pod.uid == "ls-1")
            used, burst = pod.used_millicpu, pod.burst_millicpu or 0
        burner.kill()
    assert [pod.burst_millicpu for pod in usage.pods if pod.is_best_effort] == [None]


def test_a_pod_that_vanishes_is_left_out(node, suppression):
    suppression.view(BY_QUOTA)
    for path in ("kubepods/burstable/podls-1/c1", "kubepods/burstable/podls-1", f"{BE_ROOT}/podbe-1/c1"):
        node.remove(path)
    time.sleep(0.05)
    assert {pod.uid for pod in suppression.view(BY_QUOTA).cpu.measured.usage.pods} == {"be-1"}
    # Its set is read in turn, not in each round; an agent, which hears of its end, does not have it read again.
    for _ in range(3):
        measured = suppression.view(BY_QUOTA).cpu.measured
    assert [each.level for each in measured.be_cgroups] == ["root", "pod"]


def test_the_third_policy_makes_the_directory_idle_where_the_kernel_can(node, tmp_path):
    suppression = SuppressionLoop(node, tmp_path / "journal", SuppressSettings(policy="cpuIdle"))
    plan = suppression.until(BY_QUOTA, lambda plan: plan.policy == "cpuIdle")
    idle = node.file(BE_ROOT, CgroupFile.CPU_IDLE)
    has_idle = idle.exists()
    (write,) = (write for write in plan.desired.writes if write.file in (CgroupFile.CPU_IDLE, CgroupFile.CPU_SHARES))
    assert write.file is (CgroupFile.CPU_IDLE if has_idle else CgroupFile.CPU_SHARES)
    if has_idle:
        assert idle.read_text() == "1\n"
        suppression.round(OFF)
        assert idle.read_text() == "0\n"
    suppression.close()


def test_a_quota_that_another_process_resets_each_second_is_not_fought_over(node, tmp_path):
    foreign = WriterSettings(refresh_ns=0, foreign=ForeignPolicy(corrections_per_hour=3))
    suppression = SuppressionLoop(node, tmp_path / "journal", writer=foreign)
    before = node.text(BE_ROOT, QUOTA)
    try:
        suppression.until(BY_QUOTA, lambda plan: plan.quota_us is not None and quota_us(node) == plan.quota_us)
        written = len(suppression.changes)
        for _ in range(8):
            node.put(BE_ROOT, QUOTA, "-1" if node.version == 1 else "max")
            suppression.round(BY_QUOTA)
        # THEN it is set right so often as is configured, and theirs after that, which is reported once
        results = [change.result for change in suppression.changes[written:]]
        assert results == [WriteResult.WRITTEN] * 3 + [WriteResult.YIELDED]
        assert [change.is_correction for change in suppression.changes[written:]] == [True] * 3 + [False]
        assert quota_us(node) is None
    finally:
        suppression.close()
    assert node.text(BE_ROOT, QUOTA) == before  # what they want, too


@pytest.fixture
def second_cpu(node: CpuNode) -> Iterator[Path]:
    """The file that takes CPU 1 away, only in a small machine of the tests' own."""
    online = Path("/sys/devices/system/cpu/cpu1/online")
    if MACHINE_BYTES > 4096 * MIB or not online.exists():
        pytest.skip(f"{OTHER_MACHINE}others work on it, or it has no CPU that can be taken away")
    allowed = os.sched_getaffinity(0)
    yield online
    online.write_text("1")
    os.sched_setaffinity(0, allowed)


def test_a_cpu_that_goes_offline_and_comes_back(node, second_cpu, suppression):
    before = suppression.until(BY_CPUSET, lambda plan: plan.policy == "cpuset")
    second_cpu.write_text("0")
    gone = suppression.until(BY_CPUSET, lambda plan: 1 not in plan.cpus if plan.cpus else plan.policy == "cfsQuota")
    if len(before.cpus) == 2:  # one is left: it cannot be shared out, only its time
        assert gone.reason.count("fewer than two CPUs are free to choose from") == 1
        assert quota_us(node) == gone.quota_us
    second_cpu.write_text("1")
    if node.version == 1:  # the kernel took the CPU out of every set, and those above are not suppression's
        for path in ("", "kubepods"):
            node.put_cpus(path, (node.mounts["cpuset"].mount_point / "cpuset.cpus").read_text())
    back = suppression.until(BY_CPUSET, lambda plan: plan.cpus == before.cpus)
    assert quota_us(node) is None
    for path in (BE_ROOT, f"{BE_ROOT}/podbe-1", f"{BE_ROOT}/podbe-1/c1"):
        assert node.text(path, CPUS).strip() == format_cpu_list(back.cpus)
    refused = {WriteResult.REFUSED, WriteResult.BUSY, WriteResult.BLOCKED}
    assert [change for change in suppression.changes if change.result in refused] == []


def test_the_end_of_the_agent_gives_cpus_and_quota_back(node, tmp_path):
    suppression = SuppressionLoop(node, tmp_path / "journal")
    suppression.until(BY_QUOTA, lambda plan: plan.quota_us is not None)
    assert quota_us(node) is not None
    suppression.writer.restore(time.monotonic_ns())
    assert quota_us(node) is None
    suppression.collector.close()


def test_a_set_that_another_process_made_smaller_grows_again_as_a_whole(node, suppression):
    # GIVEN a best-effort tree on one CPU, as an agent that was killed may leave it
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        pytest.skip(f"{OTHER_MACHINE}it has one CPU")
    for path in (f"{BE_ROOT}/podbe-1/c1", f"{BE_ROOT}/podbe-1", BE_ROOT):
        node.put_cpus(path, str(first))
    suppression.until(BY_CPUSET, lambda plan: plan.cpus is not None and len(plan.cpus) >= 2)
    chosen = format_cpu_list(suppression.round(BY_CPUSET).cpus)
    assert {node.text(path, CPUS).strip() for path in (BE_ROOT, f"{BE_ROOT}/podbe-1", f"{BE_ROOT}/podbe-1/c1")} == {
        chosen
    }


def test_sets_that_the_kernel_emptied_are_held_again(node, suppression):
    # GIVEN no CPU in the best-effort tree, as on v1 after the last one of each set went offline
    paths = (f"{BE_ROOT}/podbe-1/c1", f"{BE_ROOT}/podbe-1", BE_ROOT)
    for path in paths:
        node.put_cpus(path, "\n")
    plan = suppression.until(BY_CPUSET, lambda plan: plan.policy is not None)
    if plan.cpus is None:
        pytest.skip(f"{OTHER_MACHINE}it has one CPU")
    assert {node.text(path, CPUS).strip() for path in paths} == {format_cpu_list(plan.cpus)}
