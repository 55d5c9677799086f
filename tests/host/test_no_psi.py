"""A kernel without pressure accounting: a request for it gets an error, and programs time the stalls all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.errors import SupportError
from koordebpf.kernel.proc.psi import NODE_MEMORY_PRESSURE, PressureFile, PsiTrigger
from tests.conftest import OTHER_MACHINE
from tests.host.conftest import MakeSignals
from tests.host.provoke import MIB, in_cgroup, set_limit, stall_of
from tests.host.test_signals_filters import read_a_file

pytestmark = pytest.mark.skipif(NODE_MEMORY_PRESSURE.exists(), reason=f"{OTHER_MACHINE}it accounts pressure")


def test_neither_the_node_nor_a_cgroup_has_pressure_and_the_remedy_is_named(memory_cgroup: Path) -> None:
    for path in (NODE_MEMORY_PRESSURE, memory_cgroup / "memory.pressure"):
        for ask in (PressureFile, PsiTrigger):
            with pytest.raises(SupportError, match="Boot with psi=1"):
                ask(path)


def test_stalls_are_timed_all_the_same(memory_cgroup: Path, make_signals: MakeSignals) -> None:
    set_limit(memory_cgroup, 8 * MIB)
    signals = make_signals()
    assert in_cgroup(memory_cgroup, read_a_file) == 0
    row = stall_of(signals, memory_cgroup)
    assert row is not None
    assert row.limit.count > 0
    assert 0 < row.limit.total_ns <= row.some_ns
    assert row.stalled == 0
