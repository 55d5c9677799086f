"""Records as kernels sent them, byte for byte, and what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koordebpf.events.layout import decode
from koordebpf.events.records import CompactionStall, OomKill, ReclaimStall, TaskMigration, ThrottleStall

CAPTURES = [json.loads(path.read_text()) for path in sorted(Path(__file__).parent.glob("ring_records_*.json"))]


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: capture["kernel"])
def test_bytes_say_what_was_known_from_elsewhere(capture: dict[str, Any]) -> None:
    # cgroup_id is the directory's inode number and tgid what fork() gave to the one who provoked the records.
    decoded = [decode(bytes.fromhex(entry["bytes"])) for entry in capture["records"]]
    assert [msgspec.to_builtins(record) for record in decoded] == [entry["record"] for entry in capture["records"]]
    assert {record.cgroup_id for record in decoded} == {capture["cgroup_id"]}
    tgids = [
        record.tgid
        for record in decoded
        if isinstance(record, ReclaimStall | OomKill | CompactionStall | ThrottleStall)
    ]
    assert tgids == [capture["tgid"]] * 4
    assert [record.pid for record in decoded if isinstance(record, TaskMigration)] == [capture["tgid"]]
    kinds = [entry["record"]["kind"] for entry in capture["records"]]
    assert sorted(kinds) == [
        *("cgroup_mkdir", "cgroup_rename", "cgroup_rmdir", "compaction", "migration"),
        *("oom_kill", "populated", "populated", "reclaim", "throttled"),
    ]
    times = [record.ts_ns for record in decoded]
    assert times == sorted(times)
