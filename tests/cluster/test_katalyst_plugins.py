"""Katalyst's own code on the other side of the wire: its endpoint calls our plugin, its skeleton serves one to us."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from koordebpf.strategies.katalyst.values import TopAsk, TopPods
from tests.cluster.binaries import say_line
from tests.cluster.katalyst_programs import katalyst_program
from tests.contract.apiserver import until
from tests.support.outside_plugins import OutsidePlugins
from tests.support.patience import patience
from tests.support.plugin_pods import QOS, plugin_pod

ROOT = Path(__file__).parents[2]
NAME = "koordebpf-memory-pressure-plugin"
SHORT = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
eviction:
  katalyst:
    inner:
      systemMemory:
        freeMinimum: {}
"""


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A directory with a short path, as sockets need it."""
    made = Path(tempfile.mkdtemp(prefix="plugins-"))
    yield made
    shutil.rmtree(made)


def kubernetes_pod(uid: str, level: str, priority: int) -> dict[str, Any]:
    """A Pod with fields that nothing here reads."""
    return {
        "metadata": {"name": uid, "namespace": "team", "uid": uid, "annotations": {QOS: level}, "generateName": "x-"},
        "spec": {"priority": priority, "containers": [{"name": "c", "image": "i", "stdin": True}], "hostPID": True},
        "status": {"phase": "Running", "hostIP": "10.0.0.1"},
    }


PODS = [kubernetes_pod("online", "shared_cores", 9), kubernetes_pod("low", "reclaimed_cores", 1)]
PODS += [kubernetes_pod("high", "reclaimed_cores", 5)]


class KatalystAgent:
    """What a Katalyst agent does with a plugin, by its own code."""

    def __init__(self, folder: Path, sockets: Path) -> None:
        pods = folder / "agent-pods.json"
        pods.write_text(json.dumps(PODS))
        command = [str(katalyst_program("manager", say_line)), str(sockets), str(pods)]
        self._log = (folder / "agent-log").open("wb")
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log, text=True)

    def round(self, line: str = "round") -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self._log.close()


def serve(folder: Path, sockets: Path, minimum: str, *more: object) -> subprocess.Popen[bytes]:
    if os.geteuid() != 0:
        pytest.skip("needs root: it loads programs into the kernel")
    config = folder / "config.yaml"
    config.write_text(SHORT.format(minimum))
    command = [sys.executable, "-m", "koordebpf", "plugin", "serve", "--directory", sockets, "--config", config, *more]
    with (folder / "plugin-log").open("wb") as log:
        return subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=log, stderr=log)


@pytest.mark.slow
def test_katalysts_endpoint_drives_plugin_serve_to_a_pod(tmp_path: Path, sockets: Path) -> None:
    token = tmp_path / "token"
    token.write_text("Basic YTpi\n")
    # GIVEN a machine that is short by its settings
    plugin = serve(tmp_path, sockets, "900Ti", "--token-file", token)
    try:
        with KatalystAgent(tmp_path, sockets) as agent:
            first = agent.round()
            assert (first["Error"], first["Plugin"], first["Token"], first["Evict"]) == ("", NAME, "Basic YTpi", 0)
            threshold = first["Threshold"]
            assert (threshold["met_type"], threshold["eviction_scope"]) == (2, "SystemMemory")
            assert threshold["threshold_value"] == 900 << 40
            assert 0 < threshold["observed_value"] < threshold["threshold_value"]
            assert threshold["condition"]["condition_name"] == "MemoryPressure"
            # THEN the reclaimed pod of the lowest priority is chosen, and every byte of it comes back
            assert (first["Top"], first["Grace"], first["Unchanged"]) == (["low"], 1, True)
            # AND none while that one leaves
            assert agent.round()["Top"] is None
            # WHEN the plugin ends, the kubelet's plugin manager sees its socket leave
            plugin.terminate()
            assert plugin.wait(patience(20)) == 0
            assert agent.round("left")["Left"]
            assert "the agent has registered" in (tmp_path / "plugin-log").read_text()
    finally:
        plugin.kill()
        plugin.wait()


@pytest.mark.slow
def test_katalysts_endpoint_is_answered_that_no_threshold_is_met(tmp_path: Path, sockets: Path) -> None:
    plugin = serve(tmp_path, sockets, "1Mi")
    try:
        with KatalystAgent(tmp_path, sockets) as agent:
            found = agent.round()
            assert (found["Error"], found["Top"]) == ("", None)
            assert "met_type" not in found["Threshold"]  # NOT_MET, 0
    finally:
        plugin.kill()
        plugin.wait()


@pytest.mark.slow
def test_katalysts_endpoint_drives_the_python_example(tmp_path: Path, sockets: Path) -> None:
    example = ROOT / "deploy/examples/plugins/python/plugin.py"
    plugin = subprocess.Popen([sys.executable, example, sockets, "/", "101"], stdout=subprocess.DEVNULL)
    try:
        with KatalystAgent(tmp_path, sockets) as agent:
            found = agent.round()
            assert (found["Error"], found["Plugin"]) == ("", "example-disk-plugin")
            assert (found["Top"], found["Unchanged"]) == (["low"], True)
    finally:
        plugin.terminate()
        plugin.wait()


@pytest.mark.slow
def test_a_plugin_on_katalysts_skeleton_is_registered_driven_and_leaves(tmp_path: Path, sockets: Path) -> None:
    program = katalyst_program("example", say_line)
    pods = {"low": plugin_pod("low", priority=-5), "high": plugin_pod("high", priority=9)}
    outside = OutsidePlugins(sockets)
    # GIVEN the socket of one that was killed
    command = [str(program), "-directory", str(sockets), "-watch", "/", "-free-percent", "101"]
    with (tmp_path / "log").open("wb") as log:
        killed = subprocess.Popen(command, stderr=log)
        try:
            outside.has("example-disk-plugin")
        finally:
            killed.kill()
            killed.wait()
        assert "UNAVAILABLE" in (outside.thresholds(pods)["example-disk-plugin"].problem or "")
        plugin = subprocess.Popen(command, stderr=log)
    try:
        # WHEN it returns, THEN it is registered again and chooses
        def problem() -> str | None:
            outside.poll()
            found = outside.thresholds(pods).get("example-disk-plugin")
            return "it is not registered" if found is None else found.problem

        until(lambda: problem() is None, lambda: f"it answers, but {problem()}: {(tmp_path / 'log').read_text()}")
        threshold = outside.thresholds(pods)["example-disk-plugin"].threshold
        assert threshold is not None
        assert (threshold.met, threshold.scope, threshold.value) == ("hard", "disk", 101)
        top = outside.top(TopAsk("example-disk-plugin", "disk", 1, tuple(pods)), pods)
        assert (top.top, top.problem) == (TopPods(("low",)), None)
        plugin.terminate()
        plugin.wait(patience(20))
        outside.has()
    finally:
        plugin.kill()
        plugin.wait()
        outside.close()
