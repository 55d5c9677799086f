"""The flight recorder of a live agent: on by default, bounded, read after a SIGKILL, and on another machine."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.store.frames import read_ticks
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.values import Pace
from tests.contract.apiserver import until
from tests.host.live_agent import ROOT, LiveAgent
from tests.host.rigs.live_node import write_config
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

ENFORCE = ("--enforce", "--executor", "cgroup", "--evictions-per-minute", "1000")


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 512 * MIB) as node:
        yield node


def koordebpf(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "koordebpf", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=patience(60))


@pytest.mark.story
def test_what_led_to_an_eviction_is_there_and_is_decided_again(node: NodeCgroup, tmp_path: Path) -> None:
    (hog,) = node.add_pod("hog")
    node.add_pod("calm", be=False)
    manifest = node.write_manifest(tmp_path / "pods.json", 70, 60)
    with LiveAgent(tmp_path, "--pods", manifest, "--node-cgroup", node.path, *ENFORCE).started() as agent:
        until(lambda: agent.metric("koordebpf_recorder_rounds_total") >= 2, "rounds before it")
        eater = Hog(hog, 400, hold_s=60)
        try:
            agent.has_plan()
            assert agent.metric("koordebpf_recorder_rounds_total") > 2
            assert agent.metric("koordebpf_recorder_lost_rounds_total") == 0
            assert agent.metric("koordebpf_recorder_failing") == 0
            until(lambda: agent.metric("koordebpf_released_bytes_total") > 0, "its memory is back")
        finally:
            eater.stop()
        folder = agent.recorded / "recorder" / node.path.name
        assert agent.stop() == 0
        recording = Recording(folder)
        assert recording.problems == []
        paces = {shard.header.pace: shard for _, shard in recording.shards}
        assert set(paces) == {Pace.DECISIONS, Pace.SECONDS, Pace.DAY}
        first = recording.decisions[0]
        assert first > 1  # what was before the decision is there too
        around = [paces[Pace.DECISIONS].round(head) for head in paces[Pace.DECISIONS].rounds]
        assert around[0] == recording.round(0)
        assert len(list(recording.samples())) > 20  # those at tick rate, on the way to the threshold
        assert {"PlanDecided", "MemoryReleased"} <= {each.kind for each in recording.events()}
        # The rounds are those that --frames has as well.
        lines = {each.tick.frame.measured.now_ns: each for each in read_ticks(agent.frames)}
        for each in recording.rounds():
            line = lines[each.tick.frame.measured.now_ns]
            assert line.tick == each.tick and bytes(line.decision) == each.decision
        replayed = koordebpf("replay", folder)
        assert replayed.returncode == 0, replayed.stderr
        assert "evicting default/hog" in replayed.stdout and replayed.stdout.endswith("each is decided as it was\n")
        audit = agent.plans()[0]
        explained = json.loads(koordebpf("explain", "--json", folder).stdout.splitlines()[0])
        for same in ("decided_ns", "sentence", "features", "dry_run"):
            assert explained[same] == audit[same], same
        assert [each["result"] for each in explained["outcomes"]] == [each["result"] for each in audit["outcomes"]]
        assert "evicting default/hog" in koordebpf("plan", folder, "--decision", 1).stdout
        quiet = koordebpf("replay", folder, "--set", "memoryEvictThresholdPercent=99").stdout
        assert re.search(r"; [1-9]\d* decided otherwise under these settings", quiet)


@pytest.mark.slow
def test_after_a_sigkill_all_but_the_round_on_its_way_is_there(node: NodeCgroup, tmp_path: Path) -> None:
    node.add_pod("calm")
    manifest = node.write_manifest(tmp_path / "pods.json", 70, 60)
    runs = 3
    for number in range(runs):
        kept = tmp_path / "kept"
        arguments = ("--pods", manifest, "--node-cgroup", node.path, "--recorder-folder", kept)
        with LiveAgent(tmp_path, *arguments).started() as agent:
            time.sleep(1.3 + number / 3)
            agent.process.send_signal(signal.SIGKILL)
            agent.process.wait()
            published = list(read_ticks(agent.frames))
        recording = Recording(kept / "recorder" / node.path.name)
        last = max(each.tick.frame.measured.now_ns for each in recording.rounds())
        missing = [each for each in published if each.tick.frame.measured.now_ns > last]
        assert len(missing) <= 1
        assert len({shard.header.run for _, shard in recording.shards}) == number + 1


@pytest.mark.slow
def test_a_second_agent_of_the_node_waits_for_the_folder(node: NodeCgroup, tmp_path: Path) -> None:
    node.add_pod("calm")
    manifest = node.write_manifest(tmp_path / "pods.json", 70, 60)
    arguments = ("--pods", manifest, "--node-cgroup", node.path, "--recorder-folder", tmp_path / "kept")
    with LiveAgent(tmp_path, *arguments).started() as first:
        until(lambda: first.metric("koordebpf_recorder_rounds_total"), "a round")
        with LiveAgent(tmp_path, *arguments).started() as second:
            second.said("rounds are not recorded: another agent records this node")
            assert second.metric("koordebpf_recorder_failing") == 1
            first.stop()
            second.said("rounds are recorded again")
            assert second.metric("koordebpf_recorder_failing") == 0


def test_where_the_folder_cannot_be_written_memory_is_used(node: NodeCgroup, tmp_path: Path) -> None:
    node.add_pod("calm")
    manifest = node.write_manifest(tmp_path / "pods.json", 70, 60)
    (tmp_path / "file").touch()
    arguments = ("--pods", manifest, "--node-cgroup", node.path, "--recorder-folder", tmp_path / "file" / "below")
    with LiveAgent(tmp_path, *arguments).started() as agent:
        agent.said("rounds are recorded in memory alone")
        until(lambda: agent.metric("koordebpf_recorder_rounds_total"), "a round")
        assert len(Recording(agent.run_dir / "recorder" / node.path.name)) > 0
        assert agent.stop() == 0


@pytest.mark.slow
def test_record_needs_no_agent_and_writes_one_file(node: NodeCgroup, tmp_path: Path) -> None:
    node.add_pod("calm")
    manifest = node.write_manifest(tmp_path / "pods.json", 70, 60)
    output = tmp_path / "node.rounds"
    settings = write_config(tmp_path, node={"runDir": str(tmp_path / "run")})
    arguments = ("--config", settings, "--seconds", 2.5, "--pods", manifest, "--node-cgroup", node.path)
    done = koordebpf("record", output, *arguments)
    assert done.returncode == 0, done.stderr
    assert re.search(r"[234] rounds, ", done.stderr)
    assert koordebpf("replay", output).stdout.endswith("each is decided as it was\n")
    output.write_bytes(b"of an earlier one" * 10_000)
    assert koordebpf("record", output, *arguments).returncode == 0  # replaced whole
    assert koordebpf("replay", output).stdout.endswith("each is decided as it was\n")
    redacted = tmp_path / "share.rounds"
    assert koordebpf("record", redacted, "--redact", *arguments).returncode == 0
    assert [path.name for path in tmp_path.glob("share*")] == ["share.rounds"]
    found = Recording(redacted).round(0)
    assert found is not None and found.tick.frame.pods
    assert "calm" not in str(found.tick.frame) and "default" not in str(found.tick.frame.pods)
    assert redacted.read_bytes()[:4] == b"KRR1"
