"""A best-effort pod fills the node, and the agent evicts it: by the API, and by the kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.node.agent import GuestAgent
from tests.node.node import GuestNode
from tests.node.stories import expect_eviction, outcomes


@pytest.mark.parametrize("executor", ["api", "cgroup"])
def test_only_the_hog_is_evicted(node: GuestNode, agent: Callable[..., GuestAgent], executor: str) -> None:
    # GIVEN an LS pod, a BE pod and a BE hog, idle
    enforcing = agent("enforce", "--executor", executor)
    # WHEN the hog alone crosses the threshold, THEN it is evicted, and no other pod
    expect_eviction(node, enforcing)
    # AND nothing is left of the agent, whose programs are seen while it runs
    assert any(each.startswith("program ") for each in enforcing.holds())
    enforcing.stop()
    assert [each["result"] for each in outcomes(enforcing)] == ["done"]
