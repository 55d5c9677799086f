"""The CPUs of best-effort pods over an agent's upgrade: those that its predecessor left, at every moment."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.files import parse_cpu_list
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.rigs.live_node import LiveNode, burner, or_skipped, with_strategy
from tests.support.nodes import NodeCgroup

FIELDS = {"cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": "cpuset"}


@pytest.fixture
def live(node: NodeCgroup) -> Iterator[LiveNode]:
    """A node with a best-effort pod that is at work, on a machine of which two CPUs are not all."""
    if (os.cpu_count() or 1) < 3:
        pytest.skip(f"{OTHER_MACHINE}best-effort pods keep two CPUs, and it has no more")
    (container,) = node.add_pod("be")
    made = or_skipped(lambda: LiveNode(node))
    process = burner()
    made.hierarchies.join(container, process.pid)
    yield made
    process.kill()
    process.wait()
    made.close()


def cpus(text: str) -> frozenset[int]:
    return frozenset(parse_cpu_list(text.strip(), "cpuset.cpus"))


def writes(agent: LiveAgent, file: Path) -> list[dict[str, str]]:
    """Return what the agent wrote into this file, the first write first."""
    whole, _, _ = agent.audit.read_bytes().rpartition(b"\n") if agent.audit.exists() else (b"", b"", b"")
    lines = [json.loads(line) for line in whole.splitlines()]
    changes = [line["change"] for line in lines if line["schema"] == "koordebpf.write/v1"]
    return [each for each in changes if (each["path"], each["result"]) == (str(file), "written")]


def test_a_successor_takes_over_the_cpus_and_never_gives_all_of_them(
    node: NodeCgroup, live: LiveNode, tmp_path: Path
) -> None:
    mount, online = live.hierarchies.mounts["cpuset"], os.cpu_count() or 1
    file = mount.mount_point / live.hierarchies.relative(node.path / "kubepods" / "besteffort") / "cpuset.cpus"
    effective = file.with_name("cpuset.effective_cpus" if mount.version == 1 else "cpuset.cpus.effective")
    before = effective.read_bytes()
    manifest = with_strategy(node.write_manifest(tmp_path / "pods.json"), FIELDS)
    config = tmp_path / "config.json"
    whole = {"apiVersion": "koordebpf.io/v1alpha1", "kind": "AgentConfiguration", "suppress": {"atExit": "keep"}}
    config.write_text(json.dumps(whole))
    arguments = ("--pods", manifest, "--node-cgroup", node.path, "--enforce")
    with LiveAgent(tmp_path, "--config", config, *arguments) as agent:
        until(lambda: writes(agent, file), lambda: f"fewer CPUs, but: {agent.log}", 60)
        assert agent.stop(timeout_s=60) == 0
        left = writes(agent, file)[-1]["new"]
    assert 2 <= len(cpus(left)) < online
    assert cpus(file.read_text()) == cpus(left)
    with LiveAgent(tmp_path, *arguments) as agent:
        seen = set()

        def has_decided() -> bool:
            seen.add(file.read_text())
            return agent.metric("koordebpf_be_cpu_cores") > 0

        until(has_decided, lambda: f"the successor's own decision, but: {agent.log}", 60)
        # THEN what was read, and what was written between two readings, begins with what was left and is never all
        changes = writes(agent, file)
        assert [change["old"] for change in changes] == [left, *(change["new"] for change in changes)][: len(changes)]
        assert all(2 <= len(cpus(text)) < online for text in (*seen, *(change["new"] for change in changes)))
        assert agent.stop(timeout_s=60) == 0
    # Some kernels keep a set of v2 from being empty again: then it is what the parent has.
    assert effective.read_bytes() == before
