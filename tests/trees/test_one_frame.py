"""One moment of a node as a frame: `koordebpf top --frame`, of signals that are played."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordebpf.configuration.settings import AgentConfig
from koordebpf.kube.plugins.given_source import GivenPods
from koordebpf.tools.top.one_frame import one_frame
from tests.support.patience import patience
from tests.support.played_signals import StalledNode
from tests.support.plugin_pods import plugin_pod


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StalledNode]:
    for module in ("one_frame", "looks"):
        monkeypatch.setattr(f"koordebpf.tools.top.{module}.find_controllers", dict)
    (tmp_path / "cgroup").mkdir()
    with contextlib.closing(StalledNode(tmp_path / "cgroup", 2)) as made:
        yield made


def test_it_is_the_second_of_two_looks_with_the_agents_own_gates_and_nothing_remembered_on_a_calm_node(
    node: StalledNode, tmp_path: Path
) -> None:
    config, begin_ns = AgentConfig(executor="cgroup"), time.monotonic_ns()
    found = one_frame(node.watch, 0.2, config, tmp_path)
    assert found is not None and found.problems == ()
    assert 0.2e9 <= found.frame.measured.now_ns - begin_ns < 9e9
    assert (found.frame.executor, dict(found.frame.featureGates)) == ("cgroup", dict(config.feature_gates))
    assert found.frame.states == {}
    assert "katalystEviction" in found.frame.measured.parts  # what each strategy decides from, though its gate is off


class Pods(GivenPods):
    """Pods that are known when it is started, with what else happens then."""

    def __init__(self, started: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._started = started

    def start(self, wake: Callable[[], None]) -> None:
        self.replace([plugin_pod("web")])
        self._started()


def test_it_waits_no_longer_than_until_the_pods_are_known(node: StalledNode, tmp_path: Path) -> None:
    node.watch.source, begin = Pods(), time.monotonic()
    found = one_frame(node.watch, 0.01, AgentConfig(), tmp_path)
    assert found is not None and [each.uid for each in found.frame.pods] == ["web"]
    assert time.monotonic() - begin < patience(10)


def test_a_signal_ends_it_without_a_frame(node: StalledNode, tmp_path: Path) -> None:
    node.watch.source = Pods(lambda: signal.raise_signal(signal.SIGTERM))
    assert one_frame(node.watch, 60, AgentConfig(), tmp_path) is None
