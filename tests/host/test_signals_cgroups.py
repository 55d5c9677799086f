"""First and last tasks of cgroups, moves between them, new names: 23 provoked, 23 seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koordebpf.events.layout import decode_totals, kinds_mask
from koordebpf.events.records import CgroupPopulated, CgroupRename, Record, TaskMigration
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, cgroup_id
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.conftest import MakeSignals, make_child
from tests.host.provoke import N, records


def sleeper() -> tuple[int, int]:
    """Return a child's pid and the fd that ends it when it is closed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    return pid, writing


def test_exactly_23_first_and_last_tasks_and_moves(memory_cgroup: Path, make_signals: MakeSignals) -> None:
    pods = [make_child(memory_cgroup, f"pod{number}") for number in range(N)]
    rest = make_child(memory_cgroup, "rest")
    signals = make_signals()
    signals.send_kinds(kinds_mask(["populated", "migration"]))
    before = decode_totals(signals.totals())
    pid, end = sleeper()
    (rest / "cgroup.procs").write_text(str(pid))
    for pod in pods:
        (pod / "cgroup.procs").write_text(str(pid))
    (rest / "cgroup.procs").write_text(str(pid))
    os.close(end)
    os.waitpid(pid, 0)

    heard: list[Record] = []
    own = cgroup_id(memory_cgroup)

    # Who is waited for has not left its cgroup everywhere: since 6.19 it does when it is switched away from at last.
    def is_empty() -> bool:
        heard.extend(records(signals))
        return any(isinstance(r, CgroupPopulated) and r.cgroup_id == own and not r.populated for r in heard)

    until(is_empty, "the last task is gone")
    after = decode_totals(signals.totals())
    ids = [cgroup_id(pod) for pod in pods]
    moves = [r for r in heard if isinstance(r, TaskMigration) and r.cgroup_id in ids]
    assert [(r.cgroup_id, r.pid) for r in moves] == [(each, pid) for each in ids]
    assert all(r.threadgroup and r.comm for r in moves)
    populated = [r for r in heard if isinstance(r, CgroupPopulated) and r.cgroup_id in ids]
    assert [r.cgroup_id for r in populated if r.populated] == ids
    assert [r.cgroup_id for r in populated if not r.populated] == ids
    assert len({r.level for r in populated}) == 1
    # The parent stays populated by the task all the while: it got its first and lost its last.
    parents = [r for r in heard if isinstance(r, CgroupPopulated) and r.cgroup_id == own]
    assert [r.populated for r in parents] == [True, False]
    assert parents[0].level == populated[0].level - 1
    assert after.migrations - before.migrations >= N + 2
    assert after.populated - before.populated >= 2 * N + 2


def test_a_thread_that_moves_alone(memory_cgroup: Path, make_signals: MakeSignals) -> None:
    tasks = memory_cgroup / "tasks"
    if not tasks.exists():
        pytest.skip(f"{OTHER_MACHINE}only cgroup v1 moves a thread of a memory cgroup by itself")
    signals = make_signals()
    signals.send_kinds(kinds_mask(["populated", "migration"]))
    pid, end = sleeper()
    tasks.write_text(str(pid))
    os.close(end)
    os.waitpid(pid, 0)
    own = cgroup_id(memory_cgroup)
    moves = [r for r in records(signals) if isinstance(r, TaskMigration) and r.cgroup_id == own]
    assert [(r.pid, r.threadgroup) for r in moves] == [(pid, False)]


def test_exactly_23_renames(memory_cgroup: Path, make_signals: MakeSignals, hierarchy: MemoryHierarchy) -> None:
    if hierarchy.version == 2:
        pytest.skip(f"{OTHER_MACHINE}cgroup v2 cannot rename a cgroup")
    pod = make_child(memory_cgroup, "pod")
    signals = make_signals()
    signals.send_kinds(kinds_mask(["cgroup_rename"]))
    names = [f"pod-{number}" for number in range(N)]
    for name in names:
        pod = pod.rename(pod.with_name(name))
    renames = [r for r in records(signals) if isinstance(r, CgroupRename) and r.cgroup_id == cgroup_id(pod)]
    assert [r.name for r in renames] == names
    assert {r.parent_id for r in renames} == {cgroup_id(memory_cgroup)}
