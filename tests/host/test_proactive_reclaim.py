"""Proactive reclaim in a running agent: what a best-effort pod's cgroup gives, and that no other one does."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.support.nodes import MIB, NodeCgroup

pytestmark = pytest.mark.slow
CONFIG = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
featureGates:
  ProactiveReclaim: true
strategies:
  proactiveReclaim:
    stepPercent: 10
"""
FILE_MIB = 160


def arguments(node: NodeCgroup, folder: Path) -> tuple[object, ...]:
    manifest, config = folder / "pods.json", folder / "config.yaml"
    node.write_manifest(manifest)
    config.write_text(CONFIG)
    return "--pods", manifest, "--node-cgroup", node.path, "--config", config


def read_once(container: Path, folder: Path) -> None:
    """Leave page cache that no process asks for again."""
    file = folder / container.parent.name
    script = f"echo $$ >{container}/cgroup.procs; head -c {FILE_MIB * MIB} /dev/zero >{file}; sync {file}; cat {file}"
    subprocess.run(["sh", "-c", script], check=True, stdout=subprocess.DEVNULL)


def current(pod: Path) -> int:
    return int((pod / "memory.current").read_text())


def sleeper(container: Path) -> subprocess.Popen[bytes]:
    """Keep the pod running."""
    return subprocess.Popen(["sh", "-c", f"echo $$ >{container}/cgroup.procs; exec sleep 600"])


@pytest.fixture
def trimmed(node: NodeCgroup) -> NodeCgroup:
    if node.version == 1:
        pytest.skip(f"{OTHER_MACHINE}cgroup v1 has no memory.reclaim")
    return node


def test_on_cgroup_v1_it_says_that_it_cannot_and_does_nothing(node: NodeCgroup, tmp_path: Path) -> None:
    if node.version == 2:
        pytest.skip(f"{OTHER_MACHINE}cgroup v2 has memory.reclaim")
    node.add_pod("be")
    with LiveAgent(tmp_path, *arguments(node, tmp_path), "--enforce") as agent:
        agent.said("proactive reclaim: cgroup v1 has no memory.reclaim")
        assert agent.metric("koordebpf_proactive_reclaim_pods") == 0
        assert agent.stop() == 0


def test_on_cgroup_v1_soft_limits_are_set_and_restored(node: NodeCgroup, tmp_path: Path) -> None:
    """Of the best-effort pod alone; they follow what it holds beside page cache."""
    if node.version == 2:
        pytest.skip(f"{OTHER_MACHINE}cgroup v2 has memory.reclaim")
    (be,), (ls,) = node.add_pod("be"), node.add_pod("ls", be=False)
    sleepers = [sleeper(each) for each in (be, ls)]
    files = [node.pod_paths[name] / "memory.soft_limit_in_bytes" for name in ("be", "ls")]
    before = [each.read_text() for each in files]
    given = arguments(node, tmp_path)
    (tmp_path / "config.yaml").write_text(f"{CONFIG}    softLimits: true\n")
    try:
        read_once(be, tmp_path)
        with LiveAgent(tmp_path, *given, "--enforce") as agent:
            until(lambda: files[0].read_text() != before[0], lambda: f"a soft limit\n{agent.log}", 30)
            assert 16 * MIB <= int(files[0].read_text()) <= 64 * MIB
            assert files[1].read_text() == before[1]
            assert agent.stop() == 0
        assert [each.read_text() for each in files] == before
    finally:
        for process in sleepers:
            process.kill()
            process.wait()


@pytest.mark.parametrize("mode", ["--enforce", "--dry-run"])
def test_idle_page_cache_of_a_best_effort_pod_is_taken_and_no_other_pods(
    trimmed: NodeCgroup, tmp_path: Path, mode: str
) -> None:
    (be,), (ls,) = trimmed.add_pod("be"), trimmed.add_pod("ls", be=False)
    sleepers = [sleeper(each) for each in (be, ls)]
    try:
        for each in (be, ls):
            read_once(each, tmp_path)
        pods = [trimmed.pod_paths[name] for name in ("be", "ls")]
        before = [current(each) for each in pods]
        assert min(before) > FILE_MIB * MIB
        with LiveAgent(tmp_path, *arguments(trimmed, tmp_path), mode) as agent:
            if mode == "--dry-run":
                asked = 'koordebpf_proactive_reclaim_bytes_total{result="dry_run"}'
                until(lambda: agent.metric(asked) > 4 * MIB, lambda: f"what it would take\n{agent.log}", 60)
                taken_mib = 0
            else:
                taken_mib = 30
                until(
                    lambda: current(pods[0]) < before[0] - taken_mib * MIB,
                    lambda: f"{taken_mib} MiB, but {(before[0] - current(pods[0])) >> 20}\n{agent.log}",
                    120,
                )
            assert agent.metric("koordebpf_proactive_reclaim_pods") == 1
            assert agent.stop() == 0
        assert current(pods[1]) > before[1] - 2 * MIB
        assert mode == "--enforce" or current(pods[0]) > before[0] - 2 * MIB
    finally:
        for process in sleepers:
            process.kill()
            process.wait()


def test_a_working_set_stays(trimmed: NodeCgroup, tmp_path: Path) -> None:
    """A pod that reads its file again and again is asked, and then left alone: at most a few percent are missing."""
    (be,) = trimmed.add_pod("be")
    read_once(be, tmp_path)
    file = tmp_path / be.parent.name
    script = f"echo $$ >{be}/cgroup.procs; while :; do cat {file} >/dev/null; done"
    with (tmp_path / "errors").open("wb") as errors:
        reader = subprocess.Popen(["sh", "-c", script], stderr=errors, start_new_session=True)
    try:
        pod = trimmed.pod_paths["be"]
        with LiveAgent(tmp_path, *arguments(trimmed, tmp_path), "--enforce") as agent:
            until(
                lambda: agent.metric("koordebpf_proactive_reclaim_hurt_pods_total") >= 1,
                lambda: f"a pod that was hurt\n{agent.log}",
                120,
            )
            assert current(pod) > 0.8 * FILE_MIB * MIB
            assert agent.stop() == 0
    finally:
        os.killpg(reader.pid, signal.SIGKILL)
        reader.wait()
