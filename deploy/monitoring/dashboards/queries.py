"""Parts of queries that both pages have."""

from __future__ import annotations

from grafana import RATE

_HERE = 'job="koordebpf",node=~"$node"'  # of one node, too: its name is all of the expression


def on(metric: str, more: str = "") -> str:
    """Return the series of koordebpf_<metric> of the chosen nodes."""
    return of(f"koordebpf_{metric}", more)


def of(metric: str, more: str = "") -> str:
    """Return a metric's series of the chosen nodes."""
    return f"{metric}{{{_HERE}{f',{more}' if more else ''}}}"


def recorded(name: str) -> str:
    """Return what rules.yaml records for each of the chosen nodes."""
    return f'node:koordebpf_{name}{{node=~"$node"}}'


def of_agents(metric: str, window: str = "") -> str:
    """Return what the agents' processes say of themselves, without the controllers'; with a window their rate."""
    series = f"rate({of(metric)}{window})" if window else of(metric)
    return f"({series} and on (instance) {on('dry_run')})"


def quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    """Return queries for the median and the 99th percentile over an hour, with their legends."""
    inner = f"sum by (le) (rate({on(f'{metric}_bucket')}[1h]))"
    return tuple((f"histogram_quantile({each}, {inner})", f"p{each * 100:.0f}") for each in (0.5, 0.99))


STALLED = on("pod_stall_seconds_total", 'scope="global"')
CHARGED = on("stall_charged_seconds_total")
DONE = on("evictions_total", 'result="done"')
DECIDED_P99 = f"histogram_quantile(0.99, sum by (le) (increase({on('crossing_to_decision_seconds_bucket')}[1d])))"
BY_BE = f"rate({on('ls_stall_by_be_seconds_total')}[5m])"  # seconds in a second
EVICTED_1D = f"round(sum(increase({DONE}[1d])))"
# A closed guard is a series; an open one has none.
CLOSED = f"sum by (node) ({on('guard_closed')}) > 0 or max by (node) ({on('lost_signals')}) > 0"
YIELD_MEMORY = f"{on('be_memory_bytes')} / ({on('batch_allocatable_bytes')} > 0)"
YIELD_CPU = f"rate({on('be_cpu_seconds_total')}[5m]) / ({on('batch_allocatable_cores')} > 0)"
BE_CPU = f"rate({on('be_cpu_seconds_total')}{RATE})"
