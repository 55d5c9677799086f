"""A best-effort pod fills the node, and the agent evicts it: by the API, and by the kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.objects import pod as pod_object
from tests.node.agent import GuestAgent
from tests.node.node import GuestNode
from tests.node.pods import HOG
from tests.node.stories import expect_gone, expect_only, expect_others_alive, fill, outcomes

NESTED = """
cd /sys/fs/cgroup && /bin/busybox mkdir -p own/deeper && echo $$ >own/deeper/cgroup.procs || exit 1
echo +memory >cgroup.subtree_control && echo +memory >own/cgroup.subtree_control || exit 1
"""


@pytest.mark.parametrize("executor", ["api", "cgroup"])
def test_only_the_hog_is_evicted(node: GuestNode, agent: Callable[..., GuestAgent], executor: str) -> None:
    # GIVEN an LS pod, a BE pod and a BE hog, idle
    enforcing = agent("enforce", "--executor", executor)
    # WHEN the hog alone crosses the threshold
    fill(node)
    # THEN it is evicted, and no other pod
    expect_only(enforcing)
    expect_gone(node)
    expect_others_alive(node)
    # AND nothing is left of the agent, whose programs are seen while it runs
    assert any(each.startswith("program ") for each in enforcing.holds())
    enforcing.stop()
    assert [each["result"] for each in outcomes(enforcing)] == ["done"]


def test_a_pod_with_cgroups_of_its_own_dies_with_them(node: GuestNode, agent: Callable[..., GuestAgent]) -> None:
    # GIVEN a container that has moved its processes two levels down, as systemd and other runtimes in it do
    nested = pod_object("nested", node.name, "/bin/sh", "-c", f"{NESTED} {HOG[-1]}")
    nested["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    made = node.add(nested)
    below = f"{node.container_cgroup(made)}/own/deeper"
    node.until(lambda: not node.guest.run(f"grep -q . {below}/cgroup.procs").code, "it has moved")
    assert node.guest.check(f"cat {below}/memory.current")
    enforcing = agent("enforce", "--executor", "cgroup")
    fill(node, "nested")
    expect_only(enforcing, "nested")
    expect_gone(node, "nested")
    expect_others_alive(node)
    assert [each["result"] for each in outcomes(enforcing)] == ["done"]
