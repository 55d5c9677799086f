"""Core scheduling cookies of containers, where the kernel has them and a core has two threads."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.errors import SupportError
from koordebpf.kernel.proc.tasks import cookie_of
from koordebpf.policy.reconcile import TaskSetting
from koordebpf.strategies.hooks.tasks import CoreCookies
from koordebpf.strategies.hooks.values import COOKIES
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.rigs.cgroups import CpuNode, cpu_node
from tests.host.rigs.live_node import or_skipped


def has_cookies() -> str | None:
    try:
        cookie_of(1)
    except SupportError as error:
        return str(error)
    return None


def setting(cgroups: CpuNode, path: str, group: str) -> TaskSetting:
    return TaskSetting(cgroups.path(path), "team/web", path, group, "CoreSched", "label core-sched-group-id")


@pytest.fixture
def cgroups() -> Iterator[CpuNode]:
    with or_skipped(cpu_node) as made:
        made.make("pod")
        yield made


@pytest.fixture
def tasks(cgroups: CpuNode) -> dict[str, int]:
    """A process in each of three containers."""
    found = {}
    for name in ("pod/a", "pod/b", "pod/c"):
        cgroups.make(name)
        found[name] = cgroups.populate(name)
    return found


class Rig:
    def __init__(self, cgroups: CpuNode, folder: Path, *, enforce: bool = True) -> None:
        self.changes: list[FileChange] = []
        mount_point = cgroups.mounts["cpu"].mount_point
        self.record = folder / COOKIES
        self.cookies = CoreCookies(mount_point, self.record if enforce else None, self.changes.append)


def test_where_there_is_no_core_scheduling_it_is_said_once(
    cgroups: CpuNode, tasks: dict[str, int], tmp_path: Path
) -> None:
    if has_cookies() is None:
        pytest.skip(f"{OTHER_MACHINE}it has core scheduling")
    rig = Rig(cgroups, tmp_path)
    for now_ns in range(3):
        rig.cookies.apply([setting(cgroups, "pod/a", "g")], now_ns)
    rig.cookies.restore(3)
    assert [change.result for change in rig.changes] == [WriteResult.UNSUPPORTED]
    assert "core scheduling" in rig.changes[0].detail
    assert not rig.record.exists()


class TestCookies:
    @pytest.fixture(autouse=True)
    def _needs_core_scheduling(self) -> None:
        if why := has_cookies():
            pytest.skip(f"{OTHER_MACHINE}it has no core scheduling: {why}")

    def test_a_group_shares_one_and_groups_have_their_own(
        self, cgroups: CpuNode, tasks: dict[str, int], tmp_path: Path
    ) -> None:
        rig = Rig(cgroups, tmp_path)
        groups = {"pod/a": "g", "pod/b": "g", "pod/c": "h"}
        wanted = [setting(cgroups, path, group) for path, group in groups.items()]
        rig.cookies.apply(wanted, 1)
        a, b, c = (cookie_of(tasks[path]) for path in groups)
        assert a == b != c
        assert a
        assert c
        assert cookie_of(0) == 0  # the agent itself has none
        # WHEN nothing changes
        before = len(rig.changes)
        rig.cookies.apply(wanted, 2)
        assert len(rig.changes) == before
        rig.cookies.restore(3)
        assert [cookie_of(pid) for pid in tasks.values()] == [0, 0, 0]
        assert not rig.record.exists()

    def test_a_new_process_joins_the_group_of_its_container(
        self, cgroups: CpuNode, tasks: dict[str, int], tmp_path: Path
    ) -> None:
        rig = Rig(cgroups, tmp_path)
        wanted = [setting(cgroups, "pod/a", "g")]
        rig.cookies.apply(wanted, 1)
        joined = cgroups.populate("pod/a")
        assert cookie_of(joined) == 0
        rig.cookies.apply(wanted, 2)
        assert cookie_of(joined) == cookie_of(tasks["pod/a"])
        rig.cookies.restore(3)

    def test_an_agent_after_one_that_was_killed_takes_them_away(
        self, cgroups: CpuNode, tasks: dict[str, int], tmp_path: Path
    ) -> None:
        Rig(cgroups, tmp_path).cookies.apply([setting(cgroups, "pod/a", "g")], 1)
        assert cookie_of(tasks["pod/a"])
        Rig(cgroups, tmp_path).cookies.restore(2)
        assert cookie_of(tasks["pod/a"]) == 0

    def test_a_container_that_is_in_no_group_any_more_has_none(
        self, cgroups: CpuNode, tasks: dict[str, int], tmp_path: Path
    ) -> None:
        rig = Rig(cgroups, tmp_path)
        rig.cookies.apply([setting(cgroups, "pod/a", "g"), setting(cgroups, "pod/b", "g")], 1)
        rig.cookies.apply([setting(cgroups, "pod/a", "g"), setting(cgroups, "pod/b", "")], 2)
        assert cookie_of(tasks["pod/a"])
        assert cookie_of(tasks["pod/b"]) == 0
        rig.cookies.restore(3)

    def test_a_dry_run_gives_none(self, cgroups: CpuNode, tasks: dict[str, int], tmp_path: Path) -> None:
        rig = Rig(cgroups, tmp_path, enforce=False)
        rig.cookies.apply([setting(cgroups, "pod/a", "g")], 1)
        assert [change.result for change in rig.changes] == [WriteResult.DRY_RUN]
        assert cookie_of(tasks["pod/a"]) == 0

    def test_a_process_that_ends_is_no_problem(self, cgroups: CpuNode, tasks: dict[str, int], tmp_path: Path) -> None:
        rig = Rig(cgroups, tmp_path)
        wanted = [setting(cgroups, "pod/a", "g"), setting(cgroups, "pod/b", "g")]
        rig.cookies.apply(wanted, 1)
        os.kill(tasks["pod/a"], signal.SIGKILL)
        procs = cgroups.mounts["cpu"].mount_point / cgroups.path("pod/a") / "cgroup.procs"
        until(lambda: not procs.read_text(), "its end")
        rig.cookies.apply(wanted, 2)
        rig.cookies.restore(3)
        assert cookie_of(tasks["pod/b"]) == 0
