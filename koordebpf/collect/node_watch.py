"""The kernel's stream and the pods, joined: what `run`, `trace` and `top` all stand on."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import msgspec

from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.owner import Owner
from koordebpf.clock import Due
from koordebpf.collect.scope import NodeScope, signal_request
from koordebpf.errors import DecodeError
from koordebpf.events.layout import check_layout, decode, decode_stall, decode_totals
from koordebpf.events.records import CgroupMkdir, CgroupRename, CgroupRmdir, Record, Totals
from koordebpf.kernel.backends.select import WantedBackend, open_signals, wanted_backend
from koordebpf.kernel.cgroup.hierarchy import walk
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.signals import Backend, SignalQuality, SignalSource, quality_of
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.kube.sources.base import Source
from koordebpf.units import NS_PER_S

log = logging.getLogger(__name__)


class SignalHealth:
    """How good the signals are now: `quality`, and in `lost` those that worked at start only."""

    period_ns = 10 * NS_PER_S

    def __init__(self, signals: Backend) -> None:
        self._signals = signals
        self._raw_totals: bytes | None = None  # the last ones, and what they say
        self._totals: Totals | None = None
        self._due = Due(self.period_ns)
        self._due.done(time.monotonic_ns())
        self.lost: tuple[SignalSource, ...] = ()
        self.quality: SignalQuality = quality_of(signals)

    def totals(self) -> Totals | None:
        """Return the backend's counters; None where it has none."""
        raw = self._signals.totals()
        if raw != self._raw_totals:
            self._raw_totals, self._totals = raw, decode_totals(raw) if raw else None
        return self._totals

    def poll(self, now_ns: int) -> None:
        """Ask the backend which probes it lost, if that is due."""
        if not self._due.is_due(now_ns):
            return
        self._due.done(now_ns)
        lost = tuple(self._signals.lost_probes())
        for source in lost:
            if source.signal not in {known.signal for known in self.lost}:
                log.warning("lost: %s: %s. %s", source.signal, source.reason, source.remedy)
        totals = self.totals()
        self.lost = lost
        self.quality = quality_of(self._signals, lost, totals.missed_runs if totals else 0)


class SignalState(msgspec.Struct, frozen=True):
    """The signals of one node."""

    quality: SignalQuality
    lost: tuple[SignalSource, ...] = ()  # worked at start only
    other_kubepods: int = 0  # directories called kubepods that are not the kubelet's
    totals: Totals | None = None  # None: the backend counts nothing
    pods_synced_ns: int | None = None  # None: there is no source, or it has not answered yet


