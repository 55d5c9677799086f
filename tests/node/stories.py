"""What several tests of a node expect of an agent."""

from __future__ import annotations

from typing import Any

from tests.node.agent import GuestAgent
from tests.node.node import GuestNode, is_running, was_never_restarted

_ABOVE_PERCENT = 15  # of the node's memory above what it uses at rest
_HOG_MIB, _RATE_MIB_S = 1200, 60
OTHERS = ("web", "batch")


def prepare(node: GuestNode, hog: str = "hog") -> None:
    """Say what an idle hog is to allocate."""
    node.prepare_hog(hog, _HOG_MIB, _RATE_MIB_S)


def cross(node: GuestNode, hog: str = "hog") -> None:
    """Set a threshold, and let a hog that was prepared cross it, alone."""
    threshold = node.used_percent() + _ABOVE_PERCENT
    node.set_thresholds(memoryEvictThresholdPercent=threshold, memoryEvictLowerPercent=threshold - 2)
    node.wake_hog(hog)


def fill(node: GuestNode, hog: str = "hog") -> None:
    """Set a threshold, and let an idle hog cross it, alone."""
    prepare(node, hog)
    cross(node, hog)


def expect_eviction(node: GuestNode, agent: GuestAgent, hog: str = "hog") -> None:
    """Let a hog cross a threshold, and expect that it alone is evicted."""
    fill(node, hog)
    expect_only(agent, hog)
    expect_gone(node, hog)
    expect_others_alive(node)


def expect_only(agent: GuestAgent, hog: str = "hog") -> None:
    """Wait until it is known what came of evicting the hog, and expect that the agent has tried to evict no other pod.

    Raises:  GuestFailed: it is not, and the agent's last lines.
    """
    agent.wait_until(lambda: bool(outcomes(agent)), f"{hog} is not evicted")
    assert {outcome["name"] for outcome in outcomes(agent)} == {hog}


def outcomes(agent: GuestAgent) -> list[dict[str, Any]]:
    """Return what came of each victim, of all rounds."""
    return [outcome for line in agent.evictions() for outcome in line["outcomes"]]


def expect_gone(node: GuestNode, name: str = "hog") -> None:
    """Wait until nothing is left of a pod in the guest."""
    pod = node.pod(name)
    if pod is not None:
        node.until(lambda: node.guest.run(f"test -d {node.cgroup(pod)}").code, f"the slice of {name} is gone")


def expect_others_alive(node: GuestNode) -> None:
    """Expect that the pods beside the hog run, as they did from the start."""
    for name in OTHERS:
        pod = node.pod(name)
        assert pod is not None, name
        assert is_running(pod), name
        assert was_never_restarted(pod), name
