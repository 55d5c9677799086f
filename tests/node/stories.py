"""What several tests of a node expect of an agent."""

from __future__ import annotations

from typing import Any

from tests.node.agent import GuestAgent
from tests.node.node import GuestNode, is_running, was_never_restarted

_ABOVE_PERCENT = 15  # of the node's memory above what it uses at rest
_HOG_MIB, _RATE_MIB_S = 1200, 60
OTHERS = ("web", "batch")


def fill(node: GuestNode, hog: str = "hog") -> None:
    """Set a threshold that an idle hog will cross, and let it allocate."""
    threshold = node.used_percent() + _ABOVE_PERCENT
    node.set_thresholds(memoryEvictThresholdPercent=threshold, memoryEvictLowerPercent=threshold - 2)
    node.let_hog_eat(hog, _HOG_MIB, rate_mib_s=_RATE_MIB_S)


def expect_only(agent: GuestAgent, hog: str = "hog") -> dict[str, Any]:
    """Wait for the agent's first eviction, which has to be the hog's and done; return its line of the audit."""
    line = agent.wait_for_eviction()
    assert [(outcome["name"], outcome["result"]) for outcome in line["outcomes"]] == [(hog, "done")]
    return line


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
