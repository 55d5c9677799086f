"""The sink that records: it takes rounds, samples and events, and a thread encodes and writes them."""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from koordebpf.clock import Clock, SystemClock
from koordebpf.decision.decide_tick import TickDecision, TickFrame
from koordebpf.errors import os_reason
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kernel.signals import SignalQuality
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.store.recorder.rounds import EncodedRound, RoundEncoder
from koordebpf.store.recorder.values import (
    SAMPLE_BYTES,
    Pace,
    RecordedEvent,
    pack_sample,
    recorded,
    rounds_lost,
    signals_seen,
    unpack_samples,
)
from koordebpf.store.sink import (
    AgentStopped,
    Event,
    FileChanged,
    MemoryReleased,
    NodeSampled,
    NoticeEnded,
    OomKilled,
    PlanDecided,
    ReleaseOverdue,
    RoundEnded,
    TickFailed,
)
from koordebpf.store.write_budget import WriteBudget
from koordebpf.units import NS_PER_S

log = logging.getLogger("koordebpf")

_MAX_ROUNDS = 32  # that wait. Why: a third of a second at 10 ms, 3 MiB at 110 pods while the disk answers nothing
_MAX_EVENTS = 2_000  # Why: as many files as suppression writes in four rounds
_MAX_SAMPLES = 1_000  # Why: a round comes each second, a sample each 4 ms
_CLOSE_S = 0.5
_UNEXPECTED = "an unexpected error; the log has it"
_SIGNALS_EVERY_NS = 600 * NS_PER_S  # Why: 300 bytes each 10 minutes, and the hour before an incident has it


class Store(Protocol):
    """Where encoded rounds are put. It is called by one thread."""

    def add(self, made: EncodedRound, samples_raw: bytes, events: Sequence[RecordedEvent]) -> None:
        """Keep a round, the samples before it and the events since the round before; those until they are written.

        Raises:  OSError: the round could not be written.
        """

    def add_events(self, events: Sequence[RecordedEvent], wall_ns: int) -> None:
        """Keep events that no round comes after.

        Raises:  OSError: they could not be written.
        """

    def want_around(self, at_ns: int) -> None:
        """Keep the rounds around that moment, as around a decision."""

    @property
    def bytes_on_disk(self) -> int:
        """What is on disk."""

    def reach_s(self, wall_ns: int) -> Mapping[Pace, float]:
        """Return how far back each pace reaches at that time."""

    def close(self) -> None:
        """Close all files."""


class RecorderCounts(msgspec.Struct):
    """What became of rounds and events since the start. `problem` None: the last one was written.

    `reach_s`: how far back each pace reached when the last round was written.
    """

    rounds: int = 0
    lost_rounds: int = 0
    lost_events: int = 0
    bytes: int = 0
    cpu_s: float = 0.0  # of the thread that encodes and writes
    problem: str | None = None
    reach_s: Mapping[Pace, float] = {}


class _Round(NamedTuple):
    tick: TickFrame
    decision: TickDecision
    wall_ns: int
    samples: bytes
    quality: SignalQuality | None


class _Happened(NamedTuple):
    event: Event
    wall_s: float


