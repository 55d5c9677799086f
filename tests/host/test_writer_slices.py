"""Slices whose files systemd resets: set right at once, often, and without a fight."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest

from koordebpf.act.writer.change import WriteResult
from koordebpf.act.writer.foreign import ForeignPolicy
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.overwritten import Overwritten
from koordebpf.act.writer.restore import restore
from koordebpf.act.writer.settings import WriterSettings
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.host.rigs.cgroups import QUOTA, Cgroups, desired

SLICE, OTHER = "be.slice", "be"
HELD_US, OWN_US = 50_000, 90_000
WAIT_MS = 2000


@pytest.fixture
def overwritten() -> Iterator[Overwritten]:
    with Overwritten() as watched:
        yield watched


def is_readable(overwritten: Overwritten, wait_ms: int = 0) -> bool:
    """Tell whether a loop would call `see`, and call it as the loop does."""
    poll = select.poll()
    poll.register(overwritten.fileno(), select.POLLIN)
    is_ready = bool(poll.poll(wait_ms))
    if is_ready:
        overwritten.see()
    return is_ready


class Held:
    """A writer that holds the quota of a cgroup that had one of its own."""

    def __init__(self, cgroups: Cgroups, journal: Journal, overwritten: Overwritten, path: str, resets: int) -> None:
        self._cgroups, self._path = cgroups, path
        cgroups.make(path)
        cgroups.put(path, QUOTA, str(OWN_US))
        settings = WriterSettings(foreign=ForeignPolicy(resets_per_hour=resets))
        self.writer = CgroupWriter(cgroups.places, journal, settings, enforce=True)
        self.writer.overwritten = overwritten
        self.writer.apply(desired(cgroups, (path, QUOTA, HELD_US)), 0)
        assert self.quota_us == HELD_US

    @property
    def quota_us(self) -> int:
        return int(self._cgroups.text(self._path, QUOTA).split()[0])

    def reset(self, value_us: int = OWN_US) -> None:
        self._cgroups.put(self._path, QUOTA, str(value_us))

    def remake(self) -> None:
        self._cgroups.remove(self._path)
        self._cgroups.make(self._path)


@pytest.fixture
def held(cgroups: Cgroups, journal: Journal, overwritten: Overwritten) -> Held:
    return Held(cgroups, journal, overwritten, SLICE, 1200)


def test_a_reset_is_seen_at_once_and_set_right(held: Held, overwritten: Overwritten) -> None:
    held.reset()
    assert is_readable(overwritten, WAIT_MS)
    (change,) = held.writer.correct(NS_PER_MS).changes
    assert (change.result, change.is_correction) == (WriteResult.WRITTEN, True)
    assert held.quota_us == HELD_US


def test_its_own_writes_wake_no_loop(held: Held, cgroups: Cgroups, overwritten: Overwritten) -> None:
    assert not is_readable(overwritten)
    held.writer.apply(desired(cgroups, (SLICE, QUOTA, 2 * HELD_US)), NS_PER_S)
    assert held.quota_us == 2 * HELD_US
    assert not is_readable(overwritten)


def test_as_many_resets_as_a_busy_node_sees_are_no_fight(held: Held, overwritten: Overwritten) -> None:
    for number in range(1, 200):
        held.reset()
        assert is_readable(overwritten, WAIT_MS)
        held.writer.correct(number * NS_PER_S)
        assert held.quota_us == HELD_US
    assert not held.writer.yielded


def test_one_who_resets_it_without_end_gets_it(cgroups: Cgroups, journal: Journal, overwritten: Overwritten) -> None:
    held = Held(cgroups, journal, overwritten, SLICE, 3)
    for number in range(1, 6):
        held.reset()
        is_readable(overwritten, WAIT_MS)
        held.writer.correct(number * NS_PER_S)
    assert list(held.writer.yielded) == [(cgroups.path(SLICE), QUOTA)]
    assert held.quota_us == OWN_US


@pytest.mark.slow
def test_other_values_than_its_own_are_corrected_as_seldom_as_elsewhere(
    held: Held, cgroups: Cgroups, journal: Journal, overwritten: Overwritten
) -> None:
    for number in range(1, 20):
        held.reset(OWN_US + 1000 * number)
        is_readable(overwritten, WAIT_MS)
        held.writer.correct(number * NS_PER_S)
    assert list(held.writer.yielded) == [(cgroups.path(SLICE), QUOTA)]
    assert held.quota_us == OWN_US + 19_000
    assert not journal.originals  # it is theirs


def test_a_property_that_is_set_meanwhile_is_what_is_restored(
    held: Held, cgroups: Cgroups, journal: Journal, overwritten: Overwritten
) -> None:
    held.reset(OWN_US + 1000)
    for number in range(1, 50):  # and put back again and again
        assert is_readable(overwritten, WAIT_MS)
        held.writer.correct(number * NS_PER_S)
        assert held.quota_us == HELD_US
        held.reset(OWN_US + 1000)
    assert not held.writer.yielded
    held.writer.correct(60 * NS_PER_S)
    restore(cgroups.places, dict(journal.originals), 0, enforce=True)
    assert held.quota_us == OWN_US + 1000


def test_what_is_wanted_no_more_is_watched_no_more(held: Held, cgroups: Cgroups, overwritten: Overwritten) -> None:
    held.writer.restore(NS_PER_S)
    assert is_readable(overwritten)  # what restored it
    held.writer.correct(2 * NS_PER_S)
    held.reset(2 * HELD_US)
    assert not is_readable(overwritten, 50)
    assert held.writer.correct(4 * NS_PER_S).changes == ()
    assert held.quota_us == 2 * HELD_US


def test_a_slice_that_is_made_again_is_watched_again(held: Held, cgroups: Cgroups, overwritten: Overwritten) -> None:
    held.remake()
    held.writer.apply(desired(cgroups, (SLICE, QUOTA, 2 * HELD_US)), 20 * NS_PER_S)
    assert held.quota_us == 2 * HELD_US
    assert not is_readable(overwritten)
    held.reset()
    assert is_readable(overwritten, WAIT_MS)
    held.writer.correct(21 * NS_PER_S)
    assert held.quota_us == 2 * HELD_US


def test_a_cgroup_that_is_no_slice_is_looked_at_when_it_is_due(
    cgroups: Cgroups, journal: Journal, overwritten: Overwritten
) -> None:
    held = Held(cgroups, journal, overwritten, OTHER, 1200)
    held.reset()
    assert not is_readable(overwritten, 50)
    (change,) = held.writer.apply(desired(cgroups, (OTHER, QUOTA, HELD_US)), 10 * NS_PER_S).changes
    assert change.is_correction


def test_a_dry_run_watches_nothing(cgroups: Cgroups, overwritten: Overwritten) -> None:
    cgroups.make(SLICE)
    writer = CgroupWriter(cgroups.places, None)
    writer.overwritten = overwritten
    writer.apply(desired(cgroups, (SLICE, QUOTA, HELD_US)), 0)
    cgroups.put(SLICE, QUOTA, str(OWN_US))
    assert not is_readable(overwritten, 50)
