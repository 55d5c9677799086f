"""Freezing as a file: its name and words on each cgroup version, and that only what is asked for is undone."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.act.writer.change import WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.errors import KernelFileError
from koordebpf.kernel.cgroup.files import CgroupFile, format_value, parse_value
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.policy.reconcile import CgroupWrite, DesiredState

FREEZE = CgroupFile.FREEZE


@pytest.mark.parametrize(("version", "text", "value"), [(1, "FROZEN", 1), (1, "THAWED", 0), (2, "1", 1), (2, "0", 0)])
def test_it_is_written_and_read_in_the_words_of_its_version(version, text, value):
    assert format_value(FREEZE, version, value) == text
    assert parse_value(FREEZE, version, f"{text}\n", "pod") == value


def test_a_cgroup_that_still_freezes_counts_as_frozen_and_garbage_as_an_error():
    assert parse_value(FREEZE, 1, "FREEZING\n", "pod") == 1
    with pytest.raises(KernelFileError, match="pod"):
        parse_value(FREEZE, 1, "MELTING\n", "pod")


def test_cgroup_v2_freezes_where_its_memory_is():
    v1, v2 = Path("/cgroup/freezer"), Path("/cgroup")
    places = Places({"memory": ControllerMount(2, v2)})
    assert places.locate(("be/pod", FREEZE)) == v2 / "be/pod/cgroup.freeze"
    places = Places({"memory": ControllerMount(1, v1.parent), "freezer": ControllerMount(1, v1)})
    assert places.locate(("be/pod", FREEZE)) == v1 / "be/pod/freezer.state"
    assert Places({"memory": ControllerMount(1, v1.parent)}).locate(("be/pod", FREEZE)) is None


# Directories in place of cgroups; numbers of one length, since a file of a disk keeps what is behind the last byte.
def test_one_kind_of_file_is_restored_and_the_other_is_still_held(tmp_path: Path):
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod/cgroup.freeze").write_text("0\n")
    (tmp_path / "pod/memory.high").write_text("8192\n")
    places = Places({"memory": ControllerMount(2, tmp_path)})
    writes = (CgroupWrite("pod", CgroupFile.MEMORY_HIGH, 4096), CgroupWrite("pod", FREEZE, 1))
    with Journal(tmp_path / "journal") as journal:
        writer = CgroupWriter(places, journal, enforce=True)
        writer.apply(DesiredState("a test", writes), 0)
        report = writer.restore(1, {FREEZE})
        assert [(change.path, change.result) for change in report.changes] == [
            (str(tmp_path / "pod/cgroup.freeze"), WriteResult.WRITTEN)
        ]
        assert (tmp_path / "pod/cgroup.freeze").read_text() == "0\n"
        assert (tmp_path / "pod/memory.high").read_text().startswith("4096")
        assert list(journal.originals) == [("pod", CgroupFile.MEMORY_HIGH)]
