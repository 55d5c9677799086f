"""A node whose container runtime is CRI-O, with crun: what its pods are called, and how a hog is evicted from it.

Its boot takes minutes, so that its tests share it: each has a hog of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.api import Object
from tests.cluster.binaries import Binaries, say_line
from tests.cluster.objects import pod as pod_object
from tests.node.agent import bring_source, koordebpf
from tests.node.crio import SOCKET
from tests.node.guest import Machine
from tests.node.image import Image, Suite
from tests.node.node import GuestNode
from tests.node.nri import expect_all_start_limited
from tests.node.pods import HOG
from tests.node.stories import expect_gone, expect_only, expect_others_alive, fill, outcomes

PODS = "/root/pods.json"
# Beside the hog another one, which ends only with the pod.
TWO_PROCESSES = ("/bin/sh", "-c", f"sleep 100000 & {HOG[-1]}")
KILLED = 137
ROOM_PERCENT = 5


@pytest.fixture(scope="module")
def crio_node(
    suite: Suite, node_image: Image, binaries: Binaries, crio_programs: Path, own_network: None
) -> Iterator[GuestNode]:
    if not suite.has_user_namespaces:
        pytest.skip(f"not this kind of machine: crun of {suite.name} has no user namespaces for pods")
    with GuestNode.booted(node_image, binaries.kubernetes, Machine(runtime="crio"), say_line) as node:
        yield node


def rows(node: GuestNode, level: str) -> set[str]:
    """Return the names that `koordebpf top` shows."""
    bring_source(node.guest)
    pods = {"apiVersion": "v1", "kind": "PodList", "items": node.api.items("v1", "Pod")}
    node.guest.write(PODS, json.dumps(pods).encode())
    page = node.guest.check(koordebpf("top", "--once", "--json", "--level", level, "--pods", PODS))
    return {row["name"] for row in json.loads(page.splitlines()[-1])["rows"]}


def processes(node: GuestNode, pod: Object) -> list[int]:
    """Return the pids in the guest of all processes in a pod's cgroup, its containers' monitors too."""
    found = node.guest.run(f"find {node.cgroup(pod)} -name cgroup.procs 2>/dev/null | xargs -r cat").text
    return [int(line) for line in found.split()]


def expect_eviction_by(node: GuestNode, name: str, executor: str) -> None:
    """Let a hog cross the threshold, and expect that it alone is evicted, with all its processes and its memory."""
    hog = node.pod(name)
    assert hog is not None
    assert len(processes(node, hog)) > 1
    before_percent = node.used_percent()
    agent = node.agent("--enforce", "--executor", executor, *(("--cri-socket", SOCKET) if executor == "cri" else ()))
    try:
        fill(node, name)
        expect_only(agent, name)
        assert [each["result"] for each in outcomes(agent)] == ["done"]
        node.until(lambda: not processes(node, hog), f"every process of {name} is gone")
        node.until(lambda: node.used_percent() <= before_percent + ROOM_PERCENT, "its memory is free")
    finally:
        agent.stop()
    if executor != "api":
        # The kubelet has seen it end. A runtime begins with SIGTERM, at which a hog exits as any other program may.
        node.until(lambda: terminated(node, name) is not None, f"{name} is known to have ended")
        assert executor != "cgroup" or terminated(node, name) == KILLED
        node.api.delete(hog)
    expect_gone(node, name)
    node.until(lambda: node.pod(name) is None, f"the object of {name} is gone")
    expect_others_alive(node)


def terminated(node: GuestNode, name: str) -> int | None:
    """Return the exit code of a pod's one container; None: it has not ended."""
    pod = node.pod(name)
    (container,) = pod["status"]["containerStatuses"] if pod else ({"state": {}},)
    code: int | None = container["state"].get("terminated", {}).get("exitCode")
    return code


def test_pods_and_containers_are_named_and_no_monitor_is_a_container(crio_node: GuestNode) -> None:
    # GIVEN a node without containerd, whose containers' monitors are in their pods' slices
    assert crio_node.node()["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("cri-o://")
    assert crio_node.guest.run("pgrep containerd").text == ""
    for name in ("web", "batch", "hog"):
        pod = crio_node.pod(name)
        assert pod is not None
        assert len(crio_node.guest.check(f"ls -d {crio_node.cgroup(pod)}/crio-conmon-*.scope").split()) == 1
        crio_node.guest.check(f"test -d {crio_node.container_cgroup(pod)}")
    # THEN each pod has one container and its sandbox
    assert rows(crio_node, "pod") == {"default/web", "default/batch", "default/hog"}
    parts = ("load", "sandbox")
    named = {f"default/{name}[{part}]" for name in ("web", "batch", "hog") for part in parts}
    assert rows(crio_node, "container") == named


@pytest.mark.parametrize("executor", ["api", "cgroup", "cri"])
def test_on_a_node_with_crio_only_the_hog_is_evicted(crio_node: GuestNode, executor: str) -> None:
    name = f"by-{executor}"
    crio_node.add(pod_object(name, crio_node.name, *TWO_PROCESSES))
    expect_eviction_by(crio_node, name, executor)


@pytest.mark.parametrize("executor", ["api", "cgroup", "cri"])
def test_a_pod_in_a_user_namespace_is_named_and_evicted_with_all_its_processes(
    crio_node: GuestNode, executor: str
) -> None:
    # GIVEN a pod whose root is no user of the node
    name = f"users-by-{executor}"
    pod = pod_object(name, crio_node.name, *TWO_PROCESSES)
    pod["spec"] |= {"hostUsers": False, "hostNetwork": False}
    made = crio_node.add(pod)
    first = crio_node.first_pid(made)
    inside, outside, count = map(int, crio_node.guest.check(f"cat /proc/{first}/uid_map").split())
    assert (inside, count) == (0, 65536)
    assert outside >= 65536
    assert int(crio_node.guest.check(f"stat -c %u /proc/{first}")) == outside
    # THEN it is named and evicted as any other
    assert {f"default/{name}[load]", f"default/{name}[sandbox]"} <= rows(crio_node, "container")
    expect_eviction_by(crio_node, name, executor)


def test_ten_batch_pods_at_once_all_start_limited_with_crio(
    crio_node: GuestNode, figure: Callable[[str], None]
) -> None:
    figure(expect_all_start_limited(crio_node))
