"""What holds of each file that the writer writes: refused, fought for, gone, or left by a killed agent.

A test class inherits `Faults`, and `Vanishing` where the file can go, and gives the fixture `file`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer import places as of_places
from koordebpf.act.writer.change import WriteResult
from koordebpf.act.writer.journal import Journal, read_journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.restore import restore_journal
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.kernel.cgroup.files import Sysctl, Value, is_shared
from koordebpf.policy.reconcile import CgroupWrite, DesiredState, FileKey, SysctlWrite
from koordebpf.units import NS_PER_S

ERRORS = (errno.EACCES, errno.EINVAL, errno.EBUSY, errno.ENODEV, errno.EROFS)
MOMENTS = ("journalled", "written")
OWNER = "of a test"


class OneFile:
    """A file that is written, and another one that nothing happens to.

    Args:
        places: where they are.
        key: the file, and `value`: what is wanted of it.
        other: the other one, and what is wanted of that.
        journal: its path.
        refuse: has each write(2) to the file answered by an error, or no more; None: it is answered here.
        remove: takes the file away.
    """

    def __init__(
        self,
        places: Places,
        wanted: tuple[FileKey, Value],
        other: tuple[FileKey, Value],
        journal: Path,
        *,
        refuse: Callable[[int | None], None] | None = None,
        remove: Callable[[], None] | None = None,
    ) -> None:
        self.places, self.journal = places, journal
        self.key, self.value = wanted
        self.other = other
        self._refuse = refuse
        self.remove = remove or (lambda: None)

    @property
    def path(self) -> Path:
        found = self.places.locate(self.key)
        assert found is not None
        return found

    def wanted(self, *, both: bool = False) -> DesiredState:
        each = ((self.key, self.value), self.other) if both else ((self.key, self.value),)
        writes = tuple(CgroupWrite(*key, value) for key, value in each if not isinstance(key[1], Sysctl))
        sysctls = tuple(
            SysctlWrite(file, value, part)
            for (part, file), value in each
            if isinstance(file, Sysctl) and isinstance(value, int)
        )
        return DesiredState("a test", writes, sysctls)

    def held(self) -> Value:
        return self.places.parse(self.key, self.path.read_text())

    def is_written(self) -> bool:
        return self.places.is_held(self.key, self.held(), self.value)

    def states(self) -> list[object]:
        """Return what both files hold: every byte, of one that is shared the key's own value."""
        states: list[object] = []
        for key in (self.key, self.other[0]):
            path = self.places.locate(key)
            assert path is not None
            text = path.read_text()
            states.append(self.places.parse(key, text) if is_shared(key[1]) else text)
        return states

    def put(self, value: Value) -> None:
        """Write as another process does."""
        for text in self.places.writes(self.key, self.held(), value):
            self.path.write_text(text)

    @contextlib.contextmanager
    def refusing(self, number: int) -> Iterator[None]:
        """Have the kernel answer each write of the file so."""
        if self._refuse is not None:
            self._refuse(number)
            try:
                yield
            finally:
                self._refuse(None)
            return
        refused, real = self.path, os.write

        def write(fd: int, data: bytes) -> int:
            if is_of(fd, refused):
                raise OSError(number, os.strerror(number))
            return real(fd, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "write", write)
            yield


def is_of(fd: int, path: Path) -> bool:
    return Path(f"/proc/self/fd/{fd}").readlink() == path


def results(file: OneFile, writer: CgroupWriter, now_ns: int = 0) -> dict[str, tuple[WriteResult, str]]:
    """Write both files; return what became of each by its path."""
    changes = writer.apply(file.wanted(both=True), now_ns, OWNER).changes
    return {each.path: (each.result, each.detail) for each in changes}


