"""The kernel's stream and the pods, joined: what `run`, `trace` and `top` all stand on."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Self

from koordebpf.agent.scope import NodeScope
from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.owner import Owner
from koordebpf.errors import DecodeError, SupportError
from koordebpf.events.layout import check_layout, decode, decode_totals
from koordebpf.events.records import CgroupBirth, CgroupDeath, CgroupRename, Record, Totals
from koordebpf.kernel.cgroupfs import walk
from koordebpf.kernel.signals import OBJECTS, KernelSignals
from koordebpf.kube.objects import ClusterState
from koordebpf.kube.source import Source
from koordebpf.units import NS_PER_S

log = logging.getLogger(__name__)


class NodeWatch:
    """Signals, index and source of one node, kept in step with each other.

    The programs are attached before the first walk, so that no cgroup is born unseen in between; a birth that the walk
    saw too changes nothing.
    """

    def __init__(
        self, scope: NodeScope, source: Source | None, min_stall_ns: int, objects: Collection[str] = OBJECTS
    ) -> None:
        self.scope = scope
        self.source = source
        self.index = CgroupIndex()
        self.undecodable = 0
        self.rescans = 0
        self._lost_seen = 0
        self._must_rescan = False
        self._rescanned_ns = 0
        self._pods_version = 0
        self._root_fd = os.open(scope.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.signals = KernelSignals(
                hierarchy_id=scope.hierarchy.hierarchy_id,
                scan_root_fd=self._root_fd,
                node_cgroup_id=scope.node_cgroup_id,
                min_stall_ns=min_stall_ns,
                check_layout=check_layout,
                objects=objects,
            )
            if self.signals.ring is None:
                # Without births the index would be blind to every new pod.
                broken = next(signal for signal in self.signals.sources if not signal.works)
                raise SupportError("BPF", broken.reason, broken.remedy)
        except BaseException:
            os.close(self._root_fd)
            raise
        self._sees_births = any(s.works for s in self.signals.sources if s.signal == "cgroup births and deaths")
        self.rescan()

    def rescan(self) -> None:
        """Make the index equal to the file system: at start, and after records were lost."""
        self._must_rescan = False
        self._rescanned_ns = time.monotonic_ns()
        self.index.replace_all(walk(self.scope.path, self.scope.hierarchy.mount_point))

    def totals(self) -> Totals | None:
        """Return the programs' counters; None where none could be loaded."""
        raw = self.signals.totals()
        return decode_totals(raw) if raw else None

    def drain(self) -> list[tuple[Record, Owner | None]]:
        """Take all records out of the ring, oldest first, each with its cgroup's owner at that moment.

        The index is up to date with them afterwards; after a loss it is read anew from the file system.
        """
        if self.signals.ring is None:
            return []
        seen: list[tuple[Record, Owner | None]] = []
        for buf in self.signals.ring.read():
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
        if totals and totals.ring_lost != self._lost_seen:
            log.warning(
                "%d kernel records were lost; reading the cgroup tree again", totals.ring_lost - self._lost_seen
            )
            self._lost_seen = totals.ring_lost
            self._must_rescan = True
        # Records that are lost all the time must not make the agent read the tree all the time.
        is_due = time.monotonic_ns() - self._rescanned_ns >= NS_PER_S
        if is_due and (self._must_rescan or not self._sees_births):
            self.rescans += self._must_rescan
            self.rescan()
        return seen

    def _is_ours(self, record: Record) -> bool:
        # The programs tell of every cgroup of the machine; of a node cgroup only what lies below it counts.
        match record:
            case CgroupBirth() if self.scope.kind == "cgroup":
                return record.parent_id in self.index
            case CgroupDeath() | CgroupRename() if self.scope.kind == "cgroup":
                return record.cgroup_id in self.index
        return True

    def _apply(self, record: Record) -> Owner | None:
        # The dead are looked up before the index forgets them.
        match record:
            case CgroupBirth():
                self.index.born(record)
                if self.source:
                    self.source.nudge()
            case CgroupDeath():
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
        """Detach everything and stop the source."""
        self.signals.close()
        if self.source:
            self.source.close()
        if self._root_fd >= 0:
            os.close(self._root_fd)
            self._root_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