class Recorder:
    """Rounds wait in a short queue by reference: they are values. What does not fit is lost and counted.

    The thread needs the interpreter's lock, and one that lost its CPU meanwhile would keep the loop from deciding: it
    is to have the loop's nice level (docs/recording.md, Figures).

    Args:
        store: of encoded rounds.
        clock: of events.
        begin: is called in the thread first, to raise its priority.
    """

    name = "recorder"
    # A cgroup that comes or ends is no event here: each round has the pods and cgroups that there were.
    takes = (
        RoundEnded,
        NodeSampled,
        OomKilled,
        PlanDecided,
        OutcomeArrived,
        MemoryReleased,
        ReleaseOverdue,
        FileChanged,
        NoticeEnded,
        TickFailed,
        AgentStopped,
    )

    def __init__(self, store: Store, clock: Clock | None = None, *, begin: Callable[[], object] = lambda: None) -> None:
        self._begin = begin
        self._store = store
        self._clock = clock or SystemClock()
        self.counts = RecorderCounts()
        self._samples = bytearray()
        self._writes = WriteBudget()
        self._queue: deque[_Round | _Happened] = deque()
        self._waiting_rounds = 0
        self._changed = threading.Condition()
        self._is_closing = False
        self._writing = _Writing(store, self.counts)
        # A daemon: the interpreter must not wait for a thread that hangs in the kernel.
        supervisor = Supervisor("recorder")
        self._thread = supervisor.thread(functools.partial(self._work, supervisor), again=True)
        self._thread.start()

    def publish(self, event: Event) -> None:
        """Take an event; never waits. Cost: 2 µs."""
        match event:
            case NodeSampled(now_ns, node):
                if len(self._samples) < _MAX_SAMPLES * SAMPLE_BYTES:
                    self._samples += pack_sample(now_ns, node)
            case RoundEnded(tick, view, decision, signals):
                self._put_changes(self._writes.due(view.now_ns))
                samples, self._samples = bytes(self._samples), bytearray()
                quality = signals.quality if signals is not None else None
                self._put_round(_Round(tick, decision, int(self._clock.wall_s() * NS_PER_S), samples, quality))
            case AgentStopped():
                self._put_changes(self._writes.rest())
                self.close()
            case FileChanged():
                self._put_changes(self._writes.add(event))
            case (
                OomKilled()
                | PlanDecided()
                | OutcomeArrived()
                | MemoryReleased()
                | ReleaseOverdue()
                | NoticeEnded()
                | TickFailed()
            ):
                self._put_event(_Happened(event, self._clock.wall_s()))

    def close(self) -> None:
        """Write what waits, for half a second at most, and close the files. Twice is harmless."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            log.warning("%d rounds were not recorded: the disk does not answer", self._waiting_rounds)

    def _put_round(self, each: _Round) -> None:
        with self._changed:
            if self._waiting_rounds >= _MAX_ROUNDS or self._is_closing:
                self.counts.lost_rounds += 1
                return
            self._waiting_rounds += 1
            self._queue.append(each)
            self._changed.notify_all()

    # Does not wake the thread: an event is written with the round after it.
    def _put_event(self, each: _Happened) -> None:
        with self._changed:
            if len(self._queue) - self._waiting_rounds >= _MAX_EVENTS:
                self.counts.lost_events += 1
                return
            self._queue.append(each)

    def _put_changes(self, changes: Sequence[FileChanged]) -> None:
        for each in changes:
            self._put_event(_Happened(each, self._clock.wall_s()))

    def _work(self, supervisor: Supervisor) -> None:
        supervisor.call(self._begin)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting_rounds or self._is_closing)
                if not self._queue:
                    break
                each = self._queue.popleft()
                self._waiting_rounds -= isinstance(each, _Round)
            if not supervisor.call(functools.partial(self._writing.write, each)):
                self._writing.fail(each)
            self.counts.cpu_s = time.thread_time()
        supervisor.call(functools.partial(self._writing.finish, int(self._clock.wall_s() * NS_PER_S)))
        supervisor.call(self._store.close)


class _Writing:
    # The thread's part.
    def __init__(self, store: Store, counts: RecorderCounts) -> None:
        self._store, self._counts = store, counts
        self._encoder = RoundEncoder()
        self._events: list[RecordedEvent] = []
        self._reported_lost = 0
        self._said: str | None = None
        self._quality: tuple[SignalQuality, int] | None = None  # as recorded, and when

    # After an unexpected error, which the log has.
    def fail(self, each: _Round | _Happened) -> None:
        if isinstance(each, _Round):
            self._counts.lost_rounds += 1
        else:
            self._counts.lost_events += 1
        self._counts.problem = self._said = _UNEXPECTED

    def finish(self, wall_ns: int) -> None:
        try:
            self._store.add_events(self._events, wall_ns)
        except OSError as error:
            self._counts.lost_events += len(self._events)
            self._counts.problem = os_reason(error)

    def write(self, each: _Round | _Happened) -> None:
        if isinstance(each, _Happened):
            self._events.append(recorded(each.event, each.wall_s))
            if isinstance(each.event, OomKilled):
                self._store.want_around(each.event.now_ns)
            return
        if lost := self._counts.lost_rounds - self._reported_lost:
            self._reported_lost += lost
            self._events.append(rounds_lost(lost, each.wall_ns / NS_PER_S))
        self._record_signals(each)
        made = self._encoder.encode(each.tick, each.decision, each.wall_ns, each.samples)
        events, self._events = self._events, []
        samples = msgspec.json.encode(unpack_samples(each.samples)) if each.samples else b""
        try:
            self._store.add(made, samples, events)
            self._counts.rounds += 1
            self._report(None)
        except OSError as error:
            self._counts.lost_rounds += 1
            self._report(os_reason(error))
        self._counts.bytes = self._store.bytes_on_disk
        self._counts.reach_s = self._store.reach_s(each.wall_ns)

    # With each change, and again after a while: the shard that has it is removed some time.
    def _record_signals(self, each: _Round) -> None:
        if each.quality is None:
            return
        if self._quality is not None:
            quality, at_ns = self._quality
            if quality == each.quality and each.wall_ns - at_ns < _SIGNALS_EVERY_NS:
                return
        self._quality = each.quality, each.wall_ns
        self._events.append(signals_seen(each.quality, os.uname().release, each.wall_ns / NS_PER_S))

    # Once for each change: a disk stays full for hours.
    def _report(self, problem: str | None) -> None:
        self._counts.problem = problem
        if problem == self._said:
            return
        if problem is None:
            log.info("rounds are recorded again; %d were lost in all", self._counts.lost_rounds)
        else:
            log.warning("rounds are not recorded: %s", problem)
        self._said = problem
