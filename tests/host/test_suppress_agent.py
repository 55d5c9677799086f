"""`koordebpf run` limits best-effort pods to the CPU that others leave, and restores what it wrote."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from koordebpf.units import NS_PER_S
from tests.contract.apiserver import until
from tests.host.live_agent import ROOT, LiveAgent, left_in
from tests.host.rigs.held_node import HeldNode
from tests.host.rigs.live_node import burner


def lines_of(agent: LiveAgent) -> list[dict[str, dict[str, str]]]:
    return [line for line in agent.lines() if line["schema"] == "koordebpf.write/v1"]


@pytest.mark.slow
def test_the_quota_is_held_reported_and_restored(held: HeldNode, tmp_path: Path) -> None:
    before = held.quota_file.read_bytes()
    with LiveAgent(tmp_path, *held.arguments(tmp_path), "--enforce") as agent:
        until(lambda: held.quota_file.read_bytes() != before, lambda: f"a quota, but: {agent.log}")
        change = until(lambda: lines_of(agent), "the audit's line")[0]["change"]
        assert change["path"] == str(held.quota_file)
        assert (change["old"], change["result"]) == (before.decode().strip(), "written")
        assert "best-effort" in change["reason"] or "BE" in change["reason"], change
        agent.said(str(held.quota_file))
        command = [sys.executable, "-m", "koordebpf", "explain", "--writes", "--last", "1000"]
        command += ["--run-dir", str(agent.run_dir)]
        explained = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert f"{held.quota_file.name} {change['old']} → {change['new']}: " in " ".join(explained.split())
        assert agent.metric('koordebpf_file_writes_total{file="cpu.cfs_quota_us",result="written"}') >= 1
        cores = agent.metric("koordebpf_be_cpu_cores")
        assert 0 < cores <= (os.cpu_count() or 1) * 0.65
        assert agent.stop() == 0
    assert held.quota_file.read_bytes() == before
    assert not list(tmp_path.glob("run/*/writes.journal"))


@pytest.mark.slow
def test_a_nodeslo_that_is_deleted_holds_no_pod_any_more(held: HeldNode, tmp_path: Path) -> None:
    before = held.quota_file.read_bytes()
    with LiveAgent(tmp_path, *held.arguments(tmp_path), "--enforce") as agent:
        until(lambda: held.quota_file.read_bytes() != before, lambda: f"a quota, but: {agent.log}")
        manifest = tmp_path / "pods.json"
        objects = json.loads(manifest.read_text())
        assert objects["items"].pop()["kind"] == "NodeSLO"
        (tmp_path / "without.json").write_text(json.dumps(objects))
        (tmp_path / "without.json").rename(manifest)
        until(lambda: held.quota_file.read_bytes() == before, lambda: f"no quota, but: {agent.log}")
        until(lambda: "there is no NodeSLO" in lines_of(agent)[-1]["change"]["reason"], "the audit's line")
        assert agent.stop() == 0


@pytest.mark.slow
def test_a_file_is_written_once_a_second_at_most(held: HeldNode, tmp_path: Path) -> None:
    # GIVEN a latency-sensitive pod that works, too, on a machine whose other load is not the same for two seconds
    (container,) = (path for path in held.node.pod_paths["ls"].iterdir() if path.is_dir())
    other = burner()
    held.hierarchies.join(container, other.pid)
    try:
        with LiveAgent(tmp_path, *held.arguments(tmp_path), "--enforce") as agent:
            agent.said(str(held.quota_file))
            time.sleep(5)
            changes = [line["change"] for line in lines_of(agent)]
    finally:
        other.kill()
        other.wait()
    woken = [change for change in changes if "before its time" in change["reason"]]
    elapsed_ns = changes[-1]["now_ns"] - changes[0]["now_ns"]
    assert len(changes) - len(woken) <= elapsed_ns / (0.9 * NS_PER_S) + 1
    print(f"{len(changes)} writes in {elapsed_ns / NS_PER_S:.1f} s, {len(woken)} of them at a burst")


@pytest.mark.slow
def test_what_a_killed_agent_wrote_is_restored_by_the_command(held: HeldNode, tmp_path: Path) -> None:
    before = held.quota_file.read_bytes()
    command = [sys.executable, "-m", "koordebpf", "restore", "--run-dir", str(tmp_path / "run")]
    with LiveAgent(tmp_path, *held.arguments(tmp_path), "--enforce") as agent:
        until(lambda: held.quota_file.read_bytes() != before, lambda: f"a quota, but: {agent.log}")
        refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        (folder,) = (tmp_path / "run").iterdir()
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr == f"{folder}: an agent acts there. Stop the agent first\n"
        agent.stop(signal.SIGKILL)
    assert held.quota_file.read_bytes() != before
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert str(held.quota_file) in said
    assert held.quota_file.read_bytes() == before


@pytest.mark.slow
def test_a_dry_run_says_what_it_would_write(held: HeldNode, tmp_path: Path) -> None:
    before = held.quota_file.read_bytes()
    with LiveAgent(tmp_path, *held.arguments(tmp_path)) as agent:
        assert "(dry run)" in agent.said(str(held.quota_file))
        assert held.quota_file.read_bytes() == before
        assert lines_of(agent) == []


def leave_for_a_successor(held: HeldNode, folder: Path, keep: str = "5m") -> int:
    """Run an agent that holds the node and ends, and keeps what it wrote; return the process that it leaves."""
    before = held.quota_file.read_bytes()
    config = folder / "config.yaml"
    suppress = {"atExit": "keep", "keep": keep}
    whole = {"apiVersion": "koordebpf.io/v1alpha1", "kind": "AgentConfiguration", "suppress": suppress}
    config.write_text(json.dumps(whole))
    with LiveAgent(folder, "--config", config, *held.arguments(folder), "--enforce") as agent:
        until(lambda: held.quota_file.read_bytes() != before, lambda: f"a quota, but: {agent.log}")
        assert agent.stop() == 0
        found = re.search(r"is kept for a successor; process (\d+) waits ", agent.log)
        assert found, agent.log
    return int(found[1])


def is_over(pid: int) -> bool:
    """Tell whether a process has ended, be it that its parent has not noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.story
