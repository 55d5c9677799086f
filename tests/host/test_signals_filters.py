"""What user space asks for is sent and nothing else; what is not sent is counted all the same."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from koordebpf.errors import SupportError
from koordebpf.events.layout import decode_totals, kinds_mask
from koordebpf.events.records import CgroupMkdir, CgroupRmdir, ReclaimStall
from koordebpf.kernel.cgroup.hierarchy import cgroup_id
from tests.host.conftest import MakeSignals, make_child
from tests.host.provoke import MIB, N, in_cgroup, records, set_limit, stall_of


def read_a_file() -> None:
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        file.truncate(32 * MIB)
        while file.read(MIB):
            pass


def test_only_the_kinds_that_are_asked_for(memory_cgroup: Path, make_signals: MakeSignals) -> None:
    child = make_child(memory_cgroup, "container")
    set_limit(child, 8 * MIB)
    signals = make_signals()
    signals.send_kinds(kinds_mask(["cgroup_rmdir"]))
    records(signals)  # what others did before
    before = decode_totals(signals.totals())
    assert in_cgroup(child, read_a_file) == 0
    for number in range(N):
        (memory_cgroup / f"pod{number}").mkdir()
        (memory_cgroup / f"pod{number}").rmdir()
    heard, after = records(signals), decode_totals(signals.totals())
    assert {type(record) for record in heard} == {CgroupRmdir}
    assert len([r for r in heard if isinstance(r, CgroupRmdir) and r.parent_id == cgroup_id(memory_cgroup)]) == N
    assert after.births - before.births >= N
    row = stall_of(signals, child)
    assert row is not None
    assert after.episodes - before.episodes >= row.limit.count > 0

    signals.send_kinds(kinds_mask(["cgroup_mkdir"]))
    records(signals)
    (memory_cgroup / "later").mkdir()
    assert {type(record) for record in records(signals)} == {CgroupMkdir}


def test_only_the_cgroups_that_are_asked_for(memory_cgroup: Path, make_signals: MakeSignals) -> None:
    wanted, other = (make_child(memory_cgroup, name) for name in ("wanted", "other"))
    for child in (wanted, other):
        set_limit(child, 8 * MIB)
    signals = make_signals()
    signals.send_kinds(kinds_mask(["reclaim"]))
    signals.send_only([cgroup_id(wanted)])
    records(signals)
    for child in (wanted, other):
        assert in_cgroup(child, read_a_file) == 0
    heard = records(signals)
    assert heard
    assert {record.cgroup_id for record in heard} == {cgroup_id(wanted)}
    rows = [stall_of(signals, child) for child in (wanted, other)]
    assert all(row and row.limit.count for row in rows)

    signals.send_only([cgroup_id(other)])
    assert in_cgroup(wanted, read_a_file) == 0
    assert records(signals) == []
    signals.send_only(None)
    assert in_cgroup(wanted, read_a_file) == 0
    assert {r.cgroup_id for r in records(signals) if isinstance(r, ReclaimStall)} >= {cgroup_id(wanted)}


def test_more_cgroups_than_the_filter_holds(make_signals: MakeSignals) -> None:
    signals = make_signals()
    with pytest.raises(SupportError, match="holds 4096"):
        signals.send_only(range(1, 4098))
