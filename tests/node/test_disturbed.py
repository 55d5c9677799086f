"""What else happens to a node while best-effort pods are held: restarts, a reboot, a full disk, clocks, a pause."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from tests.cluster.api import Object
from tests.node.agent import GuestAgent
from tests.node.followed import GuestFollowed
from tests.node.node import GuestNode
from tests.node.pods import HOG, STUBBORN_HOG
from tests.node.slices import NO_QUOTA, QUOTA, lifted
from tests.node.stories import (
    cross,
    expect_eviction,
    expect_only,
    expect_others_alive,
    fill,
    outcomes,
    prepare,
)

PAUSED_S = 60  # longer than the cluster waits for a lease
SETTLED_S = 10
STUBBORN_S = 600
ENDED_BYTES = 16 << 20  # what is left of a pod without its load
CONFIG = "/etc/koordebpf/braking.yaml"
# It brakes, and neither ends that nor evicts while the test runs.
BRAKING = {
    "apiVersion": "koordebpf.io/v1alpha1",
    "kind": "AgentConfiguration",
    "eviction": {"ladder": {"rungs": ["brake"], "calm": "1h", "settle": "1h"}},
}
NO_BRAKE = "max"
# All but 16 MiB of what is free as one file, then the rest.
FILL_DISK = (
    "fallocate -l $(($(stat -f -c '%a * %S' /) - (16 << 20))) /var/full; cat /dev/zero >/var/rest;"
    " ! echo a line >/var/line"
)


def quota(node: GuestNode) -> str:
    return node.guest.check(f"cat {QUOTA}").strip()


def hold(node: GuestNode) -> None:
    """Let best-effort pods be held by a quota; return when they are."""
    node.until(lambda: quota(node) != NO_QUOTA, "best-effort pods are held")


@pytest.fixture
def holding(node: GuestNode, agent: Callable[..., GuestAgent]) -> GuestAgent:
    """An agent that holds best-effort pods by a quota."""
    node.set_thresholds(cpuSuppressThresholdPercent=90, cpuSuppressPolicy="cfsQuota")
    found = agent("enforce")
    hold(node)
    return found


def step_clock(node: GuestNode) -> None:
    node.guest.check("date --set='1 hour' >/dev/null")
    time.sleep(SETTLED_S)
    node.guest.set_clock()


def pause(node: GuestNode) -> None:
    node.guest.pause()
    time.sleep(PAUSED_S)
    node.guest.resume()
    node.guest.set_clock()


DISTURBANCES = {
    "kubelet restarted": lambda node: node.guest.check("systemctl restart kubelet"),
    "containerd restarted": lambda node: node.guest.check("systemctl restart containerd"),
    "clock set": step_clock,
    "paused": pause,
}


def test_nothing_is_evicted_or_lifted_for_it(node: GuestNode, holding: GuestAgent) -> None:
    for what, disturb in DISTURBANCES.items():
        with GuestFollowed(node.guest, QUOTA) as followed:
            disturb(node)
            renewed = node.lease_renewed()
            node.until(lambda renewed=renewed: node.lease_renewed() != renewed, "the lease is renewed")
            time.sleep(SETTLED_S)
            spans = followed.spans()
        assert lifted(spans) == [], what
        assert holding.is_active(), what
        assert holding.evictions() == [], what
        expect_others_alive(node)
    # AND afterwards it acts as ever
    expect_eviction(node, holding)
    holding.stop()
    assert quota(node) == NO_QUOTA


def test_a_brake_stays_on_and_no_pod_is_evicted_for_it(node: GuestNode, agent: Callable[..., GuestAgent]) -> None:
    # GIVEN a hog that is braked by `memory.high` of its slice
    node.guest.write(CONFIG, json.dumps(BRAKING).encode())
    enforcing = agent("enforce", "--config", CONFIG)
    hog = node.pod("hog")
    assert hog is not None
    slice_ = node.cgroup(hog)
    brake = f"{slice_}/memory.high"
    fill(node)
    node.until(lambda: node.guest.check(f"cat {brake}").strip() != NO_BRAKE, "the hog is braked")
    # WHEN the kubelet and the runtime start again, and systemd writes to the slice
    disturbances = (
        *("systemctl restart kubelet", "systemctl restart containerd", "systemctl daemon-reload"),
        f"systemctl set-property --runtime {slice_.rpartition('/')[2]} CPUWeight=3",
    )
    with GuestFollowed(node.guest, brake) as followed:
        for command in disturbances:
            node.guest.check(command)
            renewed = node.lease_renewed()
            node.until(lambda renewed=renewed: node.lease_renewed() != renewed, "the lease is renewed")
        spans = followed.spans()
    # THEN it stays braked, and is as before when the agent ends
    assert lifted(spans, {NO_BRAKE}) == []
    assert spans[-1].value != NO_BRAKE
    expect_others_alive(node)
    enforcing.stop()
    assert node.guest.check(f"cat {brake}").strip() == NO_BRAKE
    assert {each["result"] for each in outcomes(enforcing)} == {"held"}


def test_a_full_disk_keeps_no_hog_alive(node: GuestNode, holding: GuestAgent, pod: Callable[..., Object]) -> None:
    pod("later", load=HOG)
    prepare(node)
    node.guest.check(FILL_DISK)
    cross(node)
    # THEN its memory is back, though the runtime, which cannot write either, keeps its cgroups
    hog = node.pod("hog")
    assert hog is not None
    usage = f"cat {node.cgroup(hog)}/memory.current 2>/dev/null || echo 0"
    holding.wait_for_log("evicted default/hog by api")
    node.until(lambda: int(node.guest.check(usage)) < ENDED_BYTES, "the hog's memory is free")
    assert quota(node) != NO_QUOTA
    # AND once there is room the audit continues
    node.guest.check("rm /var/full /var/rest /var/line")
    fill(node, "later")
    node.until(lambda: "later" in {each["name"] for each in outcomes(holding)}, "the audit's line")
    expect_others_alive(node)
    holding.stop()
    assert quota(node) == NO_QUOTA


@pytest.mark.parametrize("command", ["systemctl reboot", "echo b >/proc/sysrq-trigger"], ids=["reboot", "reset"])
def test_after_a_reboot_during_an_eviction_no_other_pod_is_evicted(
    node: GuestNode, pod: Callable[..., Object], command: str
) -> None:
    # GIVEN a node that holds best-effort pods, and a pod that is evicted and does not end
    node.set_thresholds(cpuSuppressThresholdPercent=90, cpuSuppressPolicy="cfsQuota")
    before = node.agent("--enforce")
    hold(node)
    pod("stubborn", load=STUBBORN_HOG, grace_s=STUBBORN_S)
    fill(node, "stubborn")
    expect_only(before, "stubborn")
    # WHEN the node boots again
    node.guest.reboot(command)
    # THEN no quota holds its pods, an agent starts as on a fresh node, and evicts no other pod
    node.until(lambda: not node.guest.run(f"test -e {QUOTA}").code, "the kubelet has made its slices")
    assert quota(node) == NO_QUOTA
    after = node.agent("--enforce")
    hold(node)
    time.sleep(SETTLED_S)
    assert {each["name"] for each in outcomes(after)} <= {"stubborn"}
    assert "Traceback" not in after.log()
    node.until(lambda: node.pod("stubborn") is None, "the evicted pod is gone")
    after.stop()
    assert quota(node) == NO_QUOTA
