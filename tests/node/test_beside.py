"""Others that kill for memory on the same node: the kernel, the kubelet. None acts twice."""

from __future__ import annotations

import re

from tests.cluster.objects import pod
from tests.node.node import GuestNode
from tests.node.state import idle_hog
from tests.node.stories import expect_gone, expect_others_alive, fill, outcomes

FAR = {"memoryEvictThresholdPercent": 98, "memoryEvictLowerPercent": 95}
KUBELET_CONFIG = "/etc/kubernetes/kubelet.yaml"
HOG_MIB = 1000
LIMITED = "/bin/hog --mib 20 --hold 600 & /bin/hog --mib 300 --hold 600; wait"


def phase(node: GuestNode, name: str) -> str:
    found = node.pod(name)
    return found["status"].get("phase", "") if found else "gone"


def test_a_pod_that_the_kernel_kills_whole_at_its_limit_is_no_eviction(node: GuestNode) -> None:
    # GIVEN a pod of two processes, whose kubelet lets the kernel kill them together
    node.set_thresholds(**FAR)
    agent = node.agent("--enforce")
    one = pod("limited", node.name, "/bin/sh", "-c", LIMITED, limits={"memory": "100Mi"}, requests={"memory": "10Mi"})
    node.api.create(one)
    # THEN it is the kernel that ended it, it is reported as that, once, and no pod is evicted
    node.until(lambda: phase(node, "limited") == "Failed", "the kernel kills it")
    found = node.pod("limited")
    assert found is not None
    (container,) = found["status"]["containerStatuses"]
    assert container["state"]["terminated"]["reason"] == "OOMKilled"
    agent.wait_for_log("the kernel's OOM killer took ")
    log = agent.stop()
    assert len(re.findall(r"OOM killer took \S+ \(\d+\) of default/limited for its own limit", log)) == 1, log
    assert agent.evictions() == []
    expect_others_alive(node)


def test_who_the_kubelet_evicts_is_not_evicted_again(node: GuestNode) -> None:
    # GIVEN a kubelet whose own threshold the hog crosses, together with the agent's
    node.add(idle_hog("second", node.name))
    available = int(node.guest.check("awk '/MemAvailable/ {print int($2 / 1024)}' /proc/meminfo")) - HOG_MIB // 2
    node.guest.check(f"sed -i 's/memory.available: .*/memory.available: {available}Mi/' {KUBELET_CONFIG}")
    node.guest.check("systemctl restart kubelet")
    node.set_thresholds(**FAR)
    agent = node.agent("--enforce")
    # WHEN the kubelet alone sees it
    node.prepare_hog("hog", HOG_MIB)
    node.wake_hog("hog")
    node.until(lambda: phase(node, "hog") in ("Failed", "gone"), "the kubelet evicts the hog")
    expect_gone(node)
    assert agent.evictions() == []
    # AND when both do
    fill(node, "second")
    expect_gone(node, "second")
    assert {outcome["name"] for outcome in outcomes(agent)} <= {"second"}
    expect_others_alive(node)
    agent.stop()
