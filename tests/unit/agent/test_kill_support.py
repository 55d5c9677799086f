"""Where an agent that kills by itself is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.agent import kill_support
from koordebpf.agent.config import agent_config
from koordebpf.agent.kill_support import check_kill_support
from koordebpf.agent.scope import NodeScope
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroupfs import MemoryHierarchy
from koordebpf.kernel.pid_namespace import is_initial, is_of_a_pod

FOLDER = Path("/sys/fs/cgroup/memory")


def scope(version: int = 1, kind: str = "machine") -> NodeScope:
    return NodeScope(kind, MemoryHierarchy(version, FOLDER, 1), FOLDER / "node", 7)


@pytest.fixture
def below(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand for a container without hostPID."""
    monkeypatch.setattr(kill_support, "is_initial", lambda: False)
    monkeypatch.setattr(kill_support, "is_of_a_pod", lambda: True)


API = {"source": "api", "enforce": True, "node_name": "n1"}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"source": "file", "enforce": True}, "executor.type cgroup"),
        ({**API, "executor": "cgroup"}, "executor.type cgroup"),
        ({**API, "kill_after_s": 20.0}, "executor.killAfter"),
        ({**API, "emergency": {"action": "kill-be"}}, "emergency.action kill-be"),
        ({**API, "eviction": {"ladder": {"rungs": frozenset({kill_support.Rung.KILL})}}}, "the rung kill"),
    ],
)
def test_whoever_kills_on_v1_needs_the_machines_pid_namespace(below: None, given: dict, named: str) -> None:
    with pytest.raises(SupportError, match="hostPID: true, as deploy/components/host-processes does") as refused:
        check_kill_support(agent_config(given), scope())
    assert str(refused.value).startswith(named)
    check_kill_support(agent_config(given), scope(version=2))
    check_kill_support(agent_config({**given, "enforce": False}), scope())


def test_whoever_asks_the_api_server_or_the_runtime_needs_none(below: None) -> None:
    check_kill_support(agent_config(API), scope())
    check_kill_support(agent_config({**API, "executor": "cri"}), scope())


def test_a_nested_node_has_a_namespace_of_its_own(below: None, monkeypatch: pytest.MonkeyPatch) -> None:
    config = agent_config({"source": "file", "enforce": True})
    with pytest.raises(SupportError):
        check_kill_support(config, scope(kind="cgroup"))
    monkeypatch.setattr(kill_support, "is_of_a_pod", lambda: False)
    check_kill_support(config, scope(kind="cgroup"))
    with pytest.raises(SupportError):
        check_kill_support(config, scope())


def test_which_namespace_this_is(tmp_path: Path) -> None:
    assert is_initial(tmp_path) and is_of_a_pod(tmp_path)  # no procfs: the first is not refused, the other no excuse
    (tmp_path / "1").mkdir()
    (tmp_path / "1/cgroup").write_text("8:memory:/docker/0123/init.scope\n")
    assert not is_of_a_pod(tmp_path)
    (tmp_path / "1/cgroup").write_text("8:memory:/kubepods/besteffort/pod1/0123\n")
    assert is_of_a_pod(tmp_path)
