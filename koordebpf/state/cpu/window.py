"""The averages of CPU use that CPU eviction judges, out of the node's series."""

from __future__ import annotations

from koordebpf.state.cpu.measured import CpuWindow
from koordebpf.state.series.kinds import BE_CPU, BE_CPU_LIMIT, BE_CPU_REQUEST, NODE_CPU, SeriesKey
from koordebpf.state.series.node import EVERY_NS, LONGEST_NS, NODE, NodeSeries

_SAMPLED = ("cpu_sampled", NODE)  # 1 each time that the rest was sampled, as far as it was known
_NODE_USED = (NODE_CPU,)
_ROUNDING = 0.05  # of a millicore: so much may a mean of cores be off


def append_cpu(
    series: NodeSeries,
    now_ns: int,
    *,
    node_used: int | None,
    be_used: int | None,
    be_request: int | None,
    be_limit: int | None,
) -> None:
    """Append one sample, in millicpu; None: not known. One that comes too soon is dropped as a whole."""
    if not series.append(_SAMPLED, now_ns, 1):
        return
    found = {_NODE_USED: node_used, BE_CPU: be_used, BE_CPU_REQUEST: be_request, BE_CPU_LIMIT: be_limit}
    series.append_round(now_ns, {key: value / 1000 for key, value in found.items() if value is not None})


def cpu_window(series: NodeSeries, now_ns: int, window_ns: int) -> CpuWindow:
    """Return the averages of what was sampled within the window; each sample stands for `EVERY_NS`.

    A value that less than a third of the window has is not known, as in koordlet, however much there is of others.
    """
    window_ns = min(max(window_ns, EVERY_NS), LONGEST_NS)
    enough = -(-window_ns // (3 * EVERY_NS))

    def average(key: SeriesKey) -> int | None:
        mean = series.query(key, now_ns, window_ns, "avg")
        if mean is None or samples(key) < enough:
            return None
        return int(mean * 1000 + _ROUNDING)

    def samples(key: SeriesKey) -> int:
        return int(series.query(key, now_ns, window_ns, "count") or 0)

    return CpuWindow(
        window_ns=window_ns,
        covered_ns=min(samples(_SAMPLED) * EVERY_NS, window_ns),
        node_used_millicpu=average(_NODE_USED),
        be_used_millicpu=average(BE_CPU),
        be_request_millicpu=average(BE_CPU_REQUEST),
        be_limit_millicpu=average(BE_CPU_LIMIT),
    )
