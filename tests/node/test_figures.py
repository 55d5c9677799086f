"""What an agent costs on such a node, and how exact it counts there, both beside what the kernel counts itself."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping

from tests.cluster.api import Object
from tests.node.agent import GuestAgent, bring_source, koordebpf
from tests.node.kernel_counts import KernelCounts
from tests.node.node import GuestNode
from tests.node.pods import HOG
from tests.node.stories import expect_gone, expect_others_alive, fill, outcomes

STEADY_S = 60
# Of a second, on average: three times what was measured, on an emulated CPU.
CALLS, WAKE_UPS = 250, 45
BURSTS = 3
PODS = 3
TRACE = "/run/trace.jsonl"


def of_threads(counts: dict[str, int], threads: set[str]) -> int:
    return sum(count for key, count in counts.items() if key in threads)


def test_a_quiet_node_wakes_it_seldom(
    node: GuestNode, agent: Callable[..., GuestAgent], figure: Callable[[str], None]
) -> None:
    node.set_thresholds(cpuSuppressThresholdPercent=90, cpuSuppressPolicy="cfsQuota")
    holding = agent("enforce")
    node.until(lambda: holding.metric("koordebpf_be_cpu_cores"), "best-effort pods are held")
    time.sleep(10)
    began_s = node.guest.uptime_s()
    with (
        KernelCounts(node.guest, "raw_syscalls/sys_enter", "common_pid") as calls,
        KernelCounts(node.guest, "sched/sched_wakeup", "pid") as wake_ups,
    ):
        time.sleep(STEADY_S)
        spent_s = node.guest.uptime_s() - began_s
        threads = holding.threads()
        per_s = [of_threads(each.counts(), threads) / spent_s for each in (calls, wake_ups)]
    figure(f"{per_s[0]:.0f} system calls and {per_s[1]:.1f} wake-ups in a second")
    assert 0 < per_s[0] < CALLS
    assert 0 < per_s[1] < WAKE_UPS


def test_it_writes_as_often_as_it_says(
    node: GuestNode, agent: Callable[..., GuestAgent], figure: Callable[[str], None]
) -> None:
    holding = agent("enforce")
    with KernelCounts(node.guest, "koordebpf/cgroup_write", "common_pid", probe="cgroup_file_write") as written:
        node.set_thresholds(cpuSuppressThresholdPercent=90, cpuSuppressPolicy="cfsQuota")
        node.until(lambda: holding.metric("koordebpf_file_writes_total"), "best-effort pods are held")

        def counted() -> tuple[float, float]:
            return of_threads(written.counts(), holding.threads()), holding.metric("koordebpf_file_writes_total")

        # A round tells its writes at its end: in the middle of one the kernel has counted more.
        node.until(lambda: len(set(counted())) == 1, "the kernel and the agent count as many writes")
        by_kernel, _ = counted()
    figure(f"{by_kernel:.0f} writes")


def names_in_pods(paths: Mapping[str, int]) -> Counter[str]:
    found = Counter[str]()
    for path, count in paths.items():
        if "kubepods" in path:
            found[path.rpartition("/")[2]] += count
    return found


def test_it_sees_each_cgroup_that_is_created(
    node: GuestNode, pod: Callable[..., Object], figure: Callable[[str], None]
) -> None:
    bring_source(node.guest)
    command = f"{koordebpf('trace', '--json', '--kind', 'cgroup_mkdir')} >{TRACE}"
    node.guest.check(f"systemd-run --quiet --collect --unit=trace sh -c '{command}'")

    def seen() -> Counter[str]:
        *whole, _unfinished = node.guest.check(f"cat {TRACE} 2>/dev/null || true").split("\n")
        return Counter(json.loads(line)["name"] for line in whole)

    # A cgroup of the test's own shows that it watches.
    node.until(lambda: node.guest.check("mkdir /sys/fs/cgroup/a && rmdir /sys/fs/cgroup/a") or seen(), "it watches")
    with KernelCounts(node.guest, "cgroup/cgroup_mkdir", "path") as created:
        for number in range(PODS):
            pod(f"more-{number}")
        by_kernel = names_in_pods(created.counts())

    def has_seen_as_many() -> bool:
        found = seen()
        return {name: found[name] for name in by_kernel} == by_kernel

    node.until(has_seen_as_many, "it has seen as many", 10)
    node.guest.check("systemctl stop trace")
    figure(f"{sum(by_kernel.values())} cgroups of {PODS} pods")
    assert len(by_kernel) >= 2 * PODS


def test_bursts_hit_no_other_pod(
    node: GuestNode,
    agent: Callable[..., GuestAgent],
    pod: Callable[..., Object],
    figure: Callable[[str], None],
) -> None:
    enforcing = agent("enforce", "--executor", "cgroup")
    with KernelCounts(node.guest, "koordebpf/cgroup_kill", "common_pid", probe="cgroup_kill_write") as kills:
        for number in range(BURSTS):
            hog = f"burst-{number}"
            pod(hog, load=HOG)
            fill(node, hog)
            expect_gone(node, hog)
        by_kernel = of_threads(kills.counts(), enforcing.threads())
    expect_others_alive(node)
    assert [each["name"] for each in outcomes(enforcing)] == [f"burst-{number}" for number in range(BURSTS)]
    assert by_kernel == BURSTS
    decided, waited_s = (
        enforcing.metric(f"koordebpf_crossing_to_decision_seconds_{name}") for name in ("count", "sum")
    )
    assert decided == BURSTS
    mean_ms = 1000 * waited_s / BURSTS
    figure(f"{BURSTS} bursts, {by_kernel} kills; {mean_ms:.0f} ms from crossing to decision")
