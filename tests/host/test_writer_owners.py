"""Two strategies that write through one writer: each promise holds, and a pod gets its own limit back at the end."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.act.writer.foreign import ForeignPolicy
from koordebpf.act.writer.journal import OLD_LADDER_JOURNAL, Journal
from koordebpf.act.writer.owners import LADDER, SUPPRESS
from koordebpf.act.writer.settings import WriterSettings
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.agent.lifecycle.standby import left_behind
from koordebpf.agent.node_writer import open_node_writer
from koordebpf.kernel.io.loop import Loop
from tests.conftest import OTHER_MACHINE
from tests.host.rigs.cgroups import QUOTA, SHARES, Cgroups, desired

POD, BE = "be/pod", "be"
OWN_US, BRAKE_US, HELD_US = 200_000, 10_000, 50_000


@pytest.fixture
def pod(cgroups: Cgroups) -> Cgroups:
    """A best-effort pod that has a limit of its own."""
    for path in (BE, POD):
        cgroups.make(path)
    cgroups.put(POD, QUOTA, str(OWN_US))
    return cgroups


class Strategies:
    """Suppression and the ladder's brake, on one writer."""

    def __init__(self, cgroups: Cgroups, journal: Path, settings: WriterSettings | None = None) -> None:
        self.audited: list[FileChange] = []
        self.cgroups = cgroups
        self.journal = Journal(journal)
        self.writer = CgroupWriter(cgroups.places, self.journal, settings, enforce=True, audit=self.audited.append)
        self._now_ns = itertools.count()

    def suppress(self, quota_us: int | None) -> None:
        self.writer.apply(desired(self.cgroups, (BE, QUOTA, quota_us)), next(self._now_ns), SUPPRESS)

    def brake(self) -> None:
        self.writer.apply(desired(self.cgroups, (POD, QUOTA, BRAKE_US)), next(self._now_ns), LADDER)

    def end(self, owner: str) -> None:
        report = self.writer.restore(next(self._now_ns), owner=owner)
        assert report.left == ()

    def close(self) -> None:
        self.journal.close()

    def quota(self, path: str) -> int:
        return int(self.cgroups.text(path, QUOTA).split()[0].replace("max", "-1"))


@pytest.fixture
def both(pod: Cgroups, tmp_path: Path):
    made = Strategies(pod, tmp_path / "journal")
    yield made
    made.journal.close()


BEGINNINGS = {
    "suppressed, then braked": ("suppress", "brake"),
    "braked, then suppressed": ("brake", "suppress"),
}
ENDS = {
    "suppression ends first": ("end suppress", "end ladder"),
    "the brake ends first": ("end ladder", "end suppress"),
    "the policy changes, then the brake ends": ("no limit", "end ladder", "end suppress"),
}


@pytest.mark.parametrize("begin", BEGINNINGS.values(), ids=BEGINNINGS)
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_pod_gets_its_own_quota_back(both: Strategies, begin: tuple[str, ...], end: tuple[str, ...]) -> None:
    steps = {
        "suppress": lambda: both.suppress(HELD_US),
        "brake": both.brake,
        "no limit": lambda: both.suppress(None),
        "end suppress": lambda: both.end(SUPPRESS),
        "end ladder": lambda: both.end(LADDER),
    }
    in_force: set[str] = set()
    for step in (*begin, *end):
        steps[step]()
        in_force ^= {"suppress"} if step in ("suppress", "no limit") else {"brake"} if step == "brake" else set()
        in_force -= {"suppress"} if step == "end suppress" else {"brake"} if step == "end ladder" else set()
        limit_us = HELD_US if "suppress" in in_force else OWN_US
        assert both.quota(POD) == (
            BRAKE_US if "brake" in in_force else min(limit_us, OWN_US) if both.cgroups.version == 1 else OWN_US
        ), step
        assert both.quota(BE) == (HELD_US if "suppress" in in_force else -1), step
    assert both.quota(POD) == OWN_US
    assert not both.journal.originals


