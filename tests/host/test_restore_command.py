"""`koordebpf restore` and what may stand in a journal or in its place: no value is printed whole, no pipe awaited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from koordebpf.act.writer.journal import JOURNAL_PATH, Journal
from koordebpf.act.writer.places import Original
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.store.wal import IN_FLIGHT_PATH
from koordebpf.strategies.hooks.values import COOKIES, SCORES
from koordebpf.strategies.resctrl.values import GROUPS
from tests.host.live_agent import ROOT
from tests.support.patience import patience


def restored(run_dir: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "koordebpf", "restore", "--run-dir", str(run_dir), *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(20))


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_value_of_a_journal_is_not_printed_whole(
    hierarchy: MemoryHierarchy, tmp_path: Path, more: tuple[str, ...]
) -> None:
    with Journal(tmp_path / "machine" / JOURNAL_PATH.name) as journal:
        journal.record({("none", CgroupFile.CPU_QUOTA): Original("7\n\x1b[2J" + "x" * 1_000_000, 1)})
    done = restored(tmp_path, *more)
    assert "xxxx… (1000007 characters)" in done.stdout and "\\x1b[2J" in done.stdout, done
    assert len(done.stdout) < 2_000 and len(done.stderr) < 2_000 and done.stdout.count("\n") == 1


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--successor-within-s", "0.1")])
def test_a_pipe_in_the_place_of_any_file_is_not_waited_for(
    hierarchy: MemoryHierarchy, tmp_path: Path, more: tuple[str, ...]
) -> None:
    (tmp_path / "machine").mkdir()
    for name in (JOURNAL_PATH.name, IN_FLIGHT_PATH.name, "suppression.json"):
        os.mkfifo(tmp_path / "machine" / name)
    with Journal(tmp_path / "other" / JOURNAL_PATH.name) as journal:
        journal.record({("none", CgroupFile.CPU_QUOTA): Original("7\n", 1)})
    done = restored(tmp_path, *more)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done
    for name in (JOURNAL_PATH.name, IN_FLIGHT_PATH.name):
        assert f"{tmp_path / 'machine' / name}: must be a regular file" in done.stderr
    assert "other" not in done.stderr and "7" in done.stdout  # the other folder is restored all the same


PODS = {
    "wrong type": b'{"uid": 7, "namespace": ["team"], "name": null}',
    "null": b"null",
    "cut short": b'{"uid": "a',
    "no text": b"\xff\xfe\n\x00",
    "nested": b"[" * 5000,
}


@pytest.mark.parametrize("odd", PODS.values(), ids=PODS)
def test_what_is_odd_of_one_pod_keeps_no_other_from_being_restored(
    hierarchy: MemoryHierarchy, tmp_path: Path, odd: bytes
) -> None:
    # GIVEN a killed agent whose journal has another pod, and each of its other files something odd of one
    folder = tmp_path / "machine"
    with Journal(folder / JOURNAL_PATH.name) as journal:
        journal.record({("none", CgroupFile.CPU_QUOTA): Original("7\n", 1)})
    for name in (IN_FLIGHT_PATH.name, COOKIES, SCORES, GROUPS, "suppression.json"):
        (folder / name).write_bytes(odd + b"\n")
    # THEN the other pod's file is looked after, in whatever way what is odd is reported
    done = restored(tmp_path)
    assert "Traceback" not in done.stderr, done.stderr
    assert "cpu.cfs_quota_us" in done.stdout or "cpu.max" in done.stdout, done
