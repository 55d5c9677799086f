"""Keeps this node's NodeResourceTopology as it is to be, from one thread, however long the API server takes.

The node is looked at when something is noted and once a minute; the object is read when what it is to say changes, when
another component changed it, and every few minutes besides. It is written only where a managed field differs.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Protocol

import msgspec

from koordebpf.errors import ConfigError, KubeBusy, KubeConflict, KubeDenied, KubeError
from koordebpf.jobs.node_topology.merge import Object, difference, differs_in_annotations, merged, new_topology
from koordebpf.jobs.node_topology.report import NodeInfo, Report, TopologyInput, topology_report
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kube.cache.objects import Node, NodeResourceTopology
from koordebpf.kube.clients.kubelet import KubeletConfig
from koordebpf.kube.colocation.node_topologies import written_at
from koordebpf.kube.http.refusal import Backoff
from koordebpf.state.cpu.measured import CpuManager
from koordebpf.state.guard_facts import koordlet_pod
from koordebpf.state.pods.facts import PodFacts

log = logging.getLogger(__name__)
MANAGER = "koordlet"  # its user agent, and so the name of its field manager
RECENT = timedelta(minutes=15)  # Why: koordlet writes only what changed, so that a young entry means that it is there
_LONGEST = timedelta(hours=24)
TIMEOUT_S = 5.0  # Why: as for other writes of the agent
LOOK_S = 60.0  # Why: koordlet's interval for CPUs and NUMA nodes
READ_S = 300.0  # Why: a change by another that no watch reports, as of zones
APART_S = 3.0  # Why: koordlet's interval; many pods that start at once are one write
_FIRST_S, _CAP_S = 1.0, 60.0
_DENIED_S, _DENIED_CAP_S = 30.0, 600.0


class KoordletWriter:
    """koordlet, by its pod on this node and by the object's managed fields. Says once when it is there, or is gone.

    `said`: why the object is left alone; empty where it is not.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        """Begin; `now` is the wall clock."""
        self._now = now
        self._quiet = RECENT
        self._wrote_at: datetime | None = None  # this agent, last
        self._answered_at: datetime | None = None  # the write of koordlet's that is counted already
        self.said = ""

    def is_here(self, pods: Iterable[PodFacts]) -> bool:
        """Tell whether its pod is on this node."""
        pod = koordlet_pod(pods)
        if pod is not None:
            self._report(f"pod {pod} keeps the NodeResourceTopology of this node: it is left alone")
        return pod is not None

    def wrote(self, written: Object) -> bool:
        """Tell whether koordlet wrote the object lately, or over what this agent wrote.

        After the latter it is left alone for 15 minutes, and twice as long each further time, a day at most.
        """
        at = written_at(written, MANAGER)
        if at is None:
            self._report("")
            return False
        if self._wrote_at is not None and at >= self._wrote_at and at != self._answered_at:
            self._answered_at = at
            self._quiet = min(self._quiet * 2, _LONGEST)
        if self._now() - at >= self._quiet:
            self._report("")
            return False
        self._report(f"koordlet wrote the NodeResourceTopology of this node at {at.isoformat()}: it is left alone")
        return True

    def record_write(self) -> None:
        """Note that this agent is about to write. The API server keeps whole seconds."""
        self._wrote_at = self._now().replace(microsecond=0)

    def _report(self, sentence: str) -> None:
        if sentence and sentence.partition(" at ")[0] != self.said.partition(" at ")[0]:
            log.warning("%s", sentence)
        elif self.said and not sentence:
            log.info("koordlet no longer keeps the NodeResourceTopology of this node")
        self.said = sentence


class Noted(msgspec.Struct, frozen=True):
    """What the agent knows of the cluster; `topology` is the object as its watch has it.

    `manager`: which CPUs kubelet bound; None: it cannot be known.
    """

    node: Node
    pods: tuple[PodFacts, ...] = ()
    topology: NodeResourceTopology | None = None
    manager: CpuManager | None = None


class Sources(Protocol):
    """What the thread asks beside the cluster; none of them raises."""

    def info(self) -> NodeInfo | None:
        """Return what the node is made of; None: it was never readable."""

    def config(self) -> KubeletConfig | None:
        """Return kubelet's configuration; None: it cannot be asked, or never answered."""

    def close(self) -> None:
        """Let what waits end."""


class Topologies(Protocol):
    """The calls that are made; `kube.colocation.node_topologies.NodeTopologies` has them."""

    node_name: str

    def read(self, *, timeout_s: float) -> Object | None:
        """Return the object; None: there is none."""

    def create(self, topology: Object, *, timeout_s: float) -> None:
        """Make it."""

    def update(self, topology: Object, *, timeout_s: float) -> None:
        """Replace it."""

    def close(self) -> None:
        """Let requests that wait fail at once."""


