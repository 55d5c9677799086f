"""`koordebpf pod explain` on a tree of cgroup files: whose each value is, and what a hook wants instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.journal import JOURNAL_PATH, Journal
from koordebpf.act.writer.places import Original
from koordebpf.errors import ConfigError, SupportError
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.report.http.local_socket import LocalSocket
from koordebpf.report.http.routes import DecisionServer
from koordebpf.report.pod_settings import PodSetting, PodSettings
from koordebpf.tools.pod_explain import ExplainedCgroup, ExplainedValue, explain_pod, known_originals

UID = "12345678-9abc-def0-1234-56789abcdef0"
POD = f"kubepods/besteffort/pod{UID}"
CONTAINER = f"{POD}/{'c' * 64}"
FILES = {
    f"{POD}/cpu.shares": "2",
    f"{POD}/memory.min": "0",
    f"{CONTAINER}/cpu.shares": "2",
    f"{CONTAINER}/cpuset.cpus": "0-1",
    f"{CONTAINER}/cpu.cfs_quota_us": "-1",
    f"{CONTAINER}/blkio.throttle.read_bps_device": "8:0 7",
    f"{CONTAINER}/nested/cpu.shares": "2",
}


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cgroup"
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n")
    mounts = {name: ControllerMount(1, root) for name in ("cpu", "cpuset", "memory", "blkio")}
    monkeypatch.setattr("koordebpf.tools.pod_explain.find_controllers", lambda: mounts)
    return root


@contextlib.contextmanager
def agent(run_dir: Path, *pods: PodSettings) -> Iterator[None]:
    server = DecisionServer(LocalSocket(run_dir / "machine", acts=True), tuple, tuple, pages={"/pods": lambda _: pods})
    with contextlib.closing(server):
        yield


def of(cgroup: ExplainedCgroup) -> dict[str, ExplainedValue]:
    return {each.file: each for each in cgroup.values}


def setting(file: str, value: int | str | list[int] | None, path: str = CONTAINER) -> PodSetting:
    return PodSetting(path, file, "BatchResource", "spec", value)


def test_without_an_agent_a_uid_is_found_by_its_directory(mount: Path, tmp_path: Path) -> None:
    found = explain_pod(UID, tmp_path / "run")
    assert (found.uid, found.name, found.problems) == (UID, None, ())
    assert [(each.path, each.container) for each in found.cgroups] == [(POD, None), (CONTAINER, "c" * 64)]
    container = of(found.cgroups[1])
    assert container["cpu.shares"] == ExplainedValue("cpu.shares", "2")
    assert sorted(container) == ["cpu.cfs_quota_us", "cpu.shares", "cpuset.cpus"]  # no table that no hook wants
    with pytest.raises(ConfigError, match="must be a UID of a pod here: no agent runs that knows names"):
        explain_pod("web", tmp_path / "run")


def test_a_running_agent_knows_names_and_one_name_is_one_pod(mount: Path, tmp_path: Path) -> None:
    pods = [PodSettings(UID, "team", "web", POD, problems=("odd",)), PodSettings("u2", "other", "web")]
    with agent(tmp_path, *pods):
        for wanted in ("team/web", UID):
            found = explain_pod(wanted, tmp_path)
            assert (found.uid, found.name, found.problems) == (UID, "team/web", ("odd",))
        with pytest.raises(ConfigError, match="must name one pod; there are team/web, other/web"):
            explain_pod("web", tmp_path)
        with pytest.raises(ConfigError, match="must be a pod of this node"):
            explain_pod("none", tmp_path)
        with pytest.raises(ConfigError, match="must be a pod of this node"):
            explain_pod("other/web", tmp_path)  # it has no directory


@pytest.mark.parametrize(
    ("file", "value", "differs"),
    [
        ("cpu.shares", 2, None),
        ("cpu.shares", 3, "BatchResource wants 3"),
        ("cpu.cfs_quota_us", None, None),
        ("cpu.cfs_quota_us", 5000, "BatchResource wants 5000"),
        ("cpuset.cpus", [0, 1], None),
        ("cpuset.cpus", [1], "BatchResource wants 1"),
        ("cpuset.cpus", [], "BatchResource wants none of its own"),
        ("blkio.throttle.read_bps_device", "8:0 7", None),
        ("blkio.throttle.read_bps_device", "8:0 9", "BatchResource wants 8:0 9"),
    ],
)
def test_what_a_hook_wants_and_the_file_does_not_hold_is_said(
    file: str, value: int | str | list[int] | None, differs: str | None, mount: Path, tmp_path: Path
) -> None:
    with agent(tmp_path, PodSettings(UID, "team", "web", POD, (setting(file, value),))):
        found = of(explain_pod(UID, tmp_path).cgroups[1])
    assert (found[file].source, found[file].differs) == ("spec", differs)


def test_what_a_hook_wants_of_processes_is_beside_the_files(mount: Path, tmp_path: Path) -> None:
    with agent(tmp_path, PodSettings(UID, "team", "web", POD, (setting("oom_score_adj", -5),))):
        pod, container = explain_pod(UID, tmp_path).cgroups
    assert "oom_score_adj" not in of(pod)
    expected = ExplainedValue("oom_score_adj", "", ("BatchResource",), None, "spec", "wants -5")
    assert container.values[-1] == expected


def test_what_the_agent_wrote_has_its_owner_and_what_was_before(mount: Path, tmp_path: Path) -> None:
    inode = (mount / CONTAINER / "cpu.shares").stat().st_ino
    with contextlib.closing(Journal(tmp_path / "machine" / JOURNAL_PATH.name)) as journal:
        # The pod's is of an older directory of the same name.
        wrote = Original("1024\n", inode, ("x",))
        journal.record({(path, CgroupFile.CPU_SHARES): wrote for path in (CONTAINER, POD)})
    pod, container = map(of, explain_pod(UID, tmp_path).cgroups)
    assert container["cpu.shares"] == ExplainedValue("cpu.shares", "2", ("x",), "1024")
    assert pod["cpu.shares"] == ExplainedValue("cpu.shares", "2")
    (tmp_path / "a-file").write_text("")
    assert set(known_originals(None, tmp_path)) == set(known_originals(tmp_path / "machine", tmp_path))
    assert known_originals(tmp_path / "other", tmp_path) == {}


def test_without_a_controller_for_cpu_or_memory_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounts = {"pids": ControllerMount(1, tmp_path)}
    monkeypatch.setattr("koordebpf.tools.pod_explain.find_controllers", lambda: mounts)
    with pytest.raises(SupportError, match="no cpu and no memory controller"):
        explain_pod(UID, tmp_path)


def test_without_a_controller_for_cpu_that_of_memory_has_the_pods(
    mount: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = {"memory": ControllerMount(1, mount)}
    monkeypatch.setattr("koordebpf.tools.pod_explain.find_controllers", lambda: mounts)
    assert [each.path for each in explain_pod(UID, tmp_path).cgroups] == [POD, CONTAINER]


def test_on_v1_a_pod_need_not_be_in_every_hierarchy(
    mount: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu").mkdir()
    mounts = {"cpu": ControllerMount(1, tmp_path / "cpu"), "memory": ControllerMount(1, mount)}
    monkeypatch.setattr("koordebpf.tools.pod_explain.find_controllers", lambda: mounts)
    with agent(tmp_path, PodSettings(UID, "team", "web", POD)):
        found = explain_pod(UID, tmp_path)
    assert [each.path for each in found.cgroups] == [POD, CONTAINER]
