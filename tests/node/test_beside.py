"""Others that kill for memory on the same node: the kernel, the kubelet, systemd-oomd. None acts twice."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.cluster.api import Object
from tests.cluster.objects import pod as pod_object
from tests.node.agent import GuestAgent
from tests.node.joining import KUBELET_CONFIG
from tests.node.node import GuestNode
from tests.node.pods import HOG
from tests.node.stories import expect_gone, expect_others_alive, fill, outcomes

FAR = {"memoryEvictThresholdPercent": 98, "memoryEvictLowerPercent": 95}
HOG_MIB = 1000
LIMITED = "/bin/hog --mib 20 --hold 600 & /bin/hog --mib 300 --hold 600; wait"
# 60 MiB that cannot be reclaimed, and a file that is read again and again: above `memory.high` each charge waits.
THRASHING = "/bin/hog --mib 60 --hold 600 & while :; do /bin/busybox cat /programs/kubernetes >/dev/null; done"
HIGH = "40M"
# The node logs warnings alone; that it kills systemd-oomd says as a notice.
OOMD = """
mkdir -p /run/systemd/oomd.conf.d /run/systemd/system/systemd-oomd.service.d
printf '[OOM]\\nDefaultMemoryPressureDurationSec=2s\\n' >/run/systemd/oomd.conf.d/fast.conf
printf '[Service]\\nEnvironment=SYSTEMD_LOG_LEVEL=info\\n' >/run/systemd/system/systemd-oomd.service.d/log.conf
systemctl daemon-reload
systemctl start systemd-oomd
"""
WATCHED = "ManagedOOMMemoryPressure=kill ManagedOOMMemoryPressureLimit=5%"


def phase(node: GuestNode, name: str) -> str:
    found = node.pod(name)
    return found["status"].get("phase", "") if found else "gone"


def test_a_pod_that_the_kernel_kills_whole_at_its_limit_is_no_eviction(
    node: GuestNode, agent: Callable[..., GuestAgent]
) -> None:
    # GIVEN a pod of two processes, whose kubelet lets the kernel kill them together
    node.set_thresholds(**FAR)
    enforcing = agent("enforce")
    limits, requests = {"memory": "100Mi"}, {"memory": "10Mi"}
    node.api.create(pod_object("limited", node.name, "/bin/sh", "-c", LIMITED, limits=limits, requests=requests))
    # THEN it is the kernel that ended it, it is reported as that, once, and no pod is evicted
    node.until(lambda: phase(node, "limited") == "Failed", "the kernel kills it")
    found = node.pod("limited")
    assert found is not None
    (container,) = found["status"]["containerStatuses"]
    assert container["state"]["terminated"]["reason"] == "OOMKilled"
    enforcing.wait_for_log("the kernel's OOM killer took ")
    log = enforcing.stop()
    assert len(re.findall(r"OOM killer took \S+ \(\d+\) of default/limited for its own limit", log)) == 1, log
    assert enforcing.evictions() == []
    expect_others_alive(node)


def test_who_the_kubelet_evicts_is_not_evicted_again(
    node: GuestNode, agent: Callable[..., GuestAgent], pod: Callable[..., Object]
) -> None:
    # GIVEN a kubelet whose own threshold the hog crosses, together with the agent's
    pod("second", load=HOG)
    available = int(node.guest.check("awk '/MemAvailable/ {print int($2 / 1024)}' /proc/meminfo")) - HOG_MIB // 2
    node.guest.check(f"sed -i 's/memory.available: .*/memory.available: {available}Mi/' {KUBELET_CONFIG}")
    node.guest.check("systemctl restart kubelet")
    node.set_thresholds(**FAR)
    enforcing = agent("enforce")
    # WHEN the kubelet alone sees it
    node.prepare_hog("hog", HOG_MIB)
    node.wake_hog("hog")
    # Succeeded: it ended by itself within the grace period.
    node.until(lambda: phase(node, "hog") in ("Failed", "Succeeded", "gone"), "the kubelet evicts the hog")
    expect_gone(node)
    assert enforcing.evictions() == []
    # AND when both do
    fill(node, "second")
    expect_gone(node, "second")
    assert {outcome["name"] for outcome in outcomes(enforcing)} <= {"second"}
    expect_others_alive(node)


def test_who_systemd_oomd_kills_is_not_evicted_again(node: GuestNode, agent: Callable[..., GuestAgent]) -> None:
    node.guest.check(OOMD)  # before the agent, which may leave no BPF program: systemd gives its units some
    node.set_thresholds(**FAR)
    enforcing = agent("enforce")
    # WHEN a pod reclaims all the time, above its own `memory.high`
    limits, requests = {"memory": "200Mi"}, {"memory": "24Mi"}
    thrashing = pod_object("thrashing", node.name, "/bin/sh", "-c", THRASHING, limits=limits, requests=requests)
    thrashing["spec"]["volumes"] = [{"name": "programs", "hostPath": {"path": "/usr/local/bin"}}]
    mount = {"name": "programs", "mountPath": "/programs", "readOnly": True}
    thrashing["spec"]["containers"][0]["volumeMounts"] = [mount]
    slice_ = node.cgroup(node.add(thrashing))
    node.guest.check(f"systemctl set-property --runtime {slice_.rpartition('/')[2]} {WATCHED}")
    node.guest.check(f"echo {HIGH} >{slice_}/memory.high")
    # THEN systemd-oomd kills it, and the agent, which sees the node's memory free, evicts no pod
    node.until(lambda: phase(node, "thrashing") in ("Failed", "gone"), "systemd-oomd kills it")
    killed = re.findall(r"Killed (\S+) due to memory pressure", node.guest.check("journalctl -u systemd-oomd -o cat"))
    assert [path.startswith(slice_.removeprefix("/sys/fs/cgroup")) for path in killed] == [True], killed
    expect_others_alive(node)
    enforcing.stop()
    assert enforcing.evictions() == []
