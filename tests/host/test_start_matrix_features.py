"""What a start finds where features keep files and sockets, and what may stand there in their place.

The rows of test_start_matrix.py for an agent that has all of them on: it starts without the feature, says so, and
evicts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.live_cluster import LiveCluster, kubeconfig
from tests.host.rigs.held_node import HeldNode
from tests.host.rigs.start import FAULTS, READ, TAKE_NOTHING, Start, folder_that_takes_nothing, refused

pytestmark = pytest.mark.slow
HEAD = {"apiVersion": "koordebpf.io/v1alpha1", "kind": "AgentConfiguration"}


class Features:
    """All that an agent of source api keeps or listens at beside its journal, and what it says of each that it lacks.

    Args:
        start: its node.
        folder: for its configuration and sockets.
        cluster: tells its pods.
    """

    def __init__(self, start: Start, folder: Path, cluster: LiveCluster) -> None:
        self.start, self._folder, self._cluster = start, folder, cluster
        state = folder / "state"
        state.mkdir()
        self.pods = start.node / "pods.json"
        self.models = start.node / "prediction"
        self.week = state / "shadow" / f"{start.held.node.path.name}.json"
        self.nri = state / "nri.sock"
        self.proxy = state / "koordebpf.sock"
        self.proxy_config = state / "hooks" / "koordebpf.json"
        self._settings: dict[str, Any] = {
            "featureGates": {"PeakPrediction": True, "BatchResource": True},
            "emergency": {"action": "kill-be"},
            "shadow": {"folder": str(state), "configurations": [{"name": "enforced"}]},
            "nri": {"enabled": True, "backoff": "20ms", "socket": str(self.nri)},
            "runtimeProxy": {"enabled": True, "socket": str(self.proxy), "configFile": str(self.proxy_config)},
            "source": {"type": "api"},
            "executor": {"type": "cgroup"},
        }

    @property
    def places(self) -> tuple[Path, ...]:
        """Each file, folder and socket."""
        return self.pods, self.models, self.week, self.nri, self.proxy, self.proxy_config

    def begin(self) -> LiveAgent:
        config = self._folder / "config.yaml"
        config.write_text(json.dumps(HEAD | self._settings))
        given = ["--config", config, "--node-name", "n1", "--node-cgroup", self.start.held.node.path, "--enforce"]
        given += ["--kubeconfig", kubeconfig(self._folder / "kubeconfig", self._cluster.server.url)]
        self.start.agent = LiveAgent(self._folder, *given)
        return self.start.agent


@pytest.fixture
def features(start: Start, held: HeldNode, tmp_path: Path) -> Iterator[Features]:
    with closing(LiveCluster(held.node)) as cluster:
        yield Features(start, tmp_path, cluster)


def test_all_features_leave_what_has_a_row(features: Features) -> None:
    agent = features.begin()
    agent.becomes_ready()
    features.start.evicts()
    until(lambda: all(place.exists() for place in features.places if place != features.nri), "all that they leave")
    assert list(features.start.shown()) == ["NRI"]  # no runtime is there
    features.start.ends_well()


@pytest.mark.parametrize("fault", FAULTS)
def test_what_stands_in_the_place_of_a_feature_costs_that_feature(features: Features, fault: str) -> None:
    for place in features.places:
        place.parent.mkdir(parents=True, exist_ok=True)
        FAULTS[fault](place)
    agent = features.begin()
    agent.becomes_ready()
    features.start.evicts()
    found = {"NRI", "runtime proxy"}
    if fault in READ:
        agent.said(f"{features.pods}: ")
    if fault != "garbage":
        agent.said(f"set aside: {features.week}: ")
    if fault != "folder":
        found.add(str(features.models))  # a file is no folder
    until(lambda: found <= features.start.shown().keys(), lambda: f"{found}, but {features.start.shown()}")
    features.start.ends_well()


@pytest.mark.parametrize("why", TAKE_NOTHING)
def test_a_state_folder_that_takes_nothing_costs_what_is_kept_there(features: Features, why: str) -> None:
    with folder_that_takes_nothing(features.week.parent.parent, why):
        agent = features.begin()
        agent.becomes_ready()
        features.start.evicts()
        found = {"NRI"}
        if why != "foreign":  # which keeps a user from it, not root
            agent.said(f"{features.week}: ")
            found |= {"runtime proxy", str(features.week)}
        until(lambda: found == features.start.shown().keys(), lambda: f"{found}, but {features.start.shown()}")
        features.start.ends_well()


@pytest.mark.parametrize("fault", FAULTS)
def test_what_stands_in_the_place_of_katalysts_folders_costs_them(start: Start, tmp_path: Path, fault: str) -> None:
    notices, sockets = tmp_path / "notices", tmp_path / "sockets"
    FAULTS[fault](notices)
    FAULTS[fault](sockets)
    katalyst = {"notices": str(notices), "sockets": str(sockets)}
    config = {"featureGates": {"KatalystEviction": True}, "eviction": {"katalyst": katalyst}}
    (tmp_path / "config.yaml").write_text(json.dumps(HEAD | config))
    agent = start.begin("--config", tmp_path / "config.yaml")
    agent.becomes_ready()
    start.evicts()
    if fault in ("fifo", "foreign", "garbage"):
        agent.said("no notice of a soft eviction: ")
    if fault != "folder":
        said = "no plugin: must be a directory" + (": it is a link that leads nowhere" if fault == "link" else "")
        until(lambda: start.shown().get(f"socket {sockets}") == said, lambda: f"{said}, but {start.shown()}")
    start.ends_well()


@pytest.mark.parametrize("fault", ["fifo", "link", "folder"])
def test_where_it_cannot_stand_by_it_does_not_start(start: Start, fault: str) -> None:
    start.begin().becomes_ready()
    FAULTS[fault](start.node / "next.lock")
    first, start.agent = start.agent, None
    try:
        refused(start.begin("--stand-by"), "must be", str(start.node))
    finally:
        assert first is not None
        start.agent = first
    start.ends_well()
