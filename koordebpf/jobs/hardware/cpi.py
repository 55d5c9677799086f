"""Cycles and instructions of each container over a window, by perf events: what cycles per instruction comes from.

The counters are open for the window only, 10 s in each minute: every event and CPU takes an fd, and while they are open
each switch between cgroups costs a little more. Where there are more containers than fds, the others come in the next
minute. A thread opens and reads them; the loop's thread only takes what it found.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from koordebpf.errors import CgroupGone, KoordebpfError, SupportError
from koordebpf.jobs.hardware.loop import ContainerCgroup, containers_of
from koordebpf.kernel.cgroup.hierarchy import find_perf_event_mount
from koordebpf.kernel.cgroup.perf_events import CYCLES, INSTRUCTIONS, CgroupCounters, Event
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kernel.proc.cpu_topology import CpuTopologyFiles
from koordebpf.runner.context import NodeContext
from koordebpf.state.series.kinds import CONTAINER_CPI
from koordebpf.state.series.store import NodeSeries
from koordebpf.units import NS_PER_S

log = logging.getLogger(__name__)

MOST_FDS = 8192  # Why: 330 containers on 12 CPUs; the agent's own limit is far above it
PROPERTIES = ("cycle", "instruction")  # koordlet's cpi_resource


def open_job(node: NodeContext) -> CpiCollector | None:
    """Return what counts cycles per instruction; None: nothing can be counted here."""
    mount = find_perf_event_mount()
    if mount is None:
        log.warning("cycles per instruction are not counted: no hierarchy of cgroups has perf events")
        return None
    topology = node.stack.enter_context(CpuTopologyFiles())
    watch = node.measuring.watch
    return CpiCollector(lambda: containers_of(watch), lambda: topology.read().cpus, mount)


class CpiCollector:
    """`CPICollector` of koordlet: container_cpi of every container, once a period.

    Source:  koordinator pkg/koordlet/metricsadvisor/collectors/performance.
    """

    name = "cycles per instruction"
    period_ns = NS_PER_S  # Why: it only takes what its thread found

    def __init__(
        self,
        containers: Callable[[], Sequence[ContainerCgroup]],
        cpus: Callable[[], Sequence[int]],
        mount: Path,
        *,
        events: tuple[Event, Event] = (CYCLES, INSTRUCTIONS),
        every_ns: int = 60 * NS_PER_S,
        window_ns: int = 10 * NS_PER_S,
    ) -> None:
        """Begin; the first window opens at the first call of `collect`.

        Args:
            containers: those of now, asked in the loop's thread.
            cpus: those that are online.
            mount: of the hierarchy of perf_event.
            events: what is counted, by koordlet cycles and instructions.
            every_ns: from the begin of one window to that of the next.
            window_ns: for how long is counted.
        """
        self._containers = containers
        self._cpus = cpus
        self._mount = mount
        self._events = events
        self._times_ns = (every_ns, window_ns)
        self._due_ns = 0
        self._found: deque[tuple[int, ContainerCgroup, tuple[int, ...]]] = deque(maxlen=MOST_FDS)
        self._closing = threading.Event()
        self._supervisor = Supervisor("cpi")
        self._thread: threading.Thread | None = None
        self._next = 0  # of the containers, where one window could not have all
        self._problem = ""

    def collect(self, now_ns: int, into: NodeSeries) -> None:
        """Append what the last window counted; open one when it is time."""
        while self._found:
            t_ns, one, counts = self._found.popleft()
            for resource, count in zip(PROPERTIES, counts, strict=True):
                into.append((CONTAINER_CPI, one.uid, one.container_id, resource), t_ns, count)
        if now_ns < self._due_ns or (self._thread is not None and self._thread.is_alive()):
            return
        self._due_ns = now_ns + self._times_ns[0]
        cpus = self._cpus()
        chosen = self._chosen(self._containers(), len(cpus))
        self._thread = self._supervisor.thread(functools.partial(self._count, chosen, cpus))
        self._thread.start()

    def close(self) -> None:
        """End a window that is open."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _chosen(self, containers: Sequence[ContainerCgroup], cpus: int) -> Sequence[ContainerCgroup]:
        most = max(MOST_FDS // (len(self._events) * max(cpus, 1)), 1)
        if len(containers) <= most:
            return containers
        first = self._next % len(containers)
        self._next = first + most
        return [*containers[first:], *containers[:first]][:most]

    def _count(self, containers: Sequence[ContainerCgroup], cpus: Sequence[int]) -> None:
        opened: list[tuple[ContainerCgroup, CgroupCounters]] = []
        try:
            for one in containers:
                try:
                    opened.append((one, CgroupCounters(self._mount / one.path, self._events, cpus)))
                except CgroupGone:
                    continue
                except KoordebpfError as error:
                    self._report(error)
                    if isinstance(error, SupportError):
                        return
            if opened:
                self._problem = ""
            elif containers and not self._problem:
                self._report(f"no container has a cgroup below {self._mount}: mount the hierarchy of perf_event")
            for _, counters in opened:
                counters.enable()
            self._closing.wait(self._times_ns[1] / NS_PER_S)
            for _, counters in opened:
                counters.disable()
            t_ns = time.monotonic_ns()
            for one, counters in opened:
                if (counts := counters.read()) is not None:
                    self._found.append((t_ns, one, counts))
        except OSError as error:
            self._report(error)
        finally:
            for _, counters in opened:
                counters.close()

    def _report(self, error: Exception | str) -> None:
        if str(error) != self._problem:
            log.warning("cycles per instruction are not counted: %s", error)
        self._problem = str(error)
