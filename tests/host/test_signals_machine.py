"""The machine's own shortage: kswapd, global reclaim, sleeps in it, the OOM killer. Only where a test may fill it."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from koordebpf.events.layout import decode_totals, kinds_mask
from koordebpf.events.records import KswapdRun, OomKill, ReclaimStall, ThrottleStall
from koordebpf.kernel.cgroup.hierarchy import cgroup_id
from koordebpf.units import PAGE_BYTES
from tests.conftest import OTHER_MACHINE
from tests.host.conftest import MakeSignals
from tests.host.provoke import MACHINE_BYTES, MIB, N, Traced, in_cgroup, records, stall_of
from tests.support.tracefs import TRACEFS

VMSTAT = Path("/proc/vmstat")
# An emulated guest; on a larger machine others would suffer.
pytestmark = pytest.mark.skipif(MACHINE_BYTES > 4096 * MIB, reason=f"{OTHER_MACHINE}it is too large to be filled")


def scanned_by_kswapd() -> int:
    return next(int(line.split()[1]) for line in VMSTAT.read_text().splitlines() if line.startswith("pgscan_kswapd "))


def fill_with_cache(traced: Traced, times: int) -> None:
    """Fill the machine with pages of a sparse file, until the trace shows `times` events of whomever."""
    before = scanned_by_kswapd()
    with tempfile.TemporaryFile(dir="/var/tmp") as file, Path("/dev/null").open("wb") as null:
        file.truncate(8 * MACHINE_BYTES)
        traced.start(only_me=False)
        while traced.seen() < times:
            # kswapd sleeps once it was not woken for a tenth of a second: nothing more while it is at work.
            if (scanned := scanned_by_kswapd()) > before:
                before = scanned
                time.sleep(0.15)
            elif not os.sendfile(null.fileno(), file.fileno(), None, MIB):
                break
        traced.stop()


def test_every_run_of_kswapd(memory_cgroup: Path, make_signals: MakeSignals, trace_instance: Path) -> None:
    signals = make_signals()
    signals.send_kinds(kinds_mask(["kswapd"]))
    before = decode_totals(signals.totals())
    traced = Traced(trace_instance, "vmscan/mm_vmscan_kswapd_sleep")
    assert in_cgroup(memory_cgroup, lambda: fill_with_cache(traced, N)) == 0
    runs = [record for record in records(signals) if isinstance(record, KswapdRun)]
    lines = traced.lines()
    assert len(lines) >= N
    # It sleeps once after boot without having been woken, and a run may begin before the trace or end after it.
    assert len(lines) - 1 <= len(runs) <= len(lines) + 1
    assert {run.nid for run in runs} == {int(line.split("nid=")[1].split()[0]) for line in lines}
    after = decode_totals(signals.totals())
    awake_ns = sum(after.kswapd_awake_ns) - sum(before.kswapd_awake_ns)
    assert awake_ns == sum(run.delta_ns for run in runs) > 0


def test_a_machine_without_memory(memory_cgroup: Path, make_signals: MakeSignals, trace_instance: Path) -> None:
    signals = make_signals()
    signals.send_kinds(kinds_mask(["oom_kill", "throttled", "reclaim"]))
    signals.send_only([cgroup_id(memory_cgroup)])
    throttled = TRACEFS / "events/vmscan/mm_vmscan_throttled"
    traced = Traced(trace_instance, "vmscan/mm_vmscan_throttled" if throttled.exists() else "oom/mark_victim")

    def fill() -> None:
        Path("/proc/self/oom_score_adj").write_text("1000")
        traced.start()
        held = []
        while True:
            held.append(bytearray(16 * MIB))

    assert os.waitstatus_to_exitcode(in_cgroup(memory_cgroup, fill)) == -9
    heard = records(signals)
    (kill,) = [record for record in heard if isinstance(record, OomKill)]
    assert (kill.is_global, kill.limit_id, kill.cgroup_id) == (True, 0, cgroup_id(memory_cgroup))
    assert kill.anon_rss_pages * PAGE_BYTES > MACHINE_BYTES // 2
    reclaims = [record for record in heard if isinstance(record, ReclaimStall)]
    assert reclaims
    assert all(record.is_global and record.limit_id == 0 for record in reclaims)
    row = stall_of(signals, memory_cgroup)
    assert row is not None
    assert row.global_.count == len(reclaims)
    assert row.limit.count == 0
    if throttled.exists():
        sleeps = [record for record in heard if isinstance(record, ThrottleStall)]
        assert len(sleeps) == len(traced.lines()) == row.throttled.count
        assert all(record.is_global for record in sleeps)
    traced.enable.write_text("0")
