"""A best-effort pod fills the node, and the agent evicts it: by the API, and by the kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.objects import pod as pod_object
from tests.node.agent import GuestAgent
from tests.node.node import GuestNode
from tests.node.pods import HOG
from tests.node.stories import expect_eviction, outcomes

# As systemd and runtimes in a container do it. A privileged one sees the node's cgroups, and where it is among them.
NESTED = """
IFS=: read number controllers path </proc/self/cgroup && cd /sys/fs/cgroup$path || exit 1
/bin/busybox mkdir -p own/deeper && echo 0 >own/deeper/cgroup.procs || exit 1
echo +memory >cgroup.subtree_control && echo +memory >own/cgroup.subtree_control || exit 1
"""


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


def test_a_pod_with_cgroups_of_its_own_dies_with_them(node: GuestNode, agent: Callable[..., GuestAgent]) -> None:
    # GIVEN a container that has moved its processes two levels down
    nested = pod_object("nested", node.name, "/bin/sh", "-c", f"{NESTED} {HOG[-1]}")
    nested["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    made = node.add(nested)
    below = f"{node.container_cgroup(made)}/own/deeper"
    node.until(lambda: not node.guest.run(f"grep -q . {below}/cgroup.procs").code, "it has moved")
    assert int(node.guest.check(f"cat {below}/memory.current"))
    # WHEN it crosses the threshold, THEN it is evicted with them, and no other pod
    enforcing = agent("enforce", "--executor", "cgroup")
    expect_eviction(node, enforcing, "nested")
    enforcing.stop()
    assert [each["result"] for each in outcomes(enforcing)] == ["done"]