class NodeWatch(Closing):
    """Signals, index and source of one node, kept in step with each other.

    The backend listens before the first walk, so that no mkdir is missed in between; a cgroup that the walk saw
    too changes nothing.

    Args:
        scope: the node.
        source: of pods, whose owner closes it; None: not needed.
        min_stall_ns: shorter stalls are counted, not sent.
        measures: False: nothing scans, so that the scan need not be loaded.
        backend: which is wanted; None: as KOORDEBPF_BACKEND says, else the best that works here.
    """

    def __init__(
        self,
        scope: NodeScope,
        source: Source | None,
        min_stall_ns: int,
        *,
        measures: bool = True,
        backend: WantedBackend | None = None,
    ) -> None:
        self.scope = scope
        self.source = source
        self.index = CgroupIndex(cgroup_root=scope.cgroup_root)
        self.undecodable = 0
        self.rescans = 0
        self._lost_seen = 0
        self._must_rescan = False
        self._rescanned_ns = 0
        self._pods_version = 0
        self.request = signal_request(scope, min_stall_ns, measures=measures)
        self.signals = open_signals(self.request, check_layout, wanted_backend(backend))
        self.health = SignalHealth(self.signals)
        self.rescan()

    def rescan(self) -> None:
        """Make the index equal to the file system: at start, and after records were lost."""
        was_loss, self._must_rescan = self._must_rescan, False
        self._rescanned_ns = time.monotonic_ns()
        self.index.replace_all(walk(self.scope.path, self.scope.hierarchy.mount_point, self.index.is_closed))
        if was_loss:
            self._forget_the_dead(self._rescanned_ns)

    # Deaths may be among what was lost: who stalled before the walk began and was not met by it is dead.
    def _forget_the_dead(self, walked_ns: int) -> None:
        for stall in (decode_stall(*item, histograms=False) for item in self.signals.stalls()):
            if stall.last_ts_ns < walked_ns and stall.cgroup_id not in self.index:
                self.signals.forget(stall.cgroup_id)

    def totals(self) -> Totals | None:
        """Return the backend's counters; None where it has none."""
        return self.health.totals()

    @property
    def quality(self) -> SignalQuality:
        """How good the signals were at the last look."""
        return self.health.quality

    @property
    def lost(self) -> tuple[SignalSource, ...]:
        """Those that worked at start only."""
        return self.health.lost

    def drain(self) -> list[tuple[Record, Owner | None]]:
        """Take all records out of the backend, oldest first, each with its cgroup's owner at that moment.

        The index is up to date with them afterwards; after a loss it is read again from the file system.
        """
        self.health.poll(time.monotonic_ns())
        seen: list[tuple[Record, Owner | None]] = []
        for buf in self.signals.read():
            try:
                record = decode(buf)
            except DecodeError as error:
                self.undecodable += 1
                log.error("%s", error)
                continue
            if self._is_ours(record):
                seen.append((record, self._apply(record)))
        if self.index.pending_names():
            self.rescan()
        totals = self.totals()
        lost = totals.ring_lost + totals.missed_births if totals else 0
        if lost != self._lost_seen:
            log.warning("%d kernel records were lost; reading the cgroup tree again", lost - self._lost_seen)
            self._lost_seen = lost
            self._must_rescan = True
        # Records that are lost all the time must not make the agent read the tree all the time.
        is_due = time.monotonic_ns() - self._rescanned_ns >= NS_PER_S
        if is_due and (self._must_rescan or self.quality.births == "rescanned"):
            self.rescans += self._must_rescan
            self.rescan()
        return seen

    def _is_ours(self, record: Record) -> bool:
        # A backend may tell of every cgroup of the machine; of a node cgroup only what lies below it counts.
        match record:
            case CgroupMkdir() if self.scope.kind == "cgroup":
                return record.parent_id in self.index
            case CgroupRmdir() | CgroupRename() if self.scope.kind == "cgroup":
                return record.cgroup_id in self.index
        return True

    def _apply(self, record: Record) -> Owner | None:
        # The dead are looked up before the index forgets them.
        match record:
            case CgroupMkdir():
                self.index.born(record)
                if self.source:
                    self.source.nudge()
            case CgroupRmdir():
                owner = self.index.owner(record.cgroup_id)
                self.index.died(record)
                self.signals.forget(record.cgroup_id)
                return owner
            case CgroupRename():
                self.index.renamed(record)
        return self.index.owner(record.cgroup_id)

    def cluster(self) -> tuple[ClusterState | None, bool]:
        """Return what the source knows, and whether that is news; the index knows the pods afterwards."""
        if self.source is None:
            return None, False
        self.source.refresh(time.monotonic_ns())
        state = self.source.state()
        is_news = state.version != self._pods_version
        if is_news:
            self._pods_version = state.version
            self.index.set_pods(state.pods)
        return state, is_news

    def know_host_applications(self, host_applications: Mapping[str, str]) -> None:
        """Let the index know them, directory below the node's root → name."""
        node = self.scope.path.relative_to(self.scope.hierarchy.mount_point).as_posix()
        prefix = "" if node == "." else f"{node}/"
        self.index.set_host_applications({f"{prefix}{path}": name for path, name in host_applications.items()})

    def close(self) -> None:
        """Detach everything."""
        self.signals.close()


def signal_state(watch: NodeWatch) -> SignalState:
    """Return the state of a node's signals as last looked at."""
    return SignalState(
        quality=watch.quality,
        lost=watch.lost,
        other_kubepods=len(watch.index.kubelet.others),
        totals=watch.totals(),
        pods_synced_ns=(watch.source.state().synced_at_ns or None) if watch.source else None,
    )
