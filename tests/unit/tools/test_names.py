"""Names of pods from the agent that runs on the node."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from koordebpf.cli import _group
from koordebpf.errors import ConfigError
from koordebpf.kube.sources.file import FileSource
from koordebpf.report.http.local_socket import LocalSocket
from koordebpf.report.http.routes import DecisionServer
from koordebpf.report.known import KnownObjects, KnownPage
from koordebpf.report.top import TopPage, top_of_round
from koordebpf.store.sink import RoundEnded
from koordebpf.tools.names import AgentSource, named_source
from koordebpf.units import NS_PER_S
from tests.support.values.rounds import round_ended


class Agent:
    """What an agent answers of its last round, which the test sets."""

    def __init__(self, run_dir: Path) -> None:
        self.last: RoundEnded | None = round_ended(0)
        pages = {"/known": KnownPage(lambda: self.last).answer, "/top": lambda _: top_of_round(self.last)}
        local = LocalSocket(run_dir / "machine", acts=True)
        self._server: DecisionServer | None = DecisionServer(local, tuple, tuple, pages=pages)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    with contextlib.closing(made):
        yield made


def test_its_pods_and_what_is_in_force(agent: Agent, tmp_path: Path) -> None:
    source = AgentSource(tmp_path)
    source.start(lambda: None)
    state = source.state()
    assert agent.last is not None
    assert state.pods == agent.last.tick.frame.pods
    assert (state.version, state.node) == (1, agent.last.tick.frame.node)
    assert msgspec.json.decode(state.nodeslo or b"null") == msgspec.json.decode(bytes(agent.last.tick.frame.nodeSLO))  # type: ignore[arg-type]


def test_what_did_not_change_is_not_sent_again(agent: Agent) -> None:
    page = KnownPage(lambda: agent.last)
    first = page.answer("")
    agent.last = round_ended(1)  # the same objects
    assert page.answer(f"version={first.version}") == KnownObjects(first.version)
    agent.last = round_ended(2, pods=6)
    second = page.answer(f"version={first.version}")
    assert second.version != first.version
    assert second.pods is not None and len(second.pods) == 7
    assert KnownPage(lambda: agent.last).answer(f"version={second.version}").pods  # of another run


def test_it_is_asked_again_in_time_and_keeps_what_it_knew(agent: Agent, tmp_path: Path) -> None:
    source = AgentSource(tmp_path)
    source.start(lambda: None)
    now_ns = time.monotonic_ns()
    agent.last = round_ended(1, pods=6)
    source.refresh(now_ns)
    assert source.state().version == 1  # it is not two seconds later
    source.refresh(now_ns + 3_000_000_000)
    assert (source.state().version, len(source.state().pods)) == (2, 7)
    agent.close()
    source.refresh(now_ns + 6_000_000_000)
    (problem,) = source.state().problems
    assert "the agent does not answer" in problem
    assert len(source.state().pods) == 7


def test_a_new_cgroup_has_it_asked_within_half_a_second(agent: Agent, tmp_path: Path) -> None:
    source = AgentSource(tmp_path)
    source.start(lambda: None)
    agent.last = round_ended(1, pods=6)
    before_ns = time.monotonic_ns()
    source.nudge()
    source.refresh(before_ns + NS_PER_S // 2 - 1)
    assert source.state().version == 1
    source.refresh(time.monotonic_ns() + NS_PER_S // 2)
    assert source.state().version == 2


def test_where_no_agent_answers_it_is_asked_again_after_10_s_and_the_problem_is_news_once(
    agent: Agent, tmp_path: Path
) -> None:
    source = AgentSource(tmp_path)
    source.start(lambda: None)
    agent.close()
    now_ns = time.monotonic_ns() + 3 * NS_PER_S
    for wait_s in (0, 20):
        source.refresh(now_ns + wait_s * NS_PER_S)
        assert (source.state().version, len(source.state().problems)) == (2, 1)
    with contextlib.closing(Agent(tmp_path)):
        source.refresh(now_ns + 30 * NS_PER_S - 1)
        assert source.state().problems
        source.refresh(now_ns + 30 * NS_PER_S)
        assert (source.state().problems, len(source.state().pods)) == ((), 5)


def test_which_source_is_taken(agent: Agent, tmp_path: Path) -> None:
    pods = (tmp_path / "pods.yaml",)
    assert isinstance(named_source((), None, tmp_path, {}), AgentSource)
    assert isinstance(named_source(pods, None, tmp_path, {}), FileSource)
    assert isinstance(named_source((), "agent", tmp_path / "none", {}), AgentSource)
    assert named_source((), None, tmp_path / "none", {}) is None
    with pytest.raises(ConfigError, match="needs --pods"):
        named_source((), "file", tmp_path, {})
    with pytest.raises(ConfigError, match="needs this node's name"):
        named_source((), "api", tmp_path, {"node_name": None, "kubeconfig": None})
    with pytest.raises(ConfigError, match="is one running"):
        AgentSource(tmp_path / "none").start(lambda: None)


def test_before_its_first_round(agent: Agent, tmp_path: Path) -> None:
    agent.last = None
    source = AgentSource(tmp_path)
    source.start(lambda: None)
    assert source.state().pods == ()


def test_ask_prints_it(agent: Agent, tmp_path: Path) -> None:
    def asked(page: str) -> str:
        done = CliRunner().invoke(_group, ["ask", page, "--run-dir", str(tmp_path)], catch_exceptions=False)
        assert done.exit_code == 0
        return done.output

    assert msgspec.json.decode(asked("top"), type=TopPage).rows[0].name == "spark/job-0"
    assert len(json.loads(asked("known"))["pods"]) == 5
    assert json.loads(asked("/decisions")) == []
    with pytest.raises(ConfigError, match="404"):
        CliRunner().invoke(_group, ["ask", "nope", "--run-dir", str(tmp_path)], catch_exceptions=False)


def test_a_name_without_names_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(_group, ["trace", "--pod", "default/web", "--run-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert "--pod default/web: a name needs an agent that runs here" in " ".join(done.output.split())
