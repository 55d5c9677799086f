"""Rows of a file that several processes write: wherever an agent was killed, ours are undone, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.act.writer.foreign import our_devices, unseen_rows
from koordebpf.act.writer.places import Original, Places
from koordebpf.kernel.cgroup.tables import Table, differing, overlaid, with_changes, with_rows

DEVICES = ("8:0", "8:16", "8:32", "8:48")
tables = st.dictionaries(st.sampled_from(DEVICES), st.integers(1, 4)).map(Table.of)
# Before, the tables that are wanted one after the other, and how far the last write came.
stories = st.tuples(tables, st.lists(tables, min_size=1, max_size=4), st.sets(st.sampled_from(DEVICES)))


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> Places:
    sysfs = tmp_path_factory.mktemp("sys")
    for device in DEVICES:
        Path(sysfs, "dev/block", device).mkdir(parents=True)
    return Places({}, sysfs=sysfs)


def killed(story) -> tuple[Original, Table]:
    """Return the record and what the file holds, of an agent that was killed when it had written some of the rows."""
    before, wanted, done = story
    record, held, last = None, before, before
    for each in wanted:
        last, target = held, overlaid(before, each, takes_lower=False)
        record = Original("", 1, devices=our_devices(record, before, held, target))
        held = target
    assert record is not None
    return record, with_rows(last, held, done)


@given(stories)
def test_what_was_before_is_restored(places, story):
    record, held = killed(story)
    assert unseen_rows(places, record, story[0], held) == story[0]


@given(stories, tables)
def test_what_others_wrote_since_stays(places, story, theirs):
    record, held = killed(story)
    others = set(DEVICES) - set(record.devices)
    now = with_rows(held, theirs, others)
    restored = unseen_rows(places, record, story[0], now)
    assert restored == with_rows(story[0], theirs, others)
    # as an agent restores it that saw the file before they wrote
    assert restored == with_changes(story[0], held, now)


@given(stories, tables)
def test_a_record_that_names_no_devices_is_restored_whole(places, story, now):
    assert unseen_rows(places, Original("", 1), story[0], now) == story[0]
    assert our_devices(Original("", 1), story[0], now, story[0]) is None


@given(tables, st.sets(st.sampled_from(DEVICES)))
def test_a_device_that_is_gone_has_no_row(before, gone):
    nowhere = Places({}, sysfs=Path("/nonexistent"))
    now = with_rows(before, Table(), gone)
    assert unseen_rows(nowhere, Original("", 1, devices=DEVICES), before, now) == now


def test_a_device_whose_row_is_still_there_is_restored_though_sysfs_has_none(tmp_path):
    nowhere, before, now = Places({}, sysfs=tmp_path), Table.of({"8:0": 1}), Table.of({"8:0": 2})
    assert unseen_rows(nowhere, Original("", 1, devices=("8:0",)), before, now) == before


@given(tables, tables)
def test_differing_devices_are_those_that_a_change_names(first, second):
    assert with_rows(first, second, differing(first, second)) == second
    assert all(dict(first.rows).get(each) != dict(second.rows).get(each) for each in differing(first, second))
