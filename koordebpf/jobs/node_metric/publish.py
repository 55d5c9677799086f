"""Sends the reports of the node from one thread, however long the API server takes."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from koordebpf.clock import Clock, SystemClock
from koordebpf.errors import KubeBusy, KubeConflict, KubeDenied, KubeError, KubeGone
from koordebpf.jobs.node_metric.sending import Held, Report, Send, Sending
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kube.colocation.node_metrics import OwnNodeMetric
from koordebpf.kube.http.refusal import Backoff
from koordebpf.units import NS_PER_S

_log = logging.getLogger(__name__)

_CLOSE_S: Final = 2.0  # the kubelet kills after ten seconds
# Why 4 s: where one of three requests is refused, fourteen in a row fit in before consumers drop a report.
RETRY_FIRST_S, RETRY_CAP_S = 0.5, 4.0
_DENIED_FIRST_S, _DENIED_CAP_S = 10.0, 600.0  # Why: as for marks of the Node (act/taint.py)


class WritesStatus(Protocol):
    """The calls that are made; `kube.colocation.node_metrics.NodeMetricStatus` has them."""

    def patch(self, body: bytes, *, timeout_s: float) -> OwnNodeMetric:
        """Return the object as the server has it afterwards."""

    def forget_connections(self) -> None:
        """Let the next request make a connection of its own."""

    def close(self) -> None:
        """Let a request that waits fail at once."""


class Counts(msgspec.Struct):
    """What was sent since the start; `bytes` of request bodies, whatever became of them."""

    tries: int = 0
    bytes: int = 0
    written: int = 0
    conflicts: int = 0
    failures: int = 0


class _CutOff(Exception):
    """It took too long; the next try may begin at once."""


class NodeMetricReporter:
    """Sends the newest report when `Sending` says so. What is public may be read by any thread.

    Args:
        status: writes it.
        sending: decides.
        read_again: lets the object be read again.
        clock: the node's.
    """

    def __init__(
        self, status: WritesStatus, sending: Sending, read_again: Callable[[], None], clock: Clock | None = None
    ) -> None:
        self.counts = Counts()
        self.problem: str | None = None  # why the last try failed; None: it did not
        self.held: Held | None = None  # why nothing is sent
        self._status = status
        self._sending = sending
        self._read_again = read_again
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._newest: Report | None = None
        self._not_before_ns = 0
        self._is_closing = False
        supervisor = Supervisor("node-metric")
        self._thread = supervisor.thread(functools.partial(self._work, supervisor), again=True)
        self._thread.start()

    @property
    def sent_ns(self) -> int | None:
        """The moment of the report that the server has; None: it has none of this agent's."""
        return self._sending.sent_ns

    @property
    def other_writer(self) -> str:
        """Who else writes, or wrote last."""
        return self._sending.other.name

    def report(self, report: Report) -> None:
        """Take a new report in place of the last one. Does not wait."""
        with self._changed:
            self._newest = report
            self._changed.notify()

    def found(self, metric: OwnNodeMetric | None, interval_ns: int) -> None:
        """Take what the server has; None: no NodeMetric of this node."""
        with self._changed:
            self._sending.found(metric, self._clock.now_ns(), self._clock.wall_s(), interval_ns)
            self._changed.notify()

    def close(self) -> None:
        """Cut a request that waits, and end the thread. The last report stays, and its time says how old it is."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._status.close()
        self._thread.join(_CLOSE_S)

    def _work(self, supervisor: Supervisor) -> None:
        backoff, denied = Backoff(RETRY_FIRST_S, RETRY_CAP_S), Backoff(_DENIED_FIRST_S, _DENIED_CAP_S)
        while not self._is_closing:
            try:
                send = self._next()
            except Exception as error:  # without the thread the report would grow old unnoticed
                supervisor.failed(error)
                with self._changed:
                    self._not_before_ns = self._clock.now_ns() + int(denied.next_s() * NS_PER_S)
                continue
            if send is None:
                return
            wait_s = 0.0
            match self._sent(send, supervisor):
                case None:
                    supervisor.worked()
                    backoff.reset()
                    denied.reset()
                case KubeConflict() | KubeGone() | _CutOff():
                    pass
                case KubeBusy(retry_after_s=float(asked_s)) if asked_s:
                    wait_s = asked_s
                case KubeDenied():
                    wait_s = denied.next_s()
                case _:
                    wait_s = backoff.next_s()
            with self._changed:
                self._not_before_ns = self._clock.now_ns() + int(wait_s * NS_PER_S)

    # None: it is time to end.
    def _next(self) -> Send | None:
        with self._changed:
            while not self._is_closing:
                now_ns = self._clock.now_ns()
                due_ns: int | None = self._not_before_ns if now_ns < self._not_before_ns else None
                if self._newest is not None and due_ns is None:
                    step = self._sending.step(self._newest, now_ns)
                    if isinstance(step, Send):
                        self._hold(None)
                        self._sending.starts(step, now_ns)
                        return step
                    self._hold(step.why)
                    due_ns = step.again_ns
                self._changed.wait(None if due_ns is None else max(due_ns - now_ns, 0) / NS_PER_S)
            return None

    # Returns what kept it from being written.
    def _sent(self, send: Send, supervisor: Supervisor) -> Exception | None:
        self.counts.tries += 1
        self.counts.bytes += len(send.body)
        began_ns = self._clock.now_ns()
        try:
            got = self._status.patch(send.body, timeout_s=send.timeout_s)
        except (KubeConflict, KubeGone) as error:  # another wrote first, or deleted it: the watch says which
            self.counts.conflicts += 1
            with self._changed:
                self._sending.conflicted(send)
            self._read_again()
            return error
        except KubeError as error:
            with self._changed:
                is_cut = self._sending.failed(send, self._clock.now_ns() - began_ns)
            self._status.forget_connections()
            self._fail(error)
            return _CutOff() if is_cut else error
        except Exception as error:  # without the thread the report would grow old unnoticed
            supervisor.failed(error)
            self.counts.failures += 1
            self.problem = f"{type(error).__name__}: {error}"
            return error
        with self._changed:
            self._sending.answered(send, got, self._clock.now_ns() - began_ns)
        self.counts.written += 1
        if self.problem is not None:
            _log.info("the NodeMetric of this node is written again")
        self.problem = None
        return None

    def _fail(self, error: KubeError) -> None:
        self.counts.failures += 1
        said = f"the NodeMetric of this node is not written: {error}"
        if said != self.problem and not self._is_closing:
            _log.warning("%s", said)
        self.problem = said

    def _hold(self, why: Held | None) -> None:
        before, self.held = self.held, why
        if why == before:
            return
        other = self._sending.other.name
        if why == "other":
            _log.warning("%s writes the NodeMetric of this node: it is left alone", other)
        elif why == "absent":
            _log.warning("there is no NodeMetric of this node: koord-manager creates one for each Node; none is sent")
        elif before == "other":
            _log.info("%s writes the NodeMetric of this node no more: it is reported from here", other)
