"""Follows the kernel's records of one node until enough were seen, the time is over, or a signal ends it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import NodeScope
from koordebpf.errors import SupportError
from koordebpf.events.layout import decode_stall, kinds_mask
from koordebpf.events.records import CgroupMkdir, CgroupRename, CgroupRmdir, MemcgEvent, MemcgSample
from koordebpf.kernel.backends.select import WantedBackend
from koordebpf.kernel.io.loop import Loop
from koordebpf.kernel.proc.psi import PressureFile
from koordebpf.kernel.proc.vmstat import Vmstat
from koordebpf.report.record_line import Seen, TraceFilter, losses, pod_text
from koordebpf.tools.trace.output import Counters, TraceOutput, program_counters, vmstat_counters
from koordebpf.tools.trace.summary import StallBook, Summary
from koordebpf.units import NS_PER_MS, NS_PER_S

# Imported where they are needed: a trace of events alone is to begin at once, and these take 20 ms of CPU.
if TYPE_CHECKING:
    from koordebpf.kube.sources.base import Source
    from koordebpf.tools.trace.summary import ChargeBook

NAMES = ("high", "max", "oom", "oom_kill")
_Counts = tuple[int, int, int, int]
_REST_NS = 5 * NS_PER_MS  # Why: a record a wake-up costs many times what one in a batch does
# What the index lives on, whatever is asked for.
_TREE_KINDS = ("cgroup_mkdir", "cgroup_rmdir", "cgroup_rename")


# What memory.events gained from one look at all memory cgroups to the next.


class MemcgEventCounts:
    """Keeps the counts of the look before.

    On cgroup v2 the kernel counts an event in the cgroup and in all above it: here it counts in the lowest alone, so
    that the sum over all is the number of events. One whose cgroup is gone again counts in its parent.
    """

    def __init__(self, *, is_hierarchical: bool) -> None:
        """Begin without a look: the first only tells what there was before.

        Args:
            is_hierarchical: a cgroup's counts hold its children's, as on cgroup v2.
        """
        self._is_hierarchical = is_hierarchical
        self._last: dict[int, _Counts] | None = None

    def push(self, now_ns: int, samples: Iterable[MemcgSample]) -> list[MemcgEvent]:
        """Take the counts as they are at `now_ns`; return what came since the push before, parents first."""
        counts: dict[int, _Counts] = {}
        parents: dict[int, int] = {}
        for sample in samples:
            counts[sample.cgroup_id] = _counts(sample)
            parents[sample.cgroup_id] = sample.parent_id
        last, self._last = self._last, counts
        if last is None:
            return []
        grown = {
            cgroup_id: [max(n - was, 0) for n, was in zip(now, last.get(cgroup_id, (0, 0, 0, 0)), strict=True)]
            for cgroup_id, now in counts.items()
            if now != last.get(cgroup_id, (0, 0, 0, 0))
        }
        own = {cgroup_id: list(each) for cgroup_id, each in grown.items()}
        if self._is_hierarchical:
            for cgroup_id, each in grown.items():
                if above := own.get(parents[cgroup_id]):
                    above[:] = [max(n - part, 0) for n, part in zip(above, each, strict=True)]
        return [
            MemcgEvent(now_ns, cgroup_id, name, count)
            for cgroup_id, each in own.items()
            for name, count in zip(NAMES, each, strict=True)
            if count
        ]


def _counts(sample: MemcgSample) -> _Counts:
    return sample.high_events, sample.max_events, sample.oom_events, sample.oom_kill_events


# The trace.


class TraceOptions(msgspec.Struct, frozen=True):
    """What to trace, and until when."""

    wanted: TraceFilter
    records: bool = True  # one by one; False: only the sums
    summary: bool = False
    every_s: float | None = None  # a summary each so many seconds; None: one at the end
    counters: bool = False  # at the end
    count: int | None = None
    seconds: float | None = None


def wall_clock_offset_ns() -> int:
    """Return what to add to CLOCK_MONOTONIC to get the time of day now."""
    return time.time_ns() - time.monotonic_ns()


def wall_time(ts_ns: int, offset_ns: int) -> datetime:
    """Return the time of day of a CLOCK_MONOTONIC time, in the zone of this machine."""
    return datetime.fromtimestamp((ts_ns + offset_ns) / NS_PER_S, UTC).astimezone()


def open_watch(scope: NodeScope, names: Source | None, asked: TraceOptions, backend: WantedBackend | None) -> NodeWatch:
    """Return the watch that is needed for it, to be closed; `names`: where they come from.

    Raises:  ConfigError, SupportError: as NodeWatch.
    """
    scans = asked.summary or "memcg_event" in asked.wanted.kinds
    return NodeWatch(scope, names, asked.wanted.min_ns, measures=scans, backend=backend)


def follow(watch: NodeWatch, asked: TraceOptions) -> Iterator[TraceOutput]:
    """Yield what is asked for as it comes, records in batches, until SIGTERM, SIGINT, `count` or `seconds`.

    The kernel filters the rest out: the kinds and, once they are known, the cgroups are set there. A
    new container of a wanted pod is added within milliseconds of its mkdir.
    """
    trace = _Trace(watch, asked)
    with Loop() as loop:
        loop.stop_on_signals()
        if watch.source:
            watch.source.start(loop.wake)
        if (fd := watch.signals.fileno()) is not None:
            loop.watch(fd, lambda: None, rest_ns=_REST_NS)
        try:
            while True:
                is_last = loop.stopping or trace.is_over(time.monotonic_ns())
                if seen := trace.drain():
                    yield seen
                if asked.summary and (is_last or time.monotonic_ns() >= trace.summary_due_ns):
                    yield trace.summary()
                if is_last or trace.is_full:
                    break
                loop.wait(trace.due_ns(time.monotonic_ns()))
        finally:
            trace.close()
    if asked.counters:
        yield trace.counters()


class _Trace:
    # One run: what was printed already, and when the next thing is due.
    def __init__(self, watch: NodeWatch, asked: TraceOptions) -> None:
        self._watch, self._asked, self._wanted = watch, asked, asked.wanted
        self._begin_ns = self._span_ns = time.monotonic_ns()
        self._seen = 0
        self._book = StallBook()
        self._charges = _charge_book(watch) if asked.summary else None
        self._narrow = _Narrowing(watch, asked)
        self._events = None
        if asked.records and "memcg_event" in self._wanted.kinds:
            self._events = MemcgEventCounts(is_hierarchical=watch.scope.hierarchy.version == 2)
        self._events_due_ns = self._begin_ns
        self._vmstat = _vmstat_rows() if asked.counters else {}

    @property
    def is_full(self) -> bool:
        return self._asked.count is not None and self._seen >= self._asked.count

    @property
    def summary_due_ns(self) -> int:
        return self._span_ns + int((self._asked.every_s or 1e9) * NS_PER_S)

    def is_over(self, now_ns: int) -> bool:
        return self._asked.seconds is not None and now_ns >= self._end_ns

    @property
    def _end_ns(self) -> int:
        return self._begin_ns + int((self._asked.seconds or 0) * NS_PER_S)

    def due_ns(self, now_ns: int) -> int:
        dues = [now_ns + NS_PER_S]
        if self._asked.seconds is not None:
            dues.append(self._end_ns)
        if self._charges:
            dues += [self.summary_due_ns, self._charges.due_ns]
        return min(dues)

    def drain(self) -> list[Seen]:
        watch, now_ns = self._watch, time.monotonic_ns()
        state, is_news = watch.cluster()
        if self._charges:
            if is_news and state:
                self._charges.learn(state)
            # Before the ring: a cgroup that died is forgotten with its sums when its death is read there.
            self._book.push((decode_stall(*each) for each in watch.signals.stalls()), self._name)
            if now_ns >= self._charges.due_ns:
                self._charges.measure()
        found = watch.drain()
        if is_news or any(isinstance(record, CgroupMkdir | CgroupRmdir | CgroupRename) for record, _ in found):
            self._narrow.send()
        if self._events and now_ns >= self._events_due_ns:
            self._events_due_ns = now_ns + NS_PER_S
            from koordebpf.collect.memory.files import memcg_samples

            events = self._events.push(time.monotonic_ns(), memcg_samples(watch))
            found += [(event, watch.index.owner(event.cgroup_id)) for event in events]
        if not self._asked.records:
            return []
        offset_ns = wall_clock_offset_ns()
        seen = [
            Seen(record, owner, wall_time(record.ts_ns, offset_ns))
            for record, owner in found
            if self._wanted.lets_pass(record, owner)
        ]
        if self._asked.count is not None:
            seen = seen[: self._asked.count - self._seen]
        self._seen += len(seen)
        return seen

    def summary(self) -> Summary:
        self._book.push((decode_stall(*each) for each in self._watch.signals.stalls()), self._name)
        now_ns = time.monotonic_ns()
        begin_ns, self._span_ns = self._span_ns, now_ns
        pods = self._book.drain()
        return Summary(
            time=wall_time(now_ns, wall_clock_offset_ns()).isoformat(),
            seconds=(now_ns - begin_ns) / NS_PER_S,
            total_ns=sum(pod.total_ns for pod in pods),
            pods=pods,
            ledger=self._charges.drain(self._wanted.pods) if self._charges else None,
            losses=tuple(losses(self._watch.totals(), self._watch.undecodable)),
        )

    def close(self) -> None:
        if self._charges:
            self._charges.close()

    def counters(self) -> Counters:
        now_ns = time.monotonic_ns()
        totals = self._watch.totals()
        return Counters(
            time=wall_time(now_ns, wall_clock_offset_ns()).isoformat(),
            seconds=(now_ns - self._begin_ns) / NS_PER_S,
            vmstat=vmstat_counters(self._vmstat, _vmstat_rows()),
            programs=program_counters(totals),
            kswapd_wakes=_to_last_busy(totals.kswapd_wakes) if totals else (),
            kswapd_awake_ns=totals.kswapd_awake_ns[: len(_to_last_busy(totals.kswapd_wakes))] if totals else (),
            psi_total_us=_psi_total_us(),
        )

    def _name(self, cgroup_id: int) -> str | None:
        owner = self._watch.index.owner(cgroup_id)
        return pod_text(owner, cgroup_id) if self._wanted.wants_cgroup(cgroup_id, owner) else None


def _charge_book(watch: NodeWatch) -> ChargeBook:
    from koordebpf.tools.trace.summary import ChargeBook

    return ChargeBook(watch)


class _Narrowing:
    # The filter in the kernel: wanted kinds, and records of wanted cgroups only.
    def __init__(self, watch: NodeWatch, asked: TraceOptions) -> None:
        self._watch, self._wanted = watch, asked.wanted
        self._sent: set[int] | None = None
        watch.signals.send_kinds(kinds_mask((*_TREE_KINDS, *(asked.wanted.kinds if asked.records else ()))))
        self.send()

    def send(self) -> None:
        # Which cgroups are wanted, where that has changed; mkdir, rmdir and rename come always.
        if not self._wanted.names_cgroups:
            return
        index = self._watch.index
        ids = {each for each in index if self._wanted.wants_cgroup(each, index.owner(each))}
        if ids != self._sent:
            self._sent = ids
            try:
                self._watch.signals.send_only(ids)
            except SupportError:  # more than the kernel's map holds: what is not wanted is left out here
                self._watch.signals.send_only(None)


def _vmstat_rows() -> dict[str, int]:
    try:
        with Vmstat() as vmstat:
            return vmstat.rows()
    except SupportError:
        return {}


def _psi_total_us() -> dict[str, int] | None:
    try:
        with PressureFile() as file:
            pressure = file.read()
    except SupportError:
        return None
    lines = {"some": pressure.some, "full": pressure.full}
    return {name: line.total_us for name, line in lines.items() if line}


def _to_last_busy(counts: tuple[int, ...]) -> tuple[int, ...]:
    # There is room for 64 NUMA nodes; few machines have more than two.
    return counts[: max((nid + 1 for nid, count in enumerate(counts) if count), default=0)]
