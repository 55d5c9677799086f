"""CPU burst in a running agent: a throttled container gets more of the CPU, within its bound, and it is restored."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.rigs.burst_pod_node import LIMIT_US, QUOTA, BurstPodNode
from tests.host.rigs.live_node import or_skipped
from tests.support.nodes import NodeCgroup

pytestmark = pytest.mark.slow
OWN = [2 * LIMIT_US, LIMIT_US, LIMIT_US]
RAISED = [4 * LIMIT_US, 3 * LIMIT_US, LIMIT_US]  # one of two containers at three times its limit


@pytest.fixture
def bursty(node: NodeCgroup) -> Iterator[BurstPodNode]:
    made = or_skipped(lambda: BurstPodNode(node))
    yield made
    made.close()


# The machine's other work must not be what the share pool is full of.
ROOM = {"sharePoolThresholdPercent": 100}


def raised(bursty: BurstPodNode, agent: LiveAgent) -> None:
    until(lambda: bursty.quotas == RAISED, lambda: f"{RAISED}, but: {bursty.quotas}\n{agent.log}")


def test_a_throttled_container_has_more_up_to_its_bound_until_the_agent_stops(
    bursty: BurstPodNode, tmp_path: Path
) -> None:
    before = bursty.bursts
    with LiveAgent(tmp_path, *bursty.arguments(tmp_path, **ROOM), "--enforce") as agent:
        agent.becomes_ready()
        if None not in before:
            until(lambda: bursty.bursts == OWN, lambda: f"bursts of {OWN}, but: {bursty.bursts}\n{agent.log}")
        assert bursty.quotas == OWN
        bursty.burn()
        raised(bursty, agent)
        time.sleep(2)
        assert bursty.quotas == RAISED
        changes = until(lambda: [line["change"] for line in agent.lines() if "change" in line], "lines of the audit")
        assert {each["owner"] for each in changes} == {"cpuBurst"}
        assert {each["result"] for each in changes} == {"written"}
        assert agent.metric('koordebpf_cpu_burst_containers{state="at_ceiling"}') == 1
        assert agent.metric("koordebpf_cpu_burst_wakes_total") >= 1
        assert agent.stop() == 0
    assert (bursty.quotas, bursty.bursts) == (OWN, before)


def test_the_first_step_comes_before_the_second_is_over(bursty: BurstPodNode, tmp_path: Path) -> None:
    with LiveAgent(tmp_path, *bursty.arguments(tmp_path, **ROOM), "--enforce") as agent:
        agent.becomes_ready()
        until(lambda: agent.metric('koordebpf_cpu_burst_node{state="idle"}') == 1, lambda: f"idle, but: {agent.log}")
        took = []
        for _ in range(3):
            bursty.burn()
            first, before = bursty.containers[0], bursty.throttled(bursty.containers[0])
            until(lambda first=first, before=before: bursty.throttled(first) > before, "throttling")
            since = time.monotonic()
            until(lambda: bursty.quotas != OWN, "a larger quota")
            took.append(time.monotonic() - since)
            bursty.calm()
            bursty.write(tmp_path, **ROOM, policy="none")
            until(lambda: bursty.quotas == OWN, lambda: f"its own, but: {bursty.quotas}\n{agent.log}")
            bursty.write(tmp_path, **ROOM)
            time.sleep(1.5)
        assert min(took) < 0.5
        assert agent.stop() == 0


def test_a_calm_container_is_lowered_again(bursty: BurstPodNode, tmp_path: Path) -> None:
    arguments = bursty.arguments(tmp_path, {"returnAfter": "2s"}, **ROOM)
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        bursty.burn()
        raised(bursty, agent)
        bursty.calm()
        until(lambda: bursty.quotas == OWN, lambda: f"{OWN}, but: {bursty.quotas}\n{agent.log}", 60)
        assert agent.stop() == 0


def test_it_is_lowered_where_the_node_has_no_room(bursty: BurstPodNode, tmp_path: Path) -> None:
    with LiveAgent(tmp_path, *bursty.arguments(tmp_path, **ROOM), "--enforce") as agent:
        bursty.burn()
        raised(bursty, agent)
        bursty.write(tmp_path, sharePoolThresholdPercent=0)
        until(lambda: bursty.quotas == OWN, lambda: f"{OWN}, but: {bursty.quotas}\n{agent.log}", 60)
        assert agent.stop() == 0


def test_a_dry_run_writes_nothing(bursty: BurstPodNode, tmp_path: Path) -> None:
    before = bursty.bursts
    with LiveAgent(tmp_path, *bursty.arguments(tmp_path, **ROOM)) as agent:
        bursty.burn()
        agent.said("(dry run)")
        until(lambda: agent.metric('koordebpf_cpu_burst_containers{state="raised"}') == 1, "a decision")
        assert (bursty.quotas, bursty.bursts) == (OWN, before)
        assert agent.stop() == 0


def test_a_killed_agent_leaves_quotas_that_the_next_one_restores(bursty: BurstPodNode, tmp_path: Path) -> None:
    before = bursty.bursts
    with LiveAgent(tmp_path, *bursty.arguments(tmp_path, **ROOM), "--enforce") as agent:
        bursty.burn()
        raised(bursty, agent)
        agent.stop(signal.SIGKILL)
    assert bursty.quotas == RAISED
    manifest = bursty.write(tmp_path)
    arguments = "--pods", manifest, "--node-cgroup", bursty.node.path, "--feature-gates", "BECPUSuppress=false"
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        until(lambda: (bursty.quotas, bursty.bursts) == (OWN, before), lambda: f"{OWN}, but: {bursty.quotas}")
        assert agent.stop() == 0


def test_a_quota_that_another_process_writes_is_left_to_it(bursty: BurstPodNode, tmp_path: Path) -> None:
    first = bursty.containers[0]
    with LiveAgent(tmp_path, *bursty.arguments(tmp_path, **ROOM), "--enforce") as agent:
        bursty.burn()
        until(lambda: bursty.quotas != OWN, lambda: f"a burst, which it writes each 100 ms, but: {agent.log}")
        bursty.limit_cpu(first, 7_000)
        left = 'koordebpf_cpu_burst_containers{state="left"}'
        until(lambda: agent.metric(left) == 1, lambda: f"one that is left, but: {bursty.quotas}\n{agent.log}")
        time.sleep(3)
        assert bursty.value(first, QUOTA) == 7_000, agent.log
        assert agent.stop() == 0
    assert bursty.quotas == [2 * LIMIT_US, 7_000, LIMIT_US]


def test_kubelet_can_write_a_smaller_limit_while_unused_quota_is_saved_up(bursty: BurstPodNode, tmp_path: Path) -> None:
    if None in bursty.bursts:
        pytest.skip(f"{OTHER_MACHINE}its kernel has no cpu.cfs_burst_us")
    with LiveAgent(tmp_path, *bursty.arguments(tmp_path, **ROOM), "--enforce") as agent:
        until(lambda: bursty.bursts == OWN, lambda: f"bursts of {OWN}, but: {bursty.bursts}\n{agent.log}")
        for each in bursty.node.pods[0]["spec"]["containers"]:
            each["resources"]["limits"] = {"cpu": "30m"}
        bursty.write(tmp_path, **ROOM)
        smaller = [6_000, 3_000, 3_000]
        until(lambda: bursty.bursts == smaller, lambda: f"{smaller}, but: {bursty.bursts}\n{agent.log}")
        for directory, quota_us in zip((*bursty.containers, bursty.pod), (3_000, 3_000, 6_000), strict=True):
            bursty.limit_cpu(directory, quota_us)
        assert agent.stop() == 0
    assert bursty.quotas == smaller


def test_a_container_that_ends_during_its_burst_stops_nothing(bursty: BurstPodNode, tmp_path: Path) -> None:
    with LiveAgent(tmp_path, *bursty.arguments(tmp_path, **ROOM), "--enforce") as agent:
        bursty.burn(0)
        bursty.burn(1)
        until(lambda: bursty.quotas == [6 * LIMIT_US, 3 * LIMIT_US, 3 * LIMIT_US], "two bursts")
        bursty.calm()
        bursty.hierarchies.remove(bursty.containers[1])
        bursty.burn(0)
        until(lambda: bursty.value(bursty.pod, QUOTA) == 4 * LIMIT_US, lambda: f"one burst, but: {agent.log}")
        assert agent.stop() == 0
    assert [bursty.value(each, QUOTA) for each in (bursty.pod, bursty.containers[0])] == OWN[:2], agent.log


def test_what_a_pod_writes_in_its_annotation_and_cannot_be_read_is_named(bursty: BurstPodNode, tmp_path: Path) -> None:
    bursty.node.pods[0]["metadata"]["annotations"] = {"koordinator.sh/cpuBurst": '{"policy": "always"}'}
    with LiveAgent(tmp_path, *bursty.arguments(tmp_path, **ROOM), "--enforce") as agent:
        agent.said("koordinator.sh/cpuBurst")
        bursty.burn()
        raised(bursty, agent)
        assert agent.stop() == 0
