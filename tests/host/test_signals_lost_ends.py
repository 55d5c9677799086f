"""Ends of stalls that no program saw: each is counted, and no task stays stalled because of it."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from koordebpf.events.layout import decode_totals
from koordebpf.events.records import Totals
from koordebpf.kernel.bpf.maps import SignalMaps
from koordebpf.kernel.cgroup.hierarchy import cgroup_id
from koordebpf.kernel.signals import Backend
from koordebpf.units import NS_PER_S
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.conftest import BACKEND, MakeSignals, WatchNode
from tests.host.provoke import Traced, reclaims, set_limit, stall_of, stalls_of, start_in
from tests.host.test_signals_filters import read_a_file
from tests.support.bpf_ids import OtherMap
from tests.support.nodes import MIB, NodeCgroup

AT_ONCE = 5
# Every third end of reclaim, and of a section, is as if the kernel had passed over its program.
ENDS = ("TRACEPOINT(mm_vmscan_memcg_reclaim_end)\n{\n", "FUNCTION(psi_memstall_leave)\n{\n")
PASSED_OVER = "	if (bpf_get_prandom_u32() % 3 == 0)\n		return 0;\n"


def without_every_third_end(text: str) -> str:
    for head in ENDS:
        text = text.replace(head, f"{head}{PASSED_OVER}")
    return text


def totals_of(signals: Backend) -> Totals:
    return decode_totals(signals.totals())


def no_task_is_stalled(signals: Backend) -> bool:
    is_free = totals_of(signals).node_stalled == 0
    return is_free and {row.stalled for row in stalls_of(signals).values()} <= {0}


def reclaim_side_by_side(cgroup: Path) -> None:
    set_limit(cgroup, 24 * MIB)
    pids = [start_in(cgroup, read_a_file) for _ in range(AT_ONCE)]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * AT_ONCE


def test_after_five_at_once_no_pod_is_stalled_and_what_was_lost_is_counted(
    memory_cgroup: Path, make_signals: MakeSignals, trace_instance: Path
) -> None:
    signals = make_signals()
    before = totals_of(signals)
    traced = Traced(trace_instance, "vmscan/mm_vmscan_memcg_reclaim_end")
    (trace_instance / "options" / "event-fork").write_text("1")  # whom it starts, too
    traced.start()
    reclaim_side_by_side(memory_cgroup)
    ended = traced.seen()
    traced.stop()
    assert ended >= AT_ONCE
    until(lambda: no_task_is_stalled(signals), "the end of every stall")
    after = totals_of(signals)
    missed = after.missed_runs - before.missed_runs
    counted = reclaims(stall_of(signals, memory_cgroup))
    print(f"{ended} reclaims, {counted} counted, {missed} runs missed, {after.lost_ends - before.lost_ends} ends lost")
    assert counted <= ended
    assert ended - counted <= missed + after.ignored - before.ignored
    assert after.lost_ends - before.lost_ends <= missed


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "co-re", reason=f"{OTHER_MACHINE}the programs that are changed are co-re's")
def test_ends_that_are_passed_over_leave_no_task_stalled(node: NodeCgroup, watch_node: WatchNode) -> None:
    pods = [node.add_pod(f"pod-{number}")[0] for number in range(2)]
    watch = watch_node(without_every_third_end)
    for pod in pods:
        reclaim_side_by_side(pod)
    assert totals_of(watch.signals).lost_ends > 0
    until(lambda: no_task_is_stalled(watch.signals), "the end of every stall")
    # Who stalls from now on is counted as ever.
    before = stalls_of(watch.signals)[cgroup_id(pods[0])]
    reclaim_side_by_side(pods[0])
    after = stalls_of(watch.signals)[cgroup_id(pods[0])]
    assert after.some_ns > before.some_ns
    until(lambda: no_task_is_stalled(watch.signals), "the end of every stall")
    # What is kept of threads that never waited again is dropped in the end.
    with contextlib.ExitStack() as opened:
        maps = {}
        for name in ("totals", "settings", "stalls", "start"):
            maps[name] = opened.enter_context(contextlib.closing(OtherMap(os.getpid(), name))).map
        opened.enter_context(contextlib.closing(SignalMaps(maps))).expire_stalls(time.monotonic_ns() + 3600 * NS_PER_S)
        assert not list(maps["start"].items(key_bytes=4))
