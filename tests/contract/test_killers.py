"""Each pod by the killer of its level: a plan that is sent to an API server and a container runtime of our own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from msgspec.structs import replace

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.agent.evictions import Evictions
from koordebpf.agent.executors import open_actions, open_executor, open_killers
from koordebpf.agent.pace import Pace
from koordebpf.agent.parts import AgentParts
from koordebpf.attribution.index import CgroupIndex
from koordebpf.configuration.checked import agent_config
from koordebpf.configuration.file import read_config
from koordebpf.configuration.settings import AgentConfig, named_executors
from koordebpf.errors import ConfigError
from koordebpf.runner.context import Measuring
from koordebpf.state.build import view_of_frame
from koordebpf.store.sink import EVENTS, Event
from koordebpf.strategies.katalyst.settings import KillerSettings
from tests.contract.apiserver import Server, gives, until
from tests.contract.cri_runtime import RUNNING, Runtime
from tests.strategies.katalyst.test_katalyst_frames import QUIET, Node, forced, kpod
from tests.support.values.builders import frame

ON: dict[str, Any] = {"featureGates": {"KatalystEviction": True}}


def config_of(killers: dict[str, str], source: str = "api", **more: Any) -> AgentConfig:
    body = {
        "apiVersion": "koordebpf.io/v1alpha1",
        "kind": "AgentConfiguration",
        "source": {"type": source, "nodeName": "n1"},
        "eviction": {"katalyst": {"killers": killers}},
        **ON,
        **more,
    }
    return agent_config(read_config("f.yaml", yaml.safe_dump(body).encode()))


@pytest.mark.parametrize("killer", ["eviction-api-killer", "deletion-api-killer"])
def test_a_killer_that_asks_the_api_server_needs_one(killer: str) -> None:
    with pytest.raises(ConfigError, match=r"eviction\.katalyst\.killers\.shared: .* needs source api or kubelet"):
        config_of({"shared": killer}, "file")
    config_of({"shared": killer}, "file", featureGates={"KatalystEviction": False})
    assert config_of({"shared": "cgroup-killer"}, "file").executor == "cgroup"


def test_an_unknown_killer_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"eviction\.katalyst\.killers\.default: 'pod-killer'"):
        config_of({"default": "pod-killer"})


class Kept:
    """The sink that keeps every event."""

    name = "kept"
    takes = EVENTS

    def __init__(self) -> None:
        self.events: list[Event] = []

    def publish(self, event: Event) -> None:
        self.events.append(event)


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    runtime = Runtime(tmp_path / "cri.sock")
    yield runtime
    runtime.close()


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def opened(config: AgentConfig, index: CgroupIndex, stack: contextlib.ExitStack) -> tuple[AgentParts, OutcomeQueue]:
    outcomes = OutcomeQueue(lambda: None)
    actions = open_actions(config, stack)

    def by_cgroup() -> CgroupExecutor:
        return CgroupExecutor(lambda *_: None, outcomes, enforce=config.enforce)

    executor = open_executor(config, by_cgroup, outcomes, actions, index)
    stack.callback(executor.close)
    killers = open_killers(config, executor, by_cgroup, outcomes, actions, index, stack)
    # What is measured decides nothing here.
    measuring = cast("Measuring", None)
    return AgentParts(
        measuring=measuring, executor=executor, outcomes=outcomes, sinks=Kept(), killers=killers
    ), outcomes


def test_each_pod_of_a_plan_goes_to_the_killer_of_its_level(
    server: Server, kubeconfig: Path, runtime: Runtime, tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    names = {"shared": "deletion-api-killer", "reclaimed": "container-killer"}
    config = replace(config_of(names), enforce=True, kubeconfig=kubeconfig, cri_socket=tmp_path / "cri.sock")
    parts, outcomes = opened(config, CgroupIndex(), stack)
    node = Node(
        [kpod("batch"), kpod("online", "shared_cores"), kpod("pinned", "dedicated_cores")],
        replace(QUIET, killers=KillerSettings(shared="deletion-api-killer", reclaimed="container-killer")),
    )
    decision = node.answer(forced("p", *node.pods, grace_s=7))
    assert decision.carried is not None
    runtime.pods = {"batch": {"main": RUNNING}}
    server.on("/api/v1/namespaces/kat/pods/online", gives(200, {"kind": "Pod"}))
    server.on("/api/v1/namespaces/kat/pods/pinned/eviction", gives(201, {"kind": "Status"}))

    Evictions(config, parts, Pace(floor_ns=1, cap_ns=1, act_ahead_ns=0)).carry_out(
        view_of_frame(frame([])), decision.carried
    )

    found: dict[str, str] = {}

    def all_answered() -> bool:
        found.update({each.uid: f"{each.executor} {each.result.value}" for each in outcomes.drain()})
        return len(found) == 3

    until(all_answered, "three outcomes")
    assert found == {"batch": "cri done", "online": "delete done", "pinned": "api done"}
    assert runtime.stopped == [("batch-main", 7)]
    asked = {request.path: (request.method, json.loads(request.body)) for request in server.requests}
    method, options = asked["/api/v1/namespaces/kat/pods/online"]
    assert (method, options["preconditions"], options["gracePeriodSeconds"]) == ("DELETE", {"uid": "online"}, 7)
    method, eviction = asked["/api/v1/namespaces/kat/pods/pinned/eviction"]
    assert (method, eviction["deleteOptions"]["gracePeriodSeconds"]) == ("POST", 7)


def test_a_dry_run_says_which_killer_it_would_be_and_sends_nothing(
    server: Server, kubeconfig: Path, runtime: Runtime, tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    config = replace(
        config_of({"default": "container-killer", "shared": "deletion-api-killer"}),
        kubeconfig=kubeconfig,
        cri_socket=tmp_path / "cri.sock",
    )
    parts, outcomes = opened(config, CgroupIndex(), stack)
    node = Node([kpod("batch")], replace(QUIET, killers=KillerSettings("container-killer")))
    (victim,) = node.answer(forced("p", "batch")).plan.victims
    assert victim.killer is not None
    assert parts.killers[victim.killer].submit(victim, 1).detail == "would evict kat/batch by cri"
    assert parts.killers["delete"].submit(victim, 1).detail == "would evict kat/batch by delete"
    assert outcomes.drain() == ()
    assert runtime.stopped == []
    assert server.requests == []


def test_without_a_runtime_a_container_killer_is_refused_at_the_start(
    kubeconfig: Path, tmp_path: Path, stack: contextlib.ExitStack
) -> None:
    config = replace(config_of({"reclaimed": "container-killer"}), kubeconfig=kubeconfig, cri_socket=tmp_path / "none")
    with pytest.raises(ConfigError, match="must be the socket of a container runtime"):
        opened(config, CgroupIndex(), stack)


def test_the_agents_own_executor_is_opened_once(kubeconfig: Path, stack: contextlib.ExitStack) -> None:
    config = replace(config_of({"default": "eviction-api-killer"}), kubeconfig=kubeconfig)
    parts, _ = opened(config, CgroupIndex(), stack)
    assert parts.killers == {"api": parts.executor}
    assert named_executors(config) == (("eviction.katalyst.killers.default", "eviction-api-killer", "api"),)


def test_an_agent_that_kills_by_cgroup_may_have_evictions_for_katalysts_plugins(
    kubeconfig: Path, stack: contextlib.ExitStack
) -> None:
    config = replace(config_of({"default": "eviction-api-killer"}, executor={"type": "cgroup"}), kubeconfig=kubeconfig)
    parts, _ = opened(config, CgroupIndex(), stack)
    assert (parts.executor.name, parts.killers["api"].name) == ("cgroup", "api")
