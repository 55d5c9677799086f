"""A virtual machine in its sandbox's own cgroup, as Kata has it beside the pods: its memory is its pod's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kube.sources.file import FileSource
from koordebpf.state.balance import memory_balance
from koordebpf.state.measured import Measured, MemoryParts
from tests.support.loads.workloads import Holder
from tests.support.nodes import MIB, NodeCgroup

SANDBOX = "8564224395a4fbf7f2792baa22ee16dfc8f8e862e20342d3b2bcc211a3939af6"
VM_MIB, SERVICE_MIB, NODE_MIB = 200, 30, 300
SLACK_BYTES = 6 * MIB  # charges that CPUs hold back, and the load's own process
HOLD = ("--hold", "600")


def make(node: NodeCgroup, *names: str) -> Path:
    """Make a cgroup below the node, with the memory controller."""
    path = node.path
    for name in names:
        path /= name
        path.mkdir()
        if node.version == 2 and name != names[-1]:
            (path / "cgroup.subtree_control").write_text("+memory")
    return path


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, NODE_MIB * MIB) as made:
        made.add_pod("vm", priority=5000, containers=0)
        (made.pod_paths["vm"] / f"kata_{SANDBOX}").mkdir()
        made.add_pod("quiet", priority=5000)
        with ExitStack() as stack:
            for cgroup, mib in (
                (make(made, "kata_overhead", SANDBOX), VM_MIB),
                (make(made, "system.slice"), SERVICE_MIB),
            ):
                stack.callback(Holder(cgroup, "anon", mib, *HOLD).stop)
            yield made


def pods_of(node: NodeCgroup, measured: Measured) -> dict[str, MemoryParts]:
    names = {pod["metadata"]["uid"]: name for name, pod in zip(node.pod_paths, node.pods, strict=True)}
    return {names[pod.uid]: pod.memory for pod in measured.pods if pod.memory is not None}


@pytest.mark.parametrize("scans", [True, False], ids=["scan", "files"])
def test_it_is_its_pods_and_not_what_is_outside(
    node: NodeCgroup, hierarchy: MemoryHierarchy, tmp_path: Path, scans: bool
) -> None:
    source = FileSource([node.write_manifest(tmp_path / "pods.json")])
    with NodeWatch(open_scope(hierarchy, node.path), source, 1 << 62, measures=scans) as watch:
        source.start(lambda: None)
        watch.cluster()
        with closing(MemoryCollector(watch.scope, watch.signals, watch.index)) as collector:
            assert scans or not collector.can_scan
            measured = collector.everything({}, (), None)
    pods = pods_of(node, measured)
    assert abs(pods["vm"].elsewhere_bytes - VM_MIB * MIB) <= SLACK_BYTES
    assert pods["vm"].usage_bytes + pods["quiet"].elsewhere_bytes <= SLACK_BYTES
    assert measured.outside is not None
    outside = {each.path: each.held_bytes for each in measured.outside}
    assert abs(outside.pop("system.slice") - SERVICE_MIB * MIB) <= SLACK_BYTES
    assert sum(outside.values()) <= SLACK_BYTES
    balance = memory_balance(measured, measured.node.used_bytes)
    assert balance is not None
    assert abs(balance.unexplained_bytes) <= SLACK_BYTES


@pytest.mark.slow
def test_a_frame_of_the_live_node_has_it(node: NodeCgroup, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "koordebpf", "top", "--frame", "--pods", node.write_manifest(tmp_path / "p.json")]
    done = subprocess.run(
        [str(each) for each in (*command, "--node-cgroup", node.path)], capture_output=True, text=True, check=True
    )
    measured = json.loads(done.stdout)["measured"]
    found = max(pod["memory"]["elsewhere_bytes"] for pod in measured["pods"])
    assert abs(found - VM_MIB * MIB) <= SLACK_BYTES
    assert [each["path"] for each in measured["outside"]][:1] == ["system.slice"]
