"""The sink that judges shadow configurations on the agent's rounds."""

from __future__ import annotations

import statistics
import time
from collections import deque

from koordebpf.clock import Clock, SystemClock
from koordebpf.decision.what_if.shadow import Shadows
from koordebpf.decision.what_if.week import ShadowDay, ShadowWeek
from koordebpf.store.shadow import WeekKeeper
from koordebpf.store.sink import AgentStopped, Event, MemoryReleased, OomKilled, RoundEnded
from koordebpf.units import NS_PER_S

_KEPT_EVERY_NS = 60 * NS_PER_S  # Why: so much is lost by a SIGKILL
_ALL = "all"  # days as one
_RELEASES = 64  # of which the median counts


class ShadowSink:
    """Judges each round after it was carried out: it delays no eviction.

    A round that cannot be judged is an error of this sink.

    Args:
        shadows: the configurations.
        keeper: keeps the week; None: nothing is kept.
        node_cgroup_id: the cgroup that is the node; None: the machine is.
        clock: of days.
    """

    name = "shadow"
    takes = (RoundEnded, OomKilled, MemoryReleased, AgentStopped)

    def __init__(
        self,
        shadows: Shadows,
        keeper: WeekKeeper | None,
        node_cgroup_id: int | None,
        clock: Clock = SystemClock(),  # noqa: B008 - without state
    ) -> None:
        self._before = ShadowWeek()  # but for what was counted since it was kept
        self.cpu_s = 0.0
        self._shadows = shadows
        self._keeper = keeper
        self._node_cgroup_id = node_cgroup_id
        self._clock = clock
        self._kept_ns = 0
        self._released_ns: deque[int] = deque(maxlen=_RELEASES)

    def publish(self, event: Event) -> None:
        """Take one event."""
        match event:
            case RoundEnded(tick, view, decision):
                started_s = time.thread_time()
                self._shadows.observe(tick, view, decision)
                self.cpu_s += time.thread_time() - started_s
                if view.now_ns - self._kept_ns >= _KEPT_EVERY_NS:
                    self._keep(view.now_ns)
            case OomKilled(record):
                if record.is_global or (self._node_cgroup_id is not None and record.limit_id == self._node_cgroup_id):
                    self._shadows.oom_killed()
            case MemoryReleased(entry, now_ns):
                self._released_ns.append(now_ns - entry.since_ns)
                self._shadows.released_after(round(statistics.median(self._released_ns)))
            case AgentStopped(now_ns):
                self._keep(now_ns)
                if self._keeper is not None:
                    self._keeper.close()

    def total(self) -> ShadowDay:
        """Return what they came to since the start; from any thread."""
        return self._before.with_day(self._shadows.counted(_ALL)).days[0]

    def _keep(self, now_ns: int) -> None:
        self._kept_ns = now_ns
        day = self._shadows.drain(time.strftime("%Y-%m-%d", time.gmtime(self._clock.wall_s())))
        self._before = self._before.with_day(ShadowDay(day=_ALL, node=day.node, shadows=day.shadows))
        if self._keeper is not None:
            self._keeper.add(day, self._shadows.problems)
