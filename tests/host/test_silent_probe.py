"""A program that is attached and sees nothing of what the kernel counts, as one that a live patch cut off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koordebpf.kernel.proc.vmstat import Vmstat
from koordebpf.kernel.signals import GLOBAL_STALLS
from tests.conftest import OTHER_MACHINE
from tests.host.conftest import MakeSignals
from tests.host.provoke import MACHINE_BYTES, MIB, N, in_cgroup
from tests.host.variants import use_changed_programs

HEADS = [f"TRACEPOINT(mm_vmscan_direct_reclaim_{which})\n{{\n" for which in ("begin", "end")]


def without_global_reclaim(text: str) -> str:
    for head in HEADS:
        text = text.replace(head, f"{head}	if (bpf_ktime_get_ns())\n		return 0;\n")
    return text


def fill() -> None:
    Path("/proc/self/oom_score_adj").write_text("1000")
    held = []
    while True:
        held.append(bytearray(16 * MIB))


@pytest.mark.slow
def test_a_program_that_falls_silent_is_noticed(
    memory_cgroup: Path, make_signals: MakeSignals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_changed_programs(tmp_path, monkeypatch, without_global_reclaim)  # first: what is built here, guests need not
    if MACHINE_BYTES > 4096 * MIB:
        pytest.skip(f"{OTHER_MACHINE}it is too large to be filled")
    signals = make_signals()
    assert next(source for source in signals.sources if source.signal == GLOBAL_STALLS).works
    assert signals.lost_probes() == []
    vmstat = Vmstat()
    try:
        before = vmstat.read().allocstall or 0
        while (vmstat.read().allocstall or 0) - before < N:
            assert os.waitstatus_to_exitcode(in_cgroup(memory_cgroup, fill)) == -9
    finally:
        vmstat.close()
    (lost,) = signals.lost_probes()
    assert (lost.signal, lost.works) == (GLOBAL_STALLS, False)
    assert lost.reason.startswith("the kernel counted ")
    assert lost.reason.endswith("× allocstall and the program saw none")
    assert lost.remedy == "Restart the agent."
