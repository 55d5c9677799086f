"""What else happens to a node while best-effort pods are held: restarts, a clock that is set, a pause."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.node.agent import GuestAgent
from tests.node.followed import GuestFollowed
from tests.node.node import GuestNode
from tests.node.slices import NO_QUOTA, QUOTA, lifted
from tests.node.stories import expect_eviction, expect_others_alive

PAUSED_S = 60  # longer than the cluster waits for a lease
SETTLED_S = 10


def quota(node: GuestNode) -> str:
    return node.guest.check(f"cat {QUOTA}").strip()


@pytest.fixture
def holding(node: GuestNode, agent: Callable[..., GuestAgent]) -> GuestAgent:
    """An agent that holds best-effort pods by a quota."""
    node.set_thresholds(cpuSuppressThresholdPercent=90, cpuSuppressPolicy="cfsQuota")
    found = agent("enforce")
    node.until(lambda: quota(node) != NO_QUOTA, "best-effort pods are held")
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
            node.until(lambda renewed=renewed: node.lease_renewed() > renewed, "the lease is renewed")
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
