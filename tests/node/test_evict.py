"""A best-effort pod fills the node, and the agent evicts it: by the API, and by the kernel."""

from __future__ import annotations

import pytest

from tests.node.node import GuestNode
from tests.node.stories import expect_gone, expect_only, expect_others_alive, fill, outcomes


@pytest.mark.parametrize("executor", ["api", "cgroup"])
def test_only_the_hog_is_evicted(node: GuestNode, executor: str) -> None:
    # GIVEN an LS pod, a BE pod and a BE hog, idle
    agent = node.agent("--enforce", "--executor", executor)
    # WHEN the hog alone crosses the threshold
    fill(node)
    # THEN it is evicted, and no other pod
    expect_only(agent)
    expect_gone(node)
    expect_others_alive(node)
    # AND nothing is left of the agent, whose programs are seen while it runs
    assert any(each.startswith("program ") for each in agent.holds())
    agent.stop()
    assert [each["result"] for each in outcomes(agent)] == ["done"]
