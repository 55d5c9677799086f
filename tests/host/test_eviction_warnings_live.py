"""A real hog is warned of before it is evicted, and commands are called around its eviction, in nothing's way."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.contract.apiserver import until
from tests.host.live_agent import ROOT, LiveAgent
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

NODE_MIB = 400
RATE_MIB_S = 20
AHEAD_S = 8
EVICTED = 'koordebpf_evictions_total{executor="cgroup",reason="BEMemoryEvict",result="done"}'

pytestmark = pytest.mark.slow


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, NODE_MIB * MIB) as node:
        yield node


def script(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def configured(folder: Path, commands: Sequence[dict[str, Any]]) -> Path:
    path = folder / "config.yaml"
    document = {
        "apiVersion": "koordebpf.io/v1alpha1",
        "kind": "AgentConfiguration",
        "evictionWarning": {"ahead": f"{AHEAD_S}s", "calm": "5s"},
        "evictionHooks": {"commands": list(commands)},
    }
    path.write_text(json.dumps(document))
    return path


def calls(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted(folder.glob("call-*"))]


def explained(agent: LiveAgent) -> str:
    (socket,) = agent.run_dir.rglob("acting.sock")
    command = [sys.executable, "-m", "koordebpf", "explain", "--url", str(socket), "--last", "1"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return " ".join(printed.split())


def calls_metric(agent: LiveAgent, hook: str, outcome: str) -> float:
    return agent.metric(f'koordebpf_eviction_hook_calls_total{{hook="{hook}",outcome="{outcome}"}}')


def test_a_hog_is_warned_of_and_commands_are_called_around_its_eviction(node: NodeCgroup, tmp_path: Path) -> None:
    (container,) = node.add_pod("hog", priority=5000)
    manifest = node.write_manifest(tmp_path / "pods.json")
    notes = script(tmp_path, "note", f"cat > {tmp_path}/.new && mv {tmp_path}/.new {tmp_path}/call-$(date +%s%N)")
    commands = [
        {"name": "notes", "command": [notes]},
        {"name": "hangs", "command": [script(tmp_path, "hang", "sleep 100 & sleep 100")], "timeoutSeconds": 1},
        {"name": "floods", "command": ["/usr/bin/yes"], "when": ["before"]},
        {"name": "missing", "command": ["/nonexistent/hook"], "when": ["after"]},
    ]
    arguments = ["--config", configured(tmp_path, commands), "--pods", manifest, "--node-cgroup", node.path]
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        agent.becomes_ready()
        agent.said("hook missing: /nonexistent/hook: No such file or directory")
        hog = Hog(container, NODE_MIB * 9 // 10, rate_mib_s=RATE_MIB_S, hold_s=60)
        try:
            warning = agent.said(" evicts in ")
            warned_s = time.monotonic()
            assert agent.metric(EVICTED) == 0
            line = agent.has_plan()
            took_s = time.monotonic() - warned_s
            assert hog.process.wait(patience(10)) != 0
        finally:
            hog.stop()
        forecast_s = float(re.search(r"evicts in ([0-9.]+) s", warning)[1])  # type: ignore[index]
        print(f"warned {took_s:.1f} s before, forecast {forecast_s:.1f} s; {warning}")
        assert "; first " in warning
        assert took_s > AHEAD_S / 4
        # THEN the hook that takes notes has the plan before the eviction and the audit's line after it
        until(lambda: len(calls(tmp_path)) == 2, "two calls")
        before, after = calls(tmp_path)
        assert (before["when"], before["record"]["outcomes"]) == ("before", [])
        assert (after["when"], after["record"]) == ("after", line)
        assert before["victims"] == after["victims"]
        assert [each["result"] for each in line["outcomes"]] == ["done"]
        print(f"decided to sent {line['latencies']['decided_to_sent_ns'] / 1e6:.2f} ms, with a hook that hangs")
        # AND the others are counted by what became of them
        until(lambda: calls_metric(agent, "hangs", "timed_out") == 2, "the hook that hangs is ended")
        until(lambda: calls_metric(agent, "missing", "failed") == 1, "the missing one is counted")
        assert calls_metric(agent, "floods", "failed") == 1
        assert calls_metric(agent, "notes", "done") == 2
        # AND explain says of the decision how each of them ended, and how long it took
        said = explained(agent)
        for words in (
            r"Hook notes, before: done in [0-9.]+ (ms|s)",
            r"Hook notes, after: done in [0-9.]+ (ms|s)",
            r"Hook hangs, before: timed out after [0-9.]+ s: not ended after 1 s",
            r"Hook missing, after: failed after ",
        ):
            assert re.search(words, said), said
        assert agent.metric('koordebpf_eviction_hook_seconds_total{hook="hangs"}') >= 2
        _, verbose = agent.get("/readyz?verbose")
        assert "[!]eviction-hooks hangs: not ended after 1 s" in verbose
        until(lambda: agent.metric('koordebpf_eviction_warnings_total{event="came_true"}') == 1, "it came true")
        assert agent.metric("koordebpf_sink_errors_total") == 0
        assert agent.stop() == 0
    assert [
        path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path / "hang").encode() in read(path)
    ] == []


def test_a_dry_run_warns_of_what_it_would_do(node: NodeCgroup, tmp_path: Path) -> None:
    (container,) = node.add_pod("hog", priority=5000)
    manifest = node.write_manifest(tmp_path / "pods.json")
    notes = script(tmp_path, "note", f"cat > {tmp_path}/.new && mv {tmp_path}/.new {tmp_path}/call-$(date +%s%N)")
    refused = script(tmp_path, "refused", f"touch {tmp_path}/called")
    commands = [
        {"name": "notes", "command": [notes], "when": ["after"], "dryRun": True},
        {"name": "acts", "command": [refused]},
    ]
    arguments = ["--config", configured(tmp_path, commands), "--pods", manifest, "--node-cgroup", node.path]
    with LiveAgent(tmp_path, *arguments) as agent:
        agent.becomes_ready()
        hog = Hog(container, NODE_MIB * 17 // 20, rate_mib_s=RATE_MIB_S, hold_s=60)
        try:
            agent.said(" would evict in ")
            agent.has_plan()
            until(lambda: len(calls(tmp_path)) >= 1, "a call")
        finally:
            hog.stop()
        assert calls(tmp_path)[0]["dry_run"] is True
        agent.said("the threshold is reached")
        assert agent.stop() == 0
    assert not (tmp_path / "called").exists()


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