class TopologyReporter:
    """One thread. `writes` counts what was sent; `problem` is why it cannot be sent, None: it can.

    `newest`: what the object is to say, as worked out last; None: it never was.

    Args:
        sources: what is asked of the node and of kubelet; closed with this.
        topologies: the API server's side; None: a dry run, in which only the log has what the object would say.
        now: the wall clock.
        apart_s: between two looks at least.
    """

    def __init__(
        self,
        sources: Sources,
        topologies: Topologies | None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        apart_s: float = APART_S,
    ) -> None:
        self.writes = 0
        self.problem: str | None = None
        self.newest: Report | None = None
        self._sources = sources
        self._topologies = topologies
        self._koordlet = KoordletWriter(now)
        self._apart_s = apart_s
        self._noted: Noted | None = None
        self._is_due = threading.Event()
        self._is_closing = threading.Event()
        self._sent = _Sent()
        supervisor = Supervisor("node-topology")
        self._thread = supervisor.thread(functools.partial(self._run, supervisor), again=True)
        self._thread.start()

    def set_input(self, noted: Noted) -> None:
        """Say what is known from now on. Does not wait."""
        self._noted = noted
        self._is_due.set()

    @property
    def left_to(self) -> str:
        """Why the object is left alone: koordlet keeps it. Empty: it is not."""
        return self._koordlet.said

    def close(self) -> None:
        """End the thread; the object stays as it is."""
        self._is_closing.set()
        self._is_due.set()
        if self._topologies is not None:
            self._topologies.close()
        self._sources.close()
        self._thread.join()

    def _run(self, supervisor: Supervisor) -> None:
        backoff, denied = Backoff(_FIRST_S, _CAP_S), Backoff(_DENIED_S, _DENIED_CAP_S)
        look_s = LOOK_S
        while True:
            self._is_due.wait(look_s)
            self._is_due.clear()
            if self._is_closing.is_set():
                return
            look_s, rest_s = 0.0, self._apart_s
            try:
                self._read()
                self.problem, look_s = None, LOOK_S
                supervisor.worked()
                backoff.reset()
                denied.reset()
            except KubeConflict:
                rest_s = backoff.next_s()  # another wrote first: the next look reads it again
            except KubeError as error:
                asked_s = error.retry_after_s if isinstance(error, KubeBusy) else None
                rest_s = asked_s or (backoff if error.retry else denied).next_s()
                self._log_error(error)
            except Exception as error:  # without the thread the object would grow old unseen
                supervisor.failed(error)
                self.problem, rest_s = f"{type(error).__name__}: {error}", denied.next_s()
            self._is_closing.wait(rest_s)  # whatever is noted meanwhile

    def _log_error(self, error: KubeError) -> None:
        if self._is_closing.is_set() or str(error) == self.problem:
            return
        self.problem = str(error)
        hint = f": allow {error.verb} on {error.resource}" if isinstance(error, KubeDenied) else ""
        log.warning("the NodeResourceTopology cannot be reported: %s%s", error, hint)

    def _read(self) -> None:
        noted = self._noted
        info = self._sources.info() if noted is not None else None
        if noted is None or info is None:
            return
        report = self._report(TopologyInput(info, noted.node, noted.pods, self._sources.config(), noted.manager))
        if report is None:
            return
        if self._topologies is None:
            self._show(report)
        elif self._koordlet.is_here(noted.pods):
            self._sent.report = None
        elif self._is_to_be_read(report, noted.topology):
            self._send(self._topologies, report, noted.node)

    def _report(self, known: TopologyInput) -> Report | None:
        try:
            report = topology_report(known)
        except ConfigError as error:
            if (str(error),) != self._sent.problems:
                log.warning("the NodeResourceTopology stays as it is: %s", error)
            self._sent.problems = (str(error),)
            return None
        for problem in report.problems:
            if problem not in self._sent.problems:
                log.warning("%s; it is left out of the NodeResourceTopology", problem)
        self._sent.problems = report.problems
        self.newest = report
        return report

    def _is_to_be_read(self, report: Report, seen: NodeResourceTopology | None) -> bool:
        sent = self._sent
        if sent.report != report or time.monotonic() - sent.at_s >= READ_S:
            return True
        if seen is sent.seen:
            return False
        sent.seen = seen
        return seen is None or differs_in_annotations(seen.metadata.annotations or {}, report) is not None

    def _send(self, topologies: Topologies, report: Report, node: Node) -> None:
        written = topologies.read(timeout_s=TIMEOUT_S)
        if self._koordlet.wrote(written or {}):
            self._sent.report = None
            return
        differing = "there was none" if written is None else difference(written, report)
        if differing is not None:
            self._koordlet.record_write()
            if written is None:
                topologies.create(new_topology(report, node), timeout_s=TIMEOUT_S)
            else:
                topologies.update(merged(written, report), timeout_s=TIMEOUT_S)
            self.writes += 1
            log.info("NodeResourceTopology %s is written: %s", topologies.node_name, differing)
        self._sent.report, self._sent.at_s = report, time.monotonic()

    def _show(self, report: Report) -> None:
        if report != self._sent.report:
            log.info(
                "dry run: the NodeResourceTopology is not written; it would have %s, policy %s, %s",
                ", ".join(each.name for each in report.zones),
                report.policy,
                ", ".join(f"{name.rpartition('/')[2]} {value[:60]}" for name, value in report.annotations.items()),
            )
        self._sent.report = report


class _Sent:
    # What the object was brought to, when, and the watch's view of it then.
    def __init__(self) -> None:
        self.report: Report | None = None
        self.at_s = 0.0
        self.seen: NodeResourceTopology | None = None
        self.problems: tuple[str, ...] = ()
