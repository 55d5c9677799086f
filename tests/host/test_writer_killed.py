"""An agent that is killed between two writes, and `koordebpf restore` after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.change import FileChange
from koordebpf.act.writer.journal import Journal, read_journal
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.decide.reconcile.values import CgroupWrite, DesiredState
from koordebpf.kernel.cgroup_files import format_cpu_list
from tests.host.writer_cgroups import CPUS, QUOTA, SHARES, Cgroups, made_cgroups, two_cpus

ROOT = Path(__file__).parents[2]
TREE = ("be", "be/pod", "be/pod/c1", "be/pod/c2")
FILES = (CPUS, QUOTA, SHARES)
# The union and the exact set of each of the four, and their quotas and shares.
WRITES = 4 * 4


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    with made_cgroups() as cgroups:
        first, second = two_cpus()
        cgroups.put("", CPUS, format_cpu_list((first, second)))
        for path in TREE:
            cgroups.make(path)
            cgroups.put(path, CPUS, str(first))
        cgroups.populate("be/pod/c1")
        yield cgroups


def wanted(cgroups: Cgroups) -> DesiredState:
    _, second = two_cpus()
    writes = [CgroupWrite(cgroups.path(path), CPUS, frozenset({second})) for path in TREE]
    writes += [CgroupWrite(cgroups.path(path), QUOTA, 20_000) for path in TREE]
    writes += [CgroupWrite(cgroups.path(path), SHARES, 100) for path in TREE]
    return DesiredState("a test", tuple(writes))


def content(cgroups: Cgroups) -> dict[tuple[str, str], str]:
    return {(path, file.value): cgroups.text(path, file) for path in TREE for file in FILES}


def write_and_be_killed(cgroups: Cgroups, journal: Path, after: int) -> None:
    """Write in another process, which kills itself after so many writes."""
    pid = os.fork()
    if pid == 0:
        left = after

        def count(_: FileChange) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            writer = CgroupWriter(cgroups.places, Journal(journal), enforce=True, audit=count)
            writer.apply(wanted(cgroups), 0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def koordebpf_restore(journal: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "koordebpf", "restore", "--journal", str(journal), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("after", [1, 3, 6, 9, 12, WRITES])
def test_every_byte_comes_back_wherever_it_was_killed(cgroups: Cgroups, tmp_path: Path, after: int) -> None:
    before = content(cgroups)
    journal = tmp_path / "writes.journal"
    write_and_be_killed(cgroups, journal, after)
    between = content(cgroups)
    assert between != before

    shown = koordebpf_restore(journal, "--dry-run")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert len(shown.stdout.splitlines()) == sum(between[key] != before[key] for key in before)
    assert content(cgroups) == between

    done = koordebpf_restore(journal)
    assert (done.returncode, done.stderr) == (0, "")
    assert content(cgroups) == before

    again = koordebpf_restore(journal)
    assert (again.returncode, again.stdout) == (0, f"{journal}: nothing to restore\n")


def test_a_successor_goes_on_and_keeps_what_was_there_at_first(cgroups: Cgroups, tmp_path: Path) -> None:
    before = content(cgroups)
    journal = tmp_path / "writes.journal"
    write_and_be_killed(cgroups, journal, 7)
    with Journal(journal) as kept:
        CgroupWriter(cgroups.places, kept, enforce=True).apply(wanted(cgroups), 0)
        busy = koordebpf_restore(journal)
        assert busy.returncode == 1
        assert "an agent is using it" in busy.stderr
    assert koordebpf_restore(journal).returncode == 0
    assert content(cgroups) == before


def test_a_line_that_was_being_written_is_of_no_file(cgroups: Cgroups, tmp_path: Path) -> None:
    before = content(cgroups)
    journal = tmp_path / "writes.journal"
    write_and_be_killed(cgroups, journal, 9)
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole.splitlines(keepends=True)[-1][:-9])
    assert koordebpf_restore(journal).returncode == 0
    assert content(cgroups) == before


def test_what_cannot_be_given_back_stays_on_record(cgroups: Cgroups, tmp_path: Path) -> None:
    if cgroups.version == 2:
        pytest.skip("not this kind of machine: on v2 kernels differ in whether a parent may have fewer CPUs")
    journal = tmp_path / "writes.journal"
    write_and_be_killed(cgroups, journal, WRITES)
    cgroups.make("be/born")
    cgroups.put("be/born", CPUS, cgroups.text("be", CPUS))
    done = koordebpf_restore(journal)
    assert done.returncode == 1
    assert f"{cgroups.file('be', CPUS)}: not 0: EBUSY" in done.stdout
    assert list(read_journal(journal)[0]) == [(cgroups.path("be"), CPUS)]
    cgroups.remove("be/born")
    assert koordebpf_restore(journal).returncode == 0
    assert not journal.exists()
