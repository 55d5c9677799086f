"""Where an agent that kills by itself is refused, and which containers it knows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from koordebpf.agent.lifecycle import kill_support
from koordebpf.agent.lifecycle.kill_support import check_kill_support, known_containers, pod_targets
from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.scope import NodeScope
from koordebpf.configuration.checked import agent_config
from koordebpf.errors import SupportError
from koordebpf.events.records import CgroupRmdir
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, MemoryHierarchy
from koordebpf.kernel.host.machine import is_initial, is_of_a_pod
from koordebpf.kube.cache.objects import ContainerStatus, ObjectMeta, Pod, PodSpec, PodStatus
from koordebpf.kube.clients.cri import RunningContainer

FOLDER = Path("/sys/fs/cgroup/memory")


def scope(version: int = 1, kind: str = "machine") -> NodeScope:
    return NodeScope(kind, MemoryHierarchy(version, FOLDER, 1), FOLDER / "node", 7)


@pytest.fixture
def below(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand for a container without hostPID."""
    monkeypatch.setattr(kill_support, "is_initial", lambda: False)
    monkeypatch.setattr(kill_support, "is_of_a_pod", lambda: True)


API = {"source": "api", "enforce": True, "node_name": "n1"}


def killers(name: str, *, is_on: bool = True) -> dict:
    strategies = {"katalystEviction": {"killers": {"reclaimed": name}}}
    return {"feature_gates": {"KatalystEviction": is_on}, "strategies": strategies}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"source": "file", "enforce": True}, "executor.type cgroup"),
        ({**API, "executor": "cgroup"}, "executor.type cgroup"),
        ({**API, "kill_after_s": 20.0}, "executor.killAfter"),
        ({**API, "emergency": {"action": "kill-be"}}, "emergency.action kill-be"),
        ({**API, **killers("cgroup-killer")}, "eviction.katalyst.killers.reclaimed cgroup-killer"),
        ({**API, "eviction": {"ladder": {"rungs": frozenset({kill_support.Rung.KILL})}}}, "the rung kill"),
    ],
)
def test_who_kills_on_v1_needs_the_machines_pid_namespace(below: None, given: dict, named: str) -> None:
    with pytest.raises(SupportError, match="hostPID: true, as deploy/components/host-processes does") as refused:
        check_kill_support(agent_config(given), scope())
    assert str(refused.value).startswith(named)
    check_kill_support(agent_config(given), scope(version=2))
    check_kill_support(agent_config({**given, "enforce": False}), scope())


def test_who_asks_the_api_server_or_the_runtime_needs_none(below: None) -> None:
    check_kill_support(agent_config(API), scope())
    check_kill_support(agent_config({**API, "executor": "cri"}), scope())
    check_kill_support(agent_config({**API, **killers("container-killer")}), scope())
    check_kill_support(agent_config({**API, **killers("cgroup-killer", is_on=False)}), scope())


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


POD, APP, SIDECAR, PAUSE = "0cc7e2d4-1f9b-4f6e-9f0a-3a4d5e6f7a8b", "a" * 64, "b" * 64, "0" * 64


def walked(**names: str) -> CgroupIndex:
    """Return the index of a pod whose cgroup holds a sandbox and two containers, with the statuses name → id."""
    index = CgroupIndex()
    below = [(20 + n, 10, f"kubepods/pod{POD}/{each}") for n, each in enumerate((PAUSE, APP, SIDECAR))]
    index.replace_all([(1, 0, ""), (2, 1, "kubepods"), (10, 2, f"kubepods/pod{POD}"), *below])
    statuses = [ContainerStatus(name, f"containerd://{each}") for name, each in names.items()]
    meta = ObjectMeta(name="p", namespace="be", uid=POD)
    index.set_pods([Pod(meta, spec=PodSpec(nodeName="n1"), status=PodStatus(containerStatuses=statuses))])
    return index


def test_containers_are_known_by_their_status_and_their_cgroup() -> None:
    index = walked(app=APP, sidecar=SIDECAR)
    assert set(known_containers(index, POD)) == {RunningContainer(APP, "app"), RunningContainer(SIDECAR, "sidecar")}
    index.died(CgroupRmdir(0, 22, 0, 1, "", False))
    assert known_containers(index, POD) == (RunningContainer(APP, "app"),)


def test_a_status_that_names_another_pods_container_leads_to_none() -> None:
    elsewhere = "c" * 64
    index = walked(app=APP, sidecar=SIDECAR, foreign=elsewhere)
    index.replace_all(
        [(1, 0, ""), (2, 1, "kubepods"), (10, 2, f"kubepods/pod{POD}"), (20, 10, f"kubepods/pod{POD}/{PAUSE}"),
         (21, 10, f"kubepods/pod{POD}/{APP}"), (30, 2, "kubepods/podother"), (31, 30, f"kubepods/podother/{elsewhere}")]
    )  # fmt: skip
    assert known_containers(index, POD) == (RunningContainer(APP, "app"),)


def test_no_container_is_known_while_one_of_them_is_not() -> None:
    assert known_containers(walked(app=APP), POD) == ()  # the other one was just started, or again
    assert known_containers(walked(), POD) == ()
    assert known_containers(walked(app=APP, sidecar=SIDECAR), "of no pod") == ()


class TestTargets:
    @pytest.fixture
    def mounts(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, ControllerMount]:
        made: dict[str, ControllerMount] = {}
        monkeypatch.setattr(kill_support, "find_controllers", lambda: made)
        return made

    def target(self, index: CgroupIndex, cgroup_id: int = 10, *, version: int = 1, lifts: bool = True) -> Any:
        watch: Any = SimpleNamespace(index=index)
        return pod_targets(scope(version), watch, lifts=lifts)(cgroup_id, POD)

    @pytest.mark.parametrize(
        ("mount", "version", "expected_id"),
        [(FOLDER.parent / "cpu", 1, None), (FOLDER.parent / "unified", 2, None), (FOLDER, 2, 10)],
        ids=["v1", "hybrid", "v2"],
    )
    def test_a_pods_cpu_limits_are_where_its_cpu_controller_is(
        self, mounts: dict[str, ControllerMount], mount: Path, version: Any, expected_id: int | None
    ) -> None:
        mounts["cpu"] = ControllerMount(version, mount)
        found = self.target(walked())
        assert found.memory_path == FOLDER / f"kubepods/pod{POD}"
        place = found.cpu
        assert (place.path, place.version, place.cgroup_id) == (mount / f"kubepods/pod{POD}", version, expected_id)
        assert found.pod_names == place.pod_names != ()

    def test_they_are_lifted_where_that_is_wanted_and_there_are_any(self, mounts: dict[str, ControllerMount]) -> None:
        assert self.target(walked()).cpu is None
        mounts["cpu"] = ControllerMount(2, FOLDER)
        assert self.target(walked(), lifts=False).cpu is None

    def test_a_cgroup_that_is_gone_is_no_target(self, mounts: dict[str, ControllerMount]) -> None:
        assert self.target(walked(), 99) is None
