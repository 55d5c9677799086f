"""Whether the CPUs that pods share have room for bursts. Pure."""

from __future__ import annotations

from typing import Literal

from koordebpf.state.cpu_burst.measured import BurstView

NodeState = Literal["idle", "cooling", "overload", "unknown"]

_COOLING_PERCENT = 90  # of the threshold


def node_state(view: BurstView) -> tuple[NodeState, int | None]:
    """Return the state of the share pool, and its use in percent; None: not known.

    idle: bursts may begin and grow. cooling: those that there are stay. overload: they shrink. unknown: as cooling.
    The pool is what LSE and LSR pods do not request, its use what they and best-effort pods do not use.

    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpuburst, getNodeStateForBurst.
    """
    measured, strategy = view.measured, view.measured.strategy
    threshold = strategy.sharePoolThresholdPercent if strategy is not None else None
    if measured.node_used_millicpu is None or not measured.cpus or threshold is None:
        return "unknown", None
    total = measured.cpus * 1000 - view.apart_millicpu
    used = max(measured.node_used_millicpu - measured.apart_used_millicpu, 0)
    percent = used * 100 / total if total > 0 else 100.0
    if percent >= threshold:
        return "overload", int(percent)
    return ("cooling" if percent * 100 >= threshold * _COOLING_PERCENT else "idle"), int(percent)
