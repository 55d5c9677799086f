"""The example of a plugin in Python is found, registered and driven by the agent's own registry and caller."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.strategies.katalyst.values import TopAsk, TopPods
from tests.support.outside_plugins import OutsidePlugins
from tests.support.patience import patience
from tests.support.plugin_pods import plugin_pod

EXAMPLES = Path(__file__).parents[2] / "deploy/examples/plugins"
NAME = "example-disk-plugin"
PODS = {"low": plugin_pod("low", priority=-5), "high": plugin_pod("high", priority=9), "none": plugin_pod("none")}


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[OutsidePlugins]:
    made = OutsidePlugins(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize(("free_percent", "is_met"), [(101, True), (0, False)])
def test_the_python_plugin_is_driven_to_its_pod(
    outside: OutsidePlugins, tmp_path: Path, free_percent: int, is_met: bool
) -> None:
    command = [sys.executable, EXAMPLES / "python/plugin.py", tmp_path, "/", str(free_percent)]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True, cwd="/") as plugin:
        try:
            outside.has(NAME)
            assert plugin.stdout is not None
            assert plugin.stdout.readline() == "registered\n"
            answer = outside.thresholds(PODS)[NAME]
            assert answer.problem is None
            assert (answer.threshold is not None) is is_met
            if answer.threshold is not None:
                assert (answer.threshold.met, answer.threshold.scope) == ("hard", "disk")
                assert answer.threshold.value == 101
                found = outside.top(TopAsk(NAME, "disk", 1, tuple(PODS)), PODS)
                assert (found.top, found.problem) == (TopPods(("low",)), None)
        finally:
            plugin.terminate()
            assert plugin.wait(patience(20)) == 0
    outside.has()
    assert not list(tmp_path.iterdir())
