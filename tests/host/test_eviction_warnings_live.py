"""A real hog is warned of before it is evicted, and webhooks are called around its eviction, in nothing's way."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.contract.apiserver import until
from tests.contract.test_eviction_webhooks import Server
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


def configured(folder: Path, webhooks: Sequence[dict[str, Any]]) -> Path:
    path = folder / "config.yaml"
    document = {
        "apiVersion": "koordebpf.io/v1alpha1",
        "kind": "AgentConfiguration",
        "evictionWarning": {"ahead": f"{AHEAD_S}s", "calm": "5s"},
        "evictionHooks": {"webhooks": list(webhooks)},
    }
    path.write_text(json.dumps(document))
    return path


def calls(server: Server) -> list[dict[str, Any]]:
    return [json.loads(body) for path, _, body in server.taken if path == "/"]


@pytest.fixture
def notes() -> Iterator[Server]:
    with closing(Server()) as server:
        yield server


# Connections wait in its queue, and nothing accepts them.
@pytest.fixture
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def explained(agent: LiveAgent) -> str:
    (path,) = agent.run_dir.rglob("acting.sock")
    command = [sys.executable, "-m", "koordebpf", "explain", "--url", str(path), "--last", "1"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return " ".join(printed.split())


def calls_metric(agent: LiveAgent, hook: str, outcome: str) -> float:
    return agent.metric(f'koordebpf_eviction_hook_calls_total{{hook="{hook}",outcome="{outcome}"}}')


def test_a_hog_is_warned_of_and_webhooks_are_called_around_its_eviction(
    node: NodeCgroup, notes: Server, silent: str, tmp_path: Path
) -> None:
    (container,) = node.add_pod("hog", priority=5000)
    manifest = node.write_manifest(tmp_path / "pods.json")
    webhooks = [
        {"name": "notes", "url": notes.url},
        {"name": "hangs", "url": silent, "timeoutSeconds": 1},
        {"name": "refuses", "url": f"{notes.url}/500", "when": ["before"]},
        {"name": "missing", "urlFile": "/nonexistent/url", "when": ["after"]},
    ]
    arguments = ["--config", configured(tmp_path, webhooks), "--pods", manifest, "--node-cgroup", node.path]
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        agent.becomes_ready()
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
        until(lambda: len(calls(notes)) == 2, "two calls")
        before, after = calls(notes)
        assert (before["when"], before["record"]["outcomes"]) == ("before", [])
        assert (after["when"], after["record"]) == ("after", line)
        assert before["victims"] == after["victims"]
        assert [each["result"] for each in line["outcomes"]] == ["done"]
        print(f"decided to sent {line['latencies']['decided_to_sent_ns'] / 1e6:.2f} ms, with a hook that hangs")
        # AND the others are counted by what became of them
        until(lambda: calls_metric(agent, "hangs", "timed_out") == 2, "the hook that hangs is cut")
        until(lambda: calls_metric(agent, "missing", "failed") == 1, "the missing one is counted")
        assert calls_metric(agent, "refuses", "failed") == 1
        assert calls_metric(agent, "notes", "done") == 2
        # AND explain says of the decision how each of them ended, and how long it took
        said = explained(agent)
        for words in (
            r"Hook notes, before: done in [0-9.]+ (ms|s)",
            r"Hook notes, after: done in [0-9.]+ (ms|s)",
            r"Hook hangs, before: timed out after [0-9.]+ s: no answer within 1 s",
            r"Hook missing, after: failed after ",
        ):
            assert re.search(words, said), said
        assert agent.metric('koordebpf_eviction_hook_seconds_total{hook="hangs"}') >= 2
        _, verbose = agent.get("/readyz?verbose")
        assert "[!]eviction-hooks hangs: no answer within 1 s" in verbose
        until(lambda: agent.metric('koordebpf_eviction_warnings_total{event="came_true"}') == 1, "it came true")
        assert agent.metric("koordebpf_sink_errors_total") == 0
        assert agent.stop() == 0


def test_a_dry_run_warns_of_what_it_would_do(node: NodeCgroup, notes: Server, tmp_path: Path) -> None:
    (container,) = node.add_pod("hog", priority=5000)
    manifest = node.write_manifest(tmp_path / "pods.json")
    webhooks = [
        {"name": "notes", "url": notes.url, "when": ["after"], "dryRun": True},
        {"name": "acts", "url": f"{notes.url}/201"},
    ]
    arguments = ["--config", configured(tmp_path, webhooks), "--pods", manifest, "--node-cgroup", node.path]
    with LiveAgent(tmp_path, *arguments) as agent:
        agent.becomes_ready()
        hog = Hog(container, NODE_MIB * 17 // 20, rate_mib_s=RATE_MIB_S, hold_s=60)
        try:
            agent.said(" would evict in ")
            agent.has_plan()
            until(lambda: len(calls(notes)) >= 1, "a call")
        finally:
            hog.stop()
        assert calls(notes)[0]["dry_run"] is True
        agent.said("the threshold is reached")
        assert agent.stop() == 0
    assert {path for path, *_ in notes.taken} == {"/"}
