"""Another process writes a file at the worst moment: between a look and the write, or between the write and its look.

Over fakes of cgroups, which let it write right there; each write(2) is one through the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.change import WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.restore import restore_journal
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.cgroup.tables import Table
from koordebpf.policy.reconcile import CgroupWrite, DesiredState
from tests.host.fake_mount import mounted
from tests.support.fake_cgroups import FakeNumbers, FakeThrottle

QUOTA, READ_BPS = CgroupFile.CPU_QUOTA, CgroupFile.IO_READ_BPS
OWN, RAISED, THEIRS = 5_000, 15_000, 7_000
OURS, OTHER_DISK = "8:0", "8:16"

pytestmark = pytest.mark.usefixtures("require_root")


class Quotas:
    """Two cgroups with a quota of their own, and a writer that raises both."""

    def __init__(self, root: Path, fake: FakeNumbers, journal: Path) -> None:
        self.fake = fake
        self.places = Places({"cpu": ControllerMount(1, root)})
        self.journal = Journal(journal)
        self.writer = CgroupWriter(self.places, self.journal, enforce=True)

    def write(self, **quotas: int) -> list[WriteResult]:
        writes = tuple(CgroupWrite(path, QUOTA, each) for path, each in quotas.items())
        return [each.result for each in self.writer.apply(DesiredState("of a test", writes), 0, "cpuBurst").changes]

    def follows(self, cgroup: str, number: int, then: str) -> None:
        """Let another process write `number` to `then` right after the next write to `cgroup`."""

        def write(_: str) -> None:
            self.fake.wrote.pop(cgroup)
            self.fake.numbers[then] = number

        self.fake.wrote[cgroup] = write


@pytest.fixture
def quotas(tmp_path: Path, require_root: None) -> Iterator[Quotas]:
    fake = FakeNumbers(QUOTA, 1, pod=OWN, second=OWN)
    for root in mounted(tmp_path / "cgroup", fake.root()):
        made = Quotas(root, fake, tmp_path / "journal")
        yield made
        made.journal.close()
        made.places.keep_open({})  # an open file keeps the mount


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_follows_a_write_before_it_is_read_back_stays_at_the_end(quotas: Quotas, is_killed: bool) -> None:
    quotas.follows("pod", THEIRS, "pod")
    assert quotas.write(pod=RAISED) == [WriteResult.WRITTEN]
    assert quotas.fake.numbers["pod"] == THEIRS
    if is_killed:
        quotas.journal.close()
        restore_journal(quotas.journal.path, quotas.places, 1)
    else:
        quotas.write()
        assert quotas.writer.restore(1).left == ()
    assert quotas.fake.numbers["pod"] == THEIRS


def test_it_is_corrected_while_ours_is_wanted_and_stays_at_the_end(quotas: Quotas) -> None:
    quotas.follows("pod", THEIRS, "pod")
    quotas.write(pod=RAISED)
    quotas.write(pod=RAISED)
    assert quotas.fake.numbers["pod"] == RAISED
    quotas.writer.restore(1)
    assert quotas.fake.numbers["pod"] == THEIRS


def test_what_comes_while_another_file_of_the_same_call_is_written_is_not_overwritten(quotas: Quotas) -> None:
    quotas.follows("pod", THEIRS, "second")
    assert quotas.write(pod=RAISED, second=RAISED) == [WriteResult.WRITTEN]
    assert quotas.fake.numbers == {"pod": RAISED, "second": THEIRS}
    quotas.writer.restore(1)
    assert quotas.fake.numbers == {"pod": OWN, "second": THEIRS}


@pytest.mark.parametrize(("first", "then"), [("pod", "pod"), ("pod", "second"), ("second", "pod")])
def test_what_comes_while_they_are_restored_is_not_overwritten(quotas: Quotas, first: str, then: str) -> None:
    quotas.write(pod=RAISED, second=RAISED)
    quotas.follows(first, THEIRS, then)
    report = quotas.writer.restore(1)
    assert report.left == () and not quotas.journal.originals
    assert quotas.fake.numbers == {"pod": OWN, "second": OWN, then: THEIRS}


def test_a_row_that_a_runtime_adds_meanwhile_stays(tmp_path: Path) -> None:
    fake = FakeThrottle(READ_BPS, 1, "pod")
    for root in mounted(tmp_path / "cgroup", fake.root()):
        places = Places({"blkio": ControllerMount(1, root)})
        with Journal(tmp_path / "journal") as journal:
            writer = CgroupWriter(places, journal, enforce=True)

            def limit(value: int, now_ns: int, writer: CgroupWriter = writer) -> list[WriteResult]:
                wanted = CgroupWrite("pod", READ_BPS, Table.of({OURS: value}))
                return [
                    each.result for each in writer.apply(DesiredState("of a test", (wanted,)), now_ns, "io").changes
                ]

            fake.next_write = lambda: fake.rows["pod"].update({OTHER_DISK: 4096})
            assert limit(1 << 20, 0) == [WriteResult.WRITTEN]
            assert limit(2 << 20, 1) == [WriteResult.WRITTEN]
            assert fake.rows["pod"] == {OURS: 2 << 20, OTHER_DISK: 4096}
            assert writer.restore(2).left == ()
            assert fake.rows["pod"] == {OTHER_DISK: 4096}
        places.keep_open({})
