"""The journal: what is on disk after a crash, a full disk, a reboot and a second agent."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from koordebpf.act.writer import journal as journal_module
from koordebpf.act.writer.journal import Journal, read_journal
from koordebpf.act.writer.places import Original, Places
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.errors import ActuationError
from koordebpf.kernel.cgroup.files import CgroupFile, Sysctl

BE = ("kubepods/besteffort", CgroupFile.CPUSET_CPUS)
POD = ("kubepods/besteffort/pod1", CgroupFile.CPU_QUOTA)
WATERMARK = ("", Sysctl.WATERMARK_SCALE_FACTOR)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "koordebpf" / "writes.journal"


def test_what_is_journalled_is_read_back_to_the_byte(path: Path) -> None:
    originals = {BE: Original("\n", 7), POD: Original("-1\n", 8), WATERMARK: Original("10\n", 9)}
    with Journal(path) as journal:
        journal.record(originals)
        assert read_journal(path) == (originals, 0)
    with Journal(path) as again:
        assert again.originals == originals


def test_a_path_that_is_no_text_is_read_back_to_the_byte(path: Path) -> None:
    # As a container with a writable cgroup file system may name its cgroups.
    names = [os.fsdecode(name) for name in (b"a\xff\xfe", b"\x1b[2J", "\u202e".encode(), "名".encode())]
    originals = {(f"kubepods/besteffort/{name}", CgroupFile.CPUSET_CPUS): Original("0-3\n", 7) for name in names}
    with Journal(path) as journal:
        journal.record(originals)
        assert read_journal(path) == (originals, 0)
        journal.forget([next(iter(originals))])
        assert len(read_journal(path)[0]) == 3


def test_the_last_word_on_a_file_counts(path: Path) -> None:
    with Journal(path) as journal:
        journal.record({BE: Original("0-3\n", 7), POD: Original("-1\n", 8)})
        journal.record({BE: Original("0-1\n", 7)})
        journal.forget([POD])
        assert journal.originals == read_journal(path)[0] == {BE: Original("0-1\n", 7)}


def test_an_empty_one_is_removed(path: Path) -> None:
    with Journal(path) as journal:
        journal.record({BE: Original("0-3\n", 7)})
        journal.forget([BE, POD])
    assert not path.exists()


def test_garbage_costs_its_own_line_and_is_counted(path: Path) -> None:
    with Journal(path) as journal:
        journal.record({BE: Original("0-3\n", 7)})
    with path.open("ab") as file:
        file.write(b'\0\0\0\n{"path":"x","file":"no.such.file","original":null}\n')
        file.write(b'{"path":"/etc","file":"cpu.shares","original":{"text":"2","inode":1}}\n')
        file.write(b'{"later":' * 20_000 + b"\n")
    with Journal(path) as journal:
        journal.record({POD: Original("-1\n", 8)})
        assert journal.lost_lines == 4
    assert read_journal(path) == ({BE: Original("0-3\n", 7), POD: Original("-1\n", 8)}, 4)


def test_a_first_line_that_is_nested_deeply_is_no_journal(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"later":' * 20_000 + b"\n")
    with pytest.raises(ActuationError, match="not a journal of koordebpf"):
        read_journal(path)


def test_what_a_later_version_put_down_is_reported_and_kept_for_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal_module, "_SPARE_LINES", 3)
    with Journal(path) as journal:
        journal.record({BE: Original("0-3\n", 7)})
    later = b'{"path":"be","file":"cpu.of.later","original":{"text":"1\\n","inode":9}}\n'
    with path.open("ab") as file:
        file.write(later)
    with Journal(path) as journal:
        CgroupWriter(Places({}), journal, enforce=True)
        assert caplog.messages == [f"{path}: 1 lines could not be read: these files are not restored"]
        for number in range(9):
            journal.record({POD: Original(f"{number}\n", 8)})
        journal.compact()
        assert len(path.read_bytes().splitlines()) == 4
        journal.forget([BE, POD])
    assert later in path.read_bytes()
    assert read_journal(path) == ({}, 1)


def test_another_boot_has_other_cgroups(path: Path) -> None:
    with Journal(path, boot_id="before") as journal:
        journal.record({BE: Original("0-3\n", 7)})
    assert read_journal(path) == ({}, 0)
    with Journal(path) as journal:
        assert journal.originals == {}
        journal.record({POD: Original("-1\n", 8)})
    assert read_journal(path) == ({POD: Original("-1\n", 8)}, 0)


def test_a_file_that_is_no_journal_is_refused_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("[agent]\nlevel = 3\n")
    with pytest.raises(ActuationError, match="not a journal of koordebpf"):
        Journal(path)
    with pytest.raises(ActuationError, match="not a journal of koordebpf"):
        read_journal(path)
    assert path.read_text() == "[agent]\nlevel = 3\n"


def test_a_second_process_is_refused_while_an_agent_is_there(path: Path) -> None:
    script = f"from pathlib import Path; from koordebpf.act.writer.journal import Journal; Journal(Path({str(path)!r}))"
    with Journal(path):
        refused = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "an agent is using it. Stop the agent first" in refused.stderr
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_it_is_rewritten_before_it_grows_without_bound(path: Path) -> None:
    with Journal(path) as journal:
        for number in range(3000):
            journal.record({POD: Original(f"{number}\n", 8)})
            journal.compact()
        assert journal.originals == {POD: Original("2999\n", 8)}
        assert len(path.read_bytes().splitlines()) < 1500
    with Journal(path) as again:
        assert again.originals == {POD: Original("2999\n", 8)}


@pytest.mark.parametrize("lost", [0, 5])
def test_so_many_superseded_lines_and_as_many_as_files_are_kept_before_it_is_rewritten(
    path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    monkeypatch.setattr(journal_module, "_SPARE_LINES", 3)
    with Journal(path) as journal:
        journal.record({BE: Original("0-3\n", 7)})
    with path.open("ab") as file:
        file.write(b"of a later version\n" * lost)
    with Journal(path) as journal:
        journal.record({POD: Original("-1\n", 8)})
        for _ in range(2):  # what was rewritten is counted again
            for number in range(5):
                journal.record({POD: Original(f"{number}\n", 8)})
                journal.compact()
            assert len(path.read_bytes().splitlines()) == 1 + lost + 7
            journal.record({POD: Original("5\n", 8)})
            journal.compact()
            assert len(path.read_bytes().splitlines()) == 1 + lost + 2


def test_root_alone_reads_it_and_who_may_look_into_its_folder_does_not_write_there(path: Path) -> None:
    before = os.umask(0)
    try:
        with Journal(path) as journal:
            assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o755, 0o600)
            journal.record({BE: Original("0-3\n", 7)})
        path.unlink()
        os.close(journal_module._open_locked(path))
        assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_what_is_recorded_is_in_the_file_of_its_name_though_that_was_another_before_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    with Journal(path) as journal:
        journal.record({BE: Original("0-3\n", 7)})
    lock, content, turns = fcntl.flock, path.read_bytes(), iter([True])

    def locks_late(fd: int, how: int) -> None:
        if next(turns, False):  # the process before gives its lock back with another file, or none
            path.unlink()
            if is_replaced:
                path.write_bytes(content)
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", locks_late)
    with Journal(path) as journal:
        journal.record({POD: Original("-1\n", 8)})
    known = {BE: Original("0-3\n", 7)} if is_replaced else {}
    assert read_journal(path) == ({**known, POD: Original("-1\n", 8)}, 0)


def test_the_lock_outlives_the_file_being_rewritten(path: Path) -> None:
    with Journal(path) as journal:
        for number in range(1200):
            journal.record({POD: Original(f"{number}\n", 8)})
        before = path.stat().st_ino
        journal.compact()
        assert path.stat().st_ino != before
        with pytest.raises(ActuationError, match="an agent is using it"):
            Journal(path)


def test_more_files_than_a_node_has_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_MAX_FILES", 1)
    with Journal(path) as journal:
        journal.record({BE: Original("0-3\n", 7)})
        size = path.stat().st_size
        with pytest.raises(OSError, match="which is the most"):
            journal.record({POD: Original("-1\n", 8)})
        assert path.stat().st_size == size


def test_half_a_line_on_a_full_disk_does_not_spoil_the_next(path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with Journal(path) as journal:
                journal.record({BE: Original("0-3\n", 7)})
                _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
                try:
                    journal.record({POD: Original("-1\n", 8)})
                except OSError:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
                    journal.record({WATERMARK: Original("10\n", 9)})
                    code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert read_journal(path) == ({BE: Original("0-3\n", 7), WATERMARK: Original("10\n", 9)}, 0)


def test_a_directory_that_cannot_be_made_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ActuationError, match=r"file/writes\.journal: "):
        Journal(tmp_path / "file" / "writes.journal")


def test_a_file_without_a_line_that_is_no_journal_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("no end of a line")
    for read in (Journal, read_journal):
        with pytest.raises(ActuationError, match="not a journal of koordebpf"):
            read(path)
    assert path.read_text() == "no end of a line"
