"""Whether another program writes the status of this node's NodeMetric: koordlet, as a rule. Pure.

The API server notes who wrote last, and when, in metadata.managedFields. Its clock and the node's may differ: after the
first look only changes count, by the node's own clock.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Final

from koordebpf.kube.cache.own_node_metric import ManagedFields, OwnNodeMetric
from koordebpf.units import NS_PER_S

INTERVALS: Final = 2  # without a report of its own, after which it counts as ended


class OtherWriter:
    """Remembers when another program has reported last.

    Args:
        manager: the name under which this agent writes, and agents before it wrote.
    """

    def __init__(self, manager: str) -> None:
        self.name = ""  # of the other one
        self.last_ns: int | None = None  # when it was seen to report
        self._manager = manager
        self._own: deque[str] = deque(maxlen=16)  # times of reports that this agent sent, with an answer or without
        self._update_time: str | None = None
        self._written = ""  # when the other one wrote, by the API server's clock
        self._has_looked = False

    def sent(self, update_time: str) -> None:
        """Note that this agent sends a report of that time; it may arrive late, or without an answer."""
        self._own.append(update_time)

    def look(self, found: OwnNodeMetric, now_ns: int, wall_s: float, interval_ns: int) -> None:
        """Take note of what the server has now."""
        is_first, self._has_looked = not self._has_looked, True
        time = found.update_time
        if time is None or time == self._update_time:
            return
        self._update_time = time
        if time in self._own:
            return
        # Times are in whole seconds: in one with both, the report that this agent did not send is the other's.
        newest = max(
            (each for each in found.metadata.managedFields if each.subresource == "status"),
            key=lambda each: (each.time, each.manager != self._manager),
            default=ManagedFields(),
        )
        if newest.manager in ("", self._manager) or newest.time == self._written:
            return
        self._written = newest.time
        if is_first and wall_s - _seconds(newest.time) > INTERVALS * interval_ns / NS_PER_S:
            return
        self.name, self.last_ns = newest.manager, now_ns

    def is_active(self, now_ns: int, interval_ns: int) -> bool:
        """Tell whether it has reported within two intervals, so that the object is left to it."""
        return self.last_ns is not None and now_ns < self.until_ns(interval_ns)

    def until_ns(self, interval_ns: int) -> int:
        """Return when the object is no longer left to it, if it reports no more."""
        return (self.last_ns or 0) + INTERVALS * interval_ns


# Of a time that cannot be read: long ago.
def _seconds(time: str) -> float:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return 0.0
