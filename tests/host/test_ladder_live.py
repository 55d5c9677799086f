"""Freeze and reclaim on real cgroup v2 directories."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.ladder import LadderExecutor, PodDirectories
from koordebpf.act.reclaimer import Reclaimer, ReclaimJob
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.errors import CgroupGone, SupportError
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, MemoryHierarchy, cgroup_id
from koordebpf.kernel.cgroup.reclaim import reclaim
from koordebpf.policy.ladder_settings import Rung
from koordebpf.policy.plan import RungAction, RungPlan
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.support.nodes import MIB

BURN = "while True: pass"


def cpu_ticks(pid: int) -> int:
    """Return the CPU time a process has had: utime and stime of proc_pid_stat(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.fixture
def unified() -> Iterator[Path]:
    """Give a cgroup v2 directory, also below a hierarchy without controllers: freezing needs none."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    found = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"]
    if not found:
        pytest.skip(f"{OTHER_MACHINE}it has no cgroup v2")
    path = found[0] / f"podkoord-ladder-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"{OTHER_MACHINE}its cgroup v2 cannot be written: {error.strerror}")
    yield path

    def is_removed() -> bool:
        try:
            path.rmdir()
        except OSError as error:
            assert error.errno == errno.EBUSY
            return False
        return True

    until(is_removed, "an empty cgroup")


def test_a_frozen_process_gets_no_cpu_and_runs_on_when_it_is_undone(unified: Path, tmp_path: Path) -> None:
    mount = unified.parent
    places = Places({"memory": ControllerMount(2, mount)})
    changes: list[FileChange] = []
    process = subprocess.Popen([sys.executable, "-S", "-c", BURN])
    try:
        (unified / "cgroup.procs").write_text(str(process.pid))
        with Journal(tmp_path / "journal") as journal:
            writer = CgroupWriter(places, journal, enforce=True, audit=changes.append)
            ids = {cgroup_id(unified): unified.name}
            executor = LadderExecutor(
                PodDirectories(MemoryHierarchy(2, mount, 0), ids.get), places, writer, None, changes.append
            )
            plan = RungPlan(Rung.FREEZE, True, "freezes it", (RungAction(unified.name[3:], "default", "pod", *ids),))
            assert executor.begin(plan, time.monotonic_ns())
            until(lambda: "frozen 1" in (unified / "cgroup.events").read_text(), "a freeze")
            ticks = cpu_ticks(process.pid)
            time.sleep(0.3)
            assert cpu_ticks(process.pid) == ticks
            executor.undo(Rung.FREEZE, time.monotonic_ns())
            until(lambda: cpu_ticks(process.pid) > ticks, "CPU time")
            assert [(change.old, change.new, change.result) for change in changes] == [
                ("0", "1", WriteResult.WRITTEN),
                ("1", "0", WriteResult.WRITTEN),
            ]
    finally:
        process.kill()
        process.wait()


def test_page_cache_is_reclaimed_and_what_became_of_it_is_reported(memory_cgroup: Path, tmp_path: Path) -> None:
    if not (memory_cgroup / "memory.reclaim").exists():
        pytest.skip(f"{OTHER_MACHINE}it has no memory.reclaim")
    file = tmp_path / "cached"
    script = f"echo $$ > {memory_cgroup}/cgroup.procs; head -c {64 * MIB} /dev/zero > {file}; sync {file}; cat {file}"
    subprocess.run(["sh", "-c", script], check=True, stdout=subprocess.DEVNULL)
    before = int((memory_cgroup / "memory.current").read_text())
    done: list[FileChange] = []
    reclaimer = Reclaimer(lambda: None)
    try:
        for job in (32 * MIB, 1 << 40):
            reclaimer.submit(ReclaimJob(memory_cgroup, cgroup_id(memory_cgroup), job, "a test", 0))
        until(lambda: done.extend(reclaimer.drain()) or len(done) == 2, "two ends")
    finally:
        reclaimer.close()
    assert [change.result for change in done] == [WriteResult.WRITTEN, WriteResult.WRITTEN]
    assert done[0].detail == ""
    assert "the kernel found no more" in done[1].detail
    assert int((memory_cgroup / "memory.current").read_text()) <= before - 32 * MIB


def test_reclaim_says_what_is_missing_and_who_is_gone(memory_cgroup: Path) -> None:
    with pytest.raises(CgroupGone):
        reclaim(memory_cgroup, cgroup_id(memory_cgroup) + 1, MIB, lambda: False)
    with pytest.raises(CgroupGone):
        reclaim(memory_cgroup / "removed", 1, MIB, lambda: False)
    if (memory_cgroup / "memory.reclaim").exists():
        assert reclaim(memory_cgroup, cgroup_id(memory_cgroup), MIB, lambda: True) == 0
    else:
        with pytest.raises(SupportError, match=r"memory\.reclaim"):
            reclaim(memory_cgroup, cgroup_id(memory_cgroup), MIB, lambda: False)
