"""A collector whose looks take longer than the loop may wait: each has a thread of its own, one at a time."""

from __future__ import annotations

import abc
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from koordebpf.attribution.owner import OwnerKind
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.errors import KoordebpfError
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.state.series.kinds import SeriesKey
from koordebpf.state.series.store import NodeSeries

log = logging.getLogger(__name__)
_MOST_SAMPLES = 16384  # Why: of two looks at a node of 1,000 containers
_CLOSE_S = 1.0  # Why: a driver or kernel that hangs is left alone
P = TypeVar("P")


class ContainerCgroup(msgspec.Struct, frozen=True):
    """The cgroup of a container; `uid` is its pod's, `path` is relative to the hierarchy's root."""

    uid: str
    container_id: str
    path: str


def containers_of(watch: NodeWatch) -> list[ContainerCgroup]:
    """Return the containers of known pods, by the node's cgroups; sandboxes are none."""
    index, found = watch.index, []
    for uid, pod_cgroup in index.pod_cgroups().items():
        for cgroup_id in index.children(pod_cgroup):
            owner, path = index.owner(cgroup_id), index.path(cgroup_id)
            if owner is None or path is None or owner.kind is not OwnerKind.CONTAINER or owner.container_id is None:
                continue
            found.append(ContainerCgroup(uid, owner.container_id, path))
    return found


class ThreadedCollector(abc.ABC, Generic[P]):
    """Takes what the last look found and begins the next one. While a look waits, none begins."""

    name: str
    period_ns: int

    def __init__(self) -> None:
        self._found: deque[tuple[SeriesKey, int, float]] = deque(maxlen=_MOST_SAMPLES)
        self._supervisor = Supervisor(self.name)
        self._thread: threading.Thread | None = None
        self._problem = ""

    @abc.abstractmethod
    def prepare(self) -> P:
        """Return what a look needs of the agent, in the loop's thread."""

    @abc.abstractmethod
    def measure(self, prepared: P) -> Mapping[SeriesKey, float]:
        """Measure, in the look's own thread.

        Raises:  KoordebpfError, OSError: it was not possible; said once.
        """

    @abc.abstractmethod
    def release(self) -> None:
        """Close what the looks use; no look runs."""

    def collect(self, now_ns: int, into: NodeSeries) -> None:
        """Append what was found since the last call, and look again."""
        while self._found:
            key, t_ns, value = self._found.popleft()
            into.append(key, t_ns, value)
        if self._thread is None or not self._thread.is_alive():
            self._thread = self._supervisor.thread(functools.partial(self._run, self.prepare()))
            self._thread.start()

    def close(self) -> None:
        """Wait for the look that runs, a second at most."""
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
            if self._thread.is_alive():
                return
        self.release()

    def _run(self, prepared: P) -> None:
        try:
            found = self.measure(prepared)
        except (KoordebpfError, OSError) as error:
            if str(error) != self._problem:
                log.warning("%s: not measured: %s", self.name, error)
            self._problem = str(error)
            return
        self._problem = ""
        t_ns = time.monotonic_ns()
        self._found.extend((key, t_ns, value) for key, value in found.items())
