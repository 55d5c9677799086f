"""A journal that was cut off at any byte has what was on disk before: all lines but the torn one."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from koordebpf.act.writer.journal import Journal, read_journal
from koordebpf.act.writer.places import Original
from koordebpf.errors import ActuationError
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.io.table import field

keys = st.tuples(st.sampled_from(["be", "be/pod", "be/pod/\udcff"]), st.sampled_from(list(CgroupFile)))
devices = st.none() | st.lists(st.sampled_from(["8:0", "8:16"]), unique=True).map(tuple)
texts = st.text(max_size=20) | st.binary(max_size=20).map(field)  # a file of the kernel may hold any bytes
originals = st.builds(Original, texts, st.integers(1, 2**64 - 1), devices=devices)
# Each is recorded or, with None, forgotten.
histories = st.lists(st.tuples(keys, st.none() | originals), min_size=1, max_size=12)


@given(histories, st.data())
def test_a_cut_takes_the_torn_line_and_nothing_else(history, data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        states = [{}]
        sizes = []
        with Journal(path, boot_id="boot") as journal:
            sizes.append(path.stat().st_size)
            for key, original in history:
                if original is None:
                    journal.forget([key])
                else:
                    journal.record({key: original})
                states.append(dict(journal.originals))
                sizes.append(path.stat().st_size)
            whole = path.read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        path.write_bytes(whole[:cut])
        expected = next((state for size, state in zip(sizes[::-1], states[::-1], strict=True) if size <= cut), {})
        with Journal(path, boot_id="boot") as journal:
            assert journal.originals == expected
            assert journal.lost_lines == 0
            # And what is written next is read back.
            journal.record({("new", CgroupFile.CPU_QUOTA): Original("-1\n", 1)})
            assert read_back(path) == expected | {("new", CgroupFile.CPU_QUOTA): Original("-1\n", 1)}


def read_back(path):
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    with Journal(copy, boot_id="boot") as journal:
        return dict(journal.originals)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_empty_journal_or_an_error(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        path.write_bytes(data)
        try:
            assert read_journal(path)[0] == {}
        except ActuationError:
            assert path.read_bytes() == data
