"""Work beside the ticks, each at its own period: one module a job, and one line in `JOBS`.

A job is a `Collector`: `collect` runs in the loop's thread and must return within a millisecond. What asks the API
server has a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from koordebpf.collect.collector import Collector
from koordebpf.jobs.hardware.open import open_cold_memory, open_cpi, open_gpu
from koordebpf.jobs.node_metric.open import open_node_metric
from koordebpf.jobs.node_topology.open import open_topology_report
from koordebpf.jobs.nri.open import open_nri_plugin, open_runtime_proxy_hooks
from koordebpf.jobs.prediction.open import open_prediction
from koordebpf.jobs.series.keeper import open_series_keeper
from koordebpf.jobs.usage_series.open import open_pressure_series, open_usage_series
from koordebpf.runner.context import NodeContext

# Each returns None where its feature gate is off, and loads nothing then. Those that measure come before those that
# read what was measured.
JOBS: tuple[Callable[[NodeContext], Collector | None], ...] = (
    open_usage_series,
    open_pressure_series,
    open_series_keeper,
    open_cpi,
    open_gpu,
    open_cold_memory,
    open_prediction,
    open_node_metric,
    open_topology_report,
    open_nri_plugin,
    open_runtime_proxy_hooks,
)


def open_jobs(node: NodeContext) -> list[Collector]:
    """Open those whose feature gates are on."""
    return [job for each in JOBS if (job := each(node)) is not None]