def test_a_successor_continues_from_what_was_kept_and_restores_what_was_there_at_first(
    held: HeldNode, tmp_path: Path
) -> None:
    before = held.quota_file.read_bytes()
    waiting = leave_for_a_successor(held, tmp_path)
    kept = held.quota_file.read_bytes()
    assert kept != before
    (left,) = tmp_path.glob("run/*/suppression.json")
    seen = set()
    with LiveAgent(tmp_path, *held.arguments(tmp_path), "--enforce") as agent:

        def is_held_again() -> bool:
            seen.add(held.quota_file.read_bytes())
            return agent.metric("koordebpf_be_cpu_cores") > 0

        until(is_held_again, lambda: f"the successor's own decision, but: {agent.log}")
        until(lambda: is_over(waiting), "no agent waits any more")
        seen.add(held.quota_file.read_bytes())
        assert before not in seen  # no limit was lifted in between
        assert not left.exists()
        assert agent.stop() == 0
    assert held.quota_file.read_bytes() == before


@pytest.mark.slow
def test_where_no_successor_comes_in_time_what_was_kept_is_restored(held: HeldNode, tmp_path: Path) -> None:
    before = held.quota_file.read_bytes()
    waiting = leave_for_a_successor(held, tmp_path, keep="1s")
    until(lambda: is_over(waiting), "an end of the wait")
    assert held.quota_file.read_bytes() == before
    assert left_in(tmp_path) == []