class Faults:
    """Of any file."""

    def test_it_is_written_and_restored(self, file: OneFile) -> None:
        before = file.states()
        with Journal(file.journal) as journal:
            writer = CgroupWriter(file.places, journal, enforce=True)
            assert {each for each, _ in results(file, writer).values()} == {WriteResult.WRITTEN}
            assert file.is_written()
            assert writer.restore(1).left == ()
            assert not journal.originals
        assert file.states() == before

    def test_a_refused_write_fails_alone_and_leaves_nothing(self, file: OneFile) -> None:
        before, path = file.states(), str(file.path)
        for number in ERRORS:
            result = WriteResult.BUSY if number == errno.EBUSY else WriteResult.REFUSED
            with Journal(file.journal) as journal:
                writer = CgroupWriter(file.places, journal, enforce=True)
                with file.refusing(number):
                    first = results(file, writer)
                    assert first.pop(path) == (result, errno.errorcode[number])
                    assert {each for each, _ in first.values()} == {WriteResult.WRITTEN}
                    assert file.states()[0] == before[0]
                    assert results(file, writer, 1) == {}  # it is reported once
                assert writer.restore(2).left == ()
                assert not journal.originals
            assert file.states() == before

    def test_what_cannot_be_restored_stays_journalled(self, file: OneFile) -> None:
        before = file.states()
        for number in ERRORS:
            with Journal(file.journal) as journal:
                writer = CgroupWriter(file.places, journal, enforce=True)
                results(file, writer)
                with file.refusing(number):
                    assert writer.restore(1).left == (file.key,)
                assert list(journal.originals) == [file.key]
            assert file.is_written()
            assert file.states()[1] == before[1]
            assert restore_journal(file.journal, file.places, 2).left == ()
            assert file.states() == before

    def test_another_process_that_writes_each_second_is_left_the_file(self, file: OneFile) -> None:
        # GIVEN a file that this agent writes, and another process that writes what it was before
        theirs = file.held()
        with Journal(file.journal) as journal:
            writer = CgroupWriter(file.places, journal, enforce=True)
            made: list[WriteResult] = []
            # WHEN it does so each second, and this agent looks each ten
            for second in range(0, 600, 10):
                made += [each.result for each in writer.apply(file.wanted(), second * NS_PER_S, OWNER).changes]
                file.put(theirs)
            # THEN the agent gives in after a dozen times, and what the other one wrote stays
            assert made == [WriteResult.WRITTEN] * 13 + [WriteResult.YIELDED]
            assert writer.restore(700 * NS_PER_S).left == ()
            assert file.held() == theirs
            assert not journal.originals

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    @pytest.mark.parametrize("moment", MOMENTS)
    def test_what_a_killed_agent_left_is_restored(self, file: OneFile, moment: str) -> None:
        before = file.states()
        write_and_be_killed(file, moment)
        assert file.is_written() == (moment == "written")
        assert list(read_journal(file.journal)[0]) == [file.key]
        report = restore_journal(file.journal, file.places, 0)
        assert (report.left, report.lost_lines) == ((), 0)
        assert file.states() == before
        assert not file.journal.exists()


class Vanishing:
    """Of a file that can go, by `remove`. The writer finds it when it opens the file, or has it open by then."""

    @pytest.mark.parametrize("moment", ["decided", "open"])
    def test_one_that_is_gone_before_its_write_fails_alone(
        self, file: OneFile, gone: WriteResult, moment: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened, written, path = of_places.write_kernel_file, os.write, file.path

        def write_file(at: Path, *given: object) -> str:
            if at == path and moment == "decided":
                file.remove()
            return opened(at, *given)  # type: ignore[arg-type]

        def write(fd: int, data: bytes) -> int:
            if is_of(fd, path) and moment == "open":
                file.remove()
            return written(fd, data)

        monkeypatch.setattr(of_places, "write_kernel_file", write_file)
        monkeypatch.setattr(os, "write", write)
        with Journal(file.journal) as journal:
            writer = CgroupWriter(file.places, journal, enforce=True)
            made = results(file, writer)
            assert made.pop(str(path))[0] is gone
            assert {each for each, _ in made.values()} == {WriteResult.WRITTEN}
            monkeypatch.undo()
            assert writer.restore(1).left == ()
            assert not journal.originals


def write_and_be_killed(file: OneFile, moment: str) -> None:
    """Have another process write the file and be killed: at its first write of it, before that or after it."""

    def write() -> None:
        with Journal(file.journal) as journal:
            CgroupWriter(file.places, journal, enforce=True).apply(file.wanted(), 0, OWNER)

    killed_at_write(file.path, moment, write)


def killed_at_write(path: Path, moment: str, act: Callable[[], None]) -> None:
    """Do it in another process that kills itself at its first write of the file.

    Args:
        moment: `journalled`: before that write; `written`: after it.
    """
    pid = os.fork()
    if pid == 0:
        _act_and_die(path, moment, act)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def _act_and_die(path: Path, moment: str, act: Callable[[], None]) -> None:
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if is_of(fd, path):
            if moment == "written":
                real(fd, data)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(fd, data)

    try:
        os.write = write  # type: ignore[assignment]
        act()
    finally:
        os._exit(1)