def test_a_brake_gets_no_more_than_suppression_leaves(both: Strategies) -> None:
    both.brake()
    both.suppress(BRAKE_US // 2)
    assert both.quota(BE) == BRAKE_US // 2
    assert both.quota(POD) == (BRAKE_US // 2 if both.cgroups.version == 1 else BRAKE_US)
    both.suppress(HELD_US)
    both.brake()
    assert both.quota(POD) == BRAKE_US
    both.end(SUPPRESS)
    both.end(LADDER)
    assert both.quota(POD) == OWN_US


def test_each_strategy_counts_and_reports_its_own(both: Strategies) -> None:
    both.brake()
    both.suppress(HELD_US)
    assert both.writer.counts_of(LADDER) == {("cpu.cfs_quota_us", WriteResult.WRITTEN): 1}
    assert both.writer.counts_of(SUPPRESS) == {("cpu.cfs_quota_us", WriteResult.WRITTEN): 1}
    assert [change.owner for change in both.audited] == [LADDER, SUPPRESS]
    both.end(LADDER)
    assert both.audited[-1].owner == LADDER
    assert both.audited[-1].result is WriteResult.WRITTEN


def test_the_next_agent_ends_the_brake_and_continues_with_suppression(pod: Cgroups, tmp_path: Path) -> None:
    killed = Strategies(pod, tmp_path / "killed.journal")
    killed.suppress(HELD_US)
    killed.brake()
    (tmp_path / "writes.journal").write_bytes(killed.journal.path.read_bytes())
    ladder, suppression = left_behind(tmp_path)
    assert "left 1 files of its ladder" in ladder
    assert "as suppression wrote them" in suppression
    with contextlib.ExitStack() as stack:
        writer = open_node_writer(WriterSettings(), tmp_path, killed.audited.append, stack.enter_context(Loop()), stack)
        assert killed.audited[-1].owner == LADDER
        assert killed.quota(POD) == (HELD_US if pod.version == 1 else OWN_US)
        assert killed.quota(BE) == HELD_US
        assert writer.restore(1, owner=SUPPRESS).left == ()
        assert killed.quota(POD) == OWN_US
    assert not (tmp_path / "writes.journal").exists()


def test_lines_without_owners_are_suppressions(pod: Cgroups, tmp_path: Path) -> None:
    with Journal(tmp_path / "writes.journal") as journal:
        CgroupWriter(pod.places, journal, enforce=True).apply(desired(pod, (POD, SHARES, 2)), 0)
        writer = CgroupWriter(pod.places, journal, enforce=True)
        assert writer.restore(1, owner=LADDER).done == ()
        assert writer.restore(2, owner=SUPPRESS).done == ((pod.path(POD), SHARES),)


def test_a_ladder_journal_of_an_earlier_release_is_restored(pod: Cgroups, tmp_path: Path) -> None:
    old = tmp_path / OLD_LADDER_JOURNAL
    killed = CgroupWriter(pod.places, Journal(tmp_path / "killed.journal"), enforce=True)
    killed.apply(desired(pod, (POD, QUOTA, BRAKE_US)), 0)
    old.write_bytes((tmp_path / "killed.journal").read_bytes())
    (sentence,) = left_behind(tmp_path)
    assert f"--journal {old}" in sentence
    audited: list[FileChange] = []
    with contextlib.ExitStack() as stack:
        open_node_writer(WriterSettings(), tmp_path, audited.append, stack.enter_context(Loop()), stack)
    assert [change.result for change in audited] == [WriteResult.WRITTEN]
    assert pod.text(POD, QUOTA).split()[0] == str(OWN_US)
    assert not old.exists()


def foreign(both: Strategies, path: str, quota_us: int) -> None:
    """Write a quota as another process, such as a VPA, would."""
    both.cgroups.put(path, QUOTA, str(quota_us))


def only_v1(cgroups: Cgroups) -> None:
    if cgroups.version == 2:
        pytest.skip(f"{OTHER_MACHINE}on v2 no quota is cut")


def test_what_another_process_wrote_is_known_where_the_quota_above_cuts_the_file(both: Strategies) -> None:
    only_v1(both.cgroups)
    both.brake()
    foreign(both, POD, BRAKE_US - 2000)
    both.suppress(BRAKE_US - 1000)
    assert both.quota(POD) == BRAKE_US - 1000
    (corrected,) = [each for each in both.audited if each.is_correction]
    assert (corrected.old, corrected.new, corrected.owner) == ("8000", "9000", LADDER)
    both.end(LADDER)
    assert both.quota(POD) == BRAKE_US - 2000, "the other process's own, and not what was there before it"
    both.end(SUPPRESS)
    assert (both.quota(POD), both.quota(BE)) == (BRAKE_US - 2000, -1)
    assert not both.journal.originals


@pytest.mark.parametrize(("foreign_us", "cut_us"), [(8000, 8000), (9900, 9000)])
def test_what_is_left_to_another_process_is_cut_only_as_far_as_the_quota_above_demands(
    pod: Cgroups, tmp_path: Path, foreign_us: int, cut_us: int
) -> None:
    only_v1(pod)
    never = WriterSettings(foreign=ForeignPolicy(corrections_per_hour=0))
    with contextlib.closing(Strategies(pod, tmp_path / "journal", never)) as both:
        both.brake()
        foreign(both, POD, foreign_us)
        both.suppress(BRAKE_US - 1000)
        assert (both.quota(POD), both.quota(BE)) == (cut_us, BRAKE_US - 1000)
        assert (pod.path(POD), QUOTA) in both.writer.yielded
        both.brake()
        assert both.quota(POD) == cut_us
        both.suppress(HELD_US)
        assert both.quota(POD) == foreign_us
        both.end(SUPPRESS)
        both.end(LADDER)
        assert both.quota(POD) == foreign_us


def test_what_another_process_wrote_is_not_restored_over_below_a_quota_that_stays(both: Strategies) -> None:
    only_v1(both.cgroups)
    both.suppress(HELD_US)
    both.brake()
    foreign(both, POD, BRAKE_US + 1000)
    both.end(LADDER)
    assert both.quota(POD) == BRAKE_US + 1000
    both.end(SUPPRESS)
    assert both.quota(POD) == BRAKE_US + 1000
