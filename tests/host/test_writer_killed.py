"""An agent that is killed between two writes, and `koordebpf restore` after it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.change import FileChange
from koordebpf.act.writer.journal import Journal, read_journal
from koordebpf.act.writer.restore import restore_journal
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.kernel.cgroup.files import format_cpu_list
from koordebpf.policy.reconcile import CgroupWrite, DesiredState
from tests.host.rigs.cgroups import CPUS, QUOTA, SHARES, TREE, Cgroups, made_cgroups, two_cpus

ROOT = Path(__file__).parents[2]
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


def test_a_successor_continues_and_keeps_what_was_there_at_first(cgroups: Cgroups, tmp_path: Path) -> None:
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


def test_what_cannot_be_restored_stays_journalled(cgroups: Cgroups, tmp_path: Path) -> None:
    if cgroups.version == 2:
        pytest.skip("not this kind of machine: on v2 kernels differ in whether a parent may have fewer CPUs")
    journal = tmp_path / "writes.journal"
    write_and_be_killed(cgroups, journal, WRITES)
    first, second = two_cpus()
    cgroups.put("", CPUS, str(second))
    done = koordebpf_restore(journal)
    assert done.returncode == 1
    why = f"the parent /{cgroups.path()} has not CPU {first}"
    assert f"{cgroups.file('be', CPUS)}: not {first}: {why}" in done.stdout
    assert {path for path, _ in read_journal(journal)[0]} == {cgroups.path(path) for path in TREE}
    cgroups.put("", CPUS, format_cpu_list((first, second)))
    assert koordebpf_restore(journal).returncode == 0
    assert not journal.exists()


def reported_story(cgroups: Cgroups, path: Path) -> None:
    """Limit the tree, then otherwise, then restore it."""
    first, second = two_cpus()
    with Journal(path) as journal:
        writer = CgroupWriter(cgroups.places, journal, enforce=True)
        writer.apply(wanted(cgroups), 0)
        writes = [CgroupWrite(cgroups.path(path), CPUS, frozenset({first, second})) for path in TREE]
        writes += [CgroupWrite(cgroups.path("be"), QUOTA, 5_000)]
        writer.apply(DesiredState("a test", tuple(writes)), 1)
        writer.restore(2)


def killed_at(number: int, moment: str, cgroups: Cgroups, path: Path) -> bool:
    """Tell the story in another process that kills itself at a call of write(2); whether it came to that."""
    pid = os.fork()
    if pid == 0:
        write, left = os.write, number

        def write_or_die(fd: int, data: bytes) -> int:
            nonlocal left
            left -= 1
            if left == 0:
                if moment == "after":
                    write(fd, data)
                elif moment == "torn" and stat.S_ISREG(os.fstat(fd).st_mode) and data.startswith(b"{"):
                    write(fd, data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return write(fd, data)

        code = 1
        try:
            os.write = write_or_die  # type: ignore[assignment]
            reported_story(cgroups, path)
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "torn", "after"])
def test_every_byte_comes_back_from_each_write_of_a_story(cgroups: Cgroups, tmp_path: Path, moment: str) -> None:
    before = content(cgroups)
    journal = tmp_path / "writes.journal"
    number = 1
    while killed_at(number, moment, cgroups, journal):
        report = restore_journal(journal, cgroups.places, 0)
        assert (report.left, report.lost_lines, content(cgroups)) == ((), 0, before), number
        assert not journal.exists()
        number += 1
    assert content(cgroups) == before
    # The header, the originals, each write of the first part and back, and what is done with.
    assert number > 1 + 1 + WRITES + WRITES + 1


def test_a_journal_that_may_not_be_read_is_reported(tmp_path: Path) -> None:
    # GIVEN an agent's folder, which is for its owner alone, and another user
    folder = tmp_path / "machine"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    command = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", sys.executable, "-m", "koordebpf", "restore"]
    command += ["--journal", str(folder / "writes.journal")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{folder}: Permission denied. Run it as root\n"
