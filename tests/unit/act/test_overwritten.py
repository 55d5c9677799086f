"""Which files of slices were written since, by inotify's word; plain files in place of a cgroup's."""

from __future__ import annotations

import logging
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.overwritten import Overwritten
from koordebpf.act.writer.places import Held
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.reconcile import FileKey

BE, POD = ("be.slice", CgroupFile.CPU_QUOTA), ("be.slice/pod", CgroupFile.CPU_QUOTA)


class Files:
    def __init__(self, root: Path) -> None:
        self.root = root

    def held(self, *keys: FileKey, is_ours: bool = True) -> dict[FileKey, Held]:
        return {key: self._held(key, is_ours) for key in keys}

    def _held(self, key: FileKey, is_ours: bool) -> Held:
        path = self.root / key[0] / key[1].value
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        return Held(path, "", path.stat().st_ino, 0, 0, is_ours=is_ours)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def overwritten() -> Iterator[Overwritten]:
    with Overwritten() as watched:
        yield watched


def is_readable(overwritten: Overwritten) -> bool:
    return bool(select.select([overwritten], [], [], 0)[0])


def test_a_file_of_a_slice_is_looked_at_when_it_is_watched_and_when_it_was_written(
    files: Files, overwritten: Overwritten
) -> None:
    held = files.held(BE, POD)
    assert overwritten.poll(held) == [BE]
    assert overwritten.poll(held) == []
    for each in held.values():
        each.path.write_text("1")
    assert is_readable(overwritten)
    overwritten.see()
    assert overwritten.is_due
    assert overwritten.poll(held) == [BE]
    assert (overwritten.is_due, is_readable(overwritten), overwritten.poll(held)) == (False, False, [])


def test_what_is_not_ours_or_not_held_any_more_is_not_watched(files: Files, overwritten: Overwritten) -> None:
    theirs = files.held(BE, is_ours=False)
    assert overwritten.poll(theirs) == []
    held = files.held(BE)
    assert overwritten.poll(held) == [BE]
    assert overwritten.poll({}) == []
    held[BE].path.write_text("1")
    assert not is_readable(overwritten) or overwritten.poll({}) == []
    assert overwritten.poll(held) == [BE]  # as one that is watched from now on


def test_a_cgroup_that_is_made_again_is_watched_again(files: Files, overwritten: Overwritten) -> None:
    held = files.held(BE)
    overwritten.poll(held)
    held[BE].path.rename(held[BE].path.with_name("kept"))  # so that its inode is not given again
    again = files.held(BE)
    assert overwritten.poll(again) == [BE]
    again[BE].path.write_text("1")
    assert overwritten.poll(again) == [BE]


def test_a_file_that_is_gone_is_left_out_and_watched_once_it_is_there(files: Files, overwritten: Overwritten) -> None:
    held = files.held(BE)
    overwritten.poll(held)
    held[BE].path.unlink()
    assert overwritten.poll(held) == []
    assert overwritten.poll(held) == []
    assert overwritten.poll(files.held(BE)) == [BE]


def test_so_many_are_watched(files: Files, overwritten: Overwritten) -> None:
    held = files.held(*((f"{number}.slice", CgroupFile.CPU_QUOTA) for number in range(300)))
    assert len(overwritten.poll(held)) == 256
    assert overwritten.poll(held) == []


def test_what_cannot_be_watched_is_said_once(
    files: Files, overwritten: Overwritten, caplog: pytest.LogCaptureFixture
) -> None:
    held = files.held(BE)
    held[BE].path = files.root / ("x" * 300)
    with caplog.at_level(logging.WARNING):
        assert [overwritten.poll(held) for _ in range(3)] == [[], [], []]
    (record,) = caplog.records
    assert "cannot be watched: File name too long" in record.message
