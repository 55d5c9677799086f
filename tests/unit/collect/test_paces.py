"""How often each collector measures whose pace a user reads of, or knows from koordlet."""

from __future__ import annotations

import pytest

from koordebpf.collect.pod_directories import HookCollector
from koordebpf.jobs.hardware.cold_memory import ColdMemoryCollector
from koordebpf.jobs.hardware.gpu import GpuCollector
from koordebpf.strategies.block_io.run import BlockIOCollector
from koordebpf.strategies.resctrl.monitor import ResctrlMonitor
from koordebpf.units import NS_PER_S


@pytest.mark.parametrize(
    ("period_ns", "seconds"),
    [
        pytest.param(ColdMemoryCollector.period_ns, 5, id="coldpage-collector-interval"),
        pytest.param(ResctrlMonitor.period_ns, 10, id="resctrl-collector-interval"),
        pytest.param(HookCollector.period_ns, 10, id="runtime-hooks-reconcile-interval"),
        pytest.param(BlockIOCollector.period_ns, 10, id="block I/O as runtime hooks"),
    ],
)
def test_it_measures_at_the_interval_of_koordlet_or_of_what_it_shares_its_files_with(
    period_ns: int, seconds: int
) -> None:
    assert period_ns == seconds * NS_PER_S


def test_the_shortest_window_of_reports_has_twelve_samples_of_gpus() -> None:
    assert 60 * NS_PER_S // GpuCollector.period_ns == 12
