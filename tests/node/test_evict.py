"""A best-effort pod fills the node, and the agent evicts it: by the API, and by the kernel."""

from __future__ import annotations

import pytest

from tests.node.node import GuestNode, is_running

_ABOVE_PERCENT = 15  # of the node's memory above what it uses at rest


def used_percent(node: GuestNode) -> int:
    lines = node.guest.check("cat /proc/meminfo").splitlines()
    kib = {key: int(rest.split()[0]) for key, _, rest in (line.partition(":") for line in lines)}
    return 100 - 100 * kib["MemAvailable"] // kib["MemTotal"]


@pytest.mark.parametrize("executor", ["api", "cgroup"])
def test_only_the_hog_is_evicted(node: GuestNode, executor: str) -> None:
    # GIVEN an LS pod, a BE pod and a BE hog, idle, and a threshold that the hog alone will cross
    threshold = used_percent(node) + _ABOVE_PERCENT
    node.set_thresholds(memoryEvictThresholdPercent=threshold, memoryEvictLowerPercent=threshold - 2)
    agent = node.agent("--enforce", "--executor", executor)
    hog = node.pod("hog")
    assert hog is not None
    # WHEN it allocates
    node.let_hog_eat("hog", 1200, rate_mib_s=60)
    # THEN it is evicted, and no other pod
    line = agent.wait_for_eviction(timeout_s=120)
    assert [outcome["name"] for outcome in line["outcomes"]] == ["hog"]
    assert [outcome["result"] for outcome in line["outcomes"]] == ["done"]
    node.until(lambda: node.guest.run(f"test -d {node.cgroup(hog)}").code, "the hog's slice is gone", 60)
    for name in ("web", "batch"):
        pod = node.pod(name)
        assert is_running(pod)
        assert pod is not None
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    # AND nothing is left of the agent
    agent.stop()
    assert len(agent.evictions()) == 1