@pytest.mark.slow
def test_who_waits_for_a_successor_and_is_stopped_restores_at_once(held: HeldNode, tmp_path: Path) -> None:
    before = held.quota_file.read_bytes()
    waiting = leave_for_a_successor(held, tmp_path)
    assert held.quota_file.read_bytes() != before
    with LiveAgent(tmp_path, *held.arguments(tmp_path)) as watcher:
        watcher.said(" files as suppression wrote them; ")
        assert watcher.stop() == 0
    assert held.quota_file.read_bytes() != before
    os.kill(waiting, signal.SIGTERM)
    until(lambda: is_over(waiting), "an end of the wait")
    assert held.quota_file.read_bytes() == before


@pytest.mark.slow
def test_what_was_kept_too_long_ago_is_not_continued(held: HeldNode, tmp_path: Path) -> None:
    # GIVEN a quota that a predecessor left WHEN its successor does not suppress THEN the file is restored
    before = held.quota_file.read_bytes()
    leave_for_a_successor(held, tmp_path)
    (left,) = tmp_path.glob("run/*/suppression.json")
    kept = json.loads(left.read_text())
    left.write_text(json.dumps(kept | {"left_s": kept["left_s"] - 3600}))
    gates = ("--feature-gates", "BECPUSuppress=false")
    with LiveAgent(tmp_path, *held.arguments(tmp_path), "--enforce", *gates) as agent:
        until(lambda: held.quota_file.read_bytes() == before, lambda: f"no quota any more, but: {agent.log}")
        assert agent.stop() == 0
    assert held.quota_file.read_bytes() == before


@pytest.mark.slow
def test_cpus_that_kubelet_bound_are_not_for_best_effort_pods(held: HeldNode, tmp_path: Path) -> None:
    # GIVEN a NodeResourceTopology by which all CPUs but one belong to a pod, and an annotation that makes no sense
    _, *others = sorted(os.sched_getaffinity(0))
    bound = {"namespace": "default", "name": "db", "uid": "db", "cpuset": ",".join(map(str, others))}
    annotations = {
        "node.koordinator.sh/pod-cpu-allocs": json.dumps([bound | {"managedByKubelet": True}]),
        "node.koordinator.sh/system-qos-resource": "all",
    }
    topology = {"apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology"}
    topology |= {"metadata": {"name": "node", "annotations": annotations}}
    # THEN one is left, which cannot be shared out: best-effort pods are held by quota
    with LiveAgent(tmp_path, *held.arguments(tmp_path, "cpuset", [topology]), "--enforce") as agent:
        said = agent.said(str(held.quota_file))
        assert "fewer than two CPUs are free to choose from: quota " in said
        assert "what cannot be read binds no CPU: annotation node.koordinator.sh/system-qos-resource" in agent.log
        assert agent.stop() == 0


@pytest.mark.slow
def test_top_shows_who_uses_the_cpus(held: HeldNode, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "koordebpf", "top", "--once", *map(str, held.arguments(tmp_path))]
    page = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = re.search(r"^CPUs: best-effort ([\d.]+) of at most ([\d.]+), node ([\d.]+) of (\d+)$", page, re.MULTILINE)
    assert found, page
    used, limit, of_node, online = map(float, found.groups())
    assert 0 < used <= of_node + 0.1
    assert (limit, online) == (len(os.sched_getaffinity(0)), os.cpu_count())


@pytest.mark.slow
def test_a_frame_of_the_node_shows_what_would_be_held(held: HeldNode, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "koordebpf", "top", "--frame", *map(str, held.arguments(tmp_path))]
    frame = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    command = [sys.executable, "-m", "koordebpf", "plan", "-"]
    page = subprocess.run(command, cwd=ROOT, input=frame, capture_output=True, check=True).stdout.decode()
    assert "BECPUSuppress\n  capacity " in page
    assert "  by cfsQuota: quota " in page
    path = held.quota_file.parent.relative_to(held.hierarchies.mounts["cpu"].mount_point)
    assert re.search(rf"cpu\.cfs_quota_us no limit → \d+ µs: {path}", " ".join(page.split()))
