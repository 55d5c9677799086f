"""The signals without any BPF program: inotify on the cgroup tree, and the kernel's counters in files.

What files cannot tell: single stalls, whose they were within a cgroup, and the pid of an OOM kill's victim.
`quality` says so wherever it matters.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Collection
from pathlib import Path

from koordebpf.errors import SupportError
from koordebpf.kernel.backends import packing
from koordebpf.kernel.backends.limit_events import LimitEvents
from koordebpf.kernel.backends.pressure_totals import PressureTotals
from koordebpf.kernel.cgroup.tree import CgroupTree, Change, TreeCgroup
from koordebpf.kernel.proc.vmstat import Vmstat
from koordebpf.kernel.signals.interface import BackendName, SignalRequest, SignalSource
from koordebpf.kernel.signals.quality import CGROUP_LIFECYCLE
from koordebpf.units import NS_PER_MS, NS_PER_S

_CGROUP_EVENTS = "cgroup.events"
_KINDS: dict[Change, int] = {
    "born": packing.KOORD_CGROUP_MKDIR,
    "died": packing.KOORD_CGROUP_RMDIR,
    "renamed": packing.KOORD_CGROUP_RENAME,
}
# enum koord_kind as bits: OOM kill, cgroup mkdir, rmdir, rename. What the agent lives on.
_NEEDED_KINDS = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5
# Why 100 ms: new cgroups and those whose limit is hit all the time are looked at this often at most; most cgroups that
# live shorter are never looked into.
_LOOK_NS = 100 * NS_PER_MS
# Why 30 s: what no event tells (a controller that is switched on later, watches that are free again) is found then.
_COMPARE_NS = 30 * NS_PER_S


class FilesSignals:
    """A `Backend` of files. Only cgroups at and below the request's root are seen."""

    def __init__(self, request: SignalRequest, max_watches: int | None = None) -> None:
        """Watch the tree and read every counter once, from which all others count.

        Args:
            request: the node.
            max_watches: at most so many; None: half of what the machine allows.
        Raises:  SupportError: no procfs, or no inotify instance is left.
        """
        self.name: BackendName = "files"
        self._request = request
        self._kinds = _NEEDED_KINDS
        self._only: frozenset[int] | None = None
        self._sent = self._populated_changes = self._mkdirs = self._deaths = 0
        self._fresh: set[TreeCgroup] = set()
        self._populated: dict[int, bool] = {}
        self._vmstat = Vmstat()
        try:
            self.tree = CgroupTree(request.root, request.node_level, max_watches)
        except OSError as error:
            self._vmstat.close()
            raise SupportError(
                "inotify", f"{error.filename}: {error.strerror}", "Raise fs.inotify.max_user_instances."
            ) from None
        self._first = self._now = self._vmstat.read()
        self._looked_ns = self._compared_ns = time.monotonic_ns()
        self._limits = LimitEvents(self.tree, request)
        self._pressure = PressureTotals(self.tree, request)
        for cgroup in _all_of(self.tree.root):
            self._arm(cgroup, self._looked_ns, is_old=True)
        self.sources = self._describe()

    def fileno(self) -> int | None:
        """Return inotify's fd: mkdir, rmdir, renames, populated, and on cgroup v2 memory.events wake."""
        return self.tree.fileno()

    def read(self) -> list[bytes]:
        """Return all records that are there, oldest first; never waits. After an overflow: what it had hidden."""
        now_ns = time.monotonic_ns()
        changes = self.tree.read()
        if now_ns - self._compared_ns >= _COMPARE_NS:
            self._compared_ns = now_ns
            changes += self.tree.compare()
            if self._request.hierarchy_version == 2:
                self._fresh.update(each for each in _all_of(self.tree.root) if self._is_unheard(each))
        records: list[bytes] = []
        for what, cgroup, file in changes:
            if what == "modified":
                if file == _CGROUP_EVENTS:
                    self._look_at_populated(cgroup, now_ns, records)
                else:
                    self._limits.fired(cgroup, now_ns)
                continue
            self._account(what, cgroup)
            packed = packing.pack_cgroup(
                _KINDS[what], now_ns, cgroup.cgroup_id, cgroup.parent_id, cgroup.level, cgroup.name
            )
            self._send(records, _KINDS[what], cgroup.cgroup_id, packed)
        if now_ns - self._looked_ns >= _LOOK_NS:
            self._looked_ns = now_ns
            self._now = self._vmstat.read()
            self._limits.look_again(self._now, now_ns)
            for cgroup in self._fresh:
                self._arm(cgroup, now_ns, is_old=False)
                self._look_at_populated(cgroup, now_ns, records)
            self._fresh.clear()
        for kill in self._limits.take_kills(now_ns):
            packed = packing.pack_oom_kill(now_ns, kill.cgroup_id, kill.limit_id, is_global=kill.is_global)
            for _ in range(kill.count):
                self._send(records, packing.KOORD_OOM_KILL, kill.cgroup_id, packed)
        return records

    def _account(self, what: Change, cgroup: TreeCgroup) -> None:
        match what:
            case "born":
                self._mkdirs += 1
                self._fresh.add(cgroup)
                self._pressure.born(cgroup)
            case "died":
                self._deaths += 1
                self._fresh.discard(cgroup)
                self._populated.pop(cgroup.cgroup_id, None)
                self._limits.died(cgroup)
                self._pressure.died(cgroup)

    def _send(self, records: list[bytes], kind: int, cgroup_id: int, packed: bytes) -> None:
        is_wanted = self._only is None or cgroup_id in self._only or kind in _KINDS.values()
        if self._kinds >> kind & 1 and is_wanted:
            records.append(packed)
            self._sent += 1

    def _is_unheard(self, cgroup: TreeCgroup) -> bool:
        return cgroup.cgroup_id not in self._populated or self._limits.misses(cgroup)

    def _arm(self, cgroup: TreeCgroup, now_ns: int, *, is_old: bool) -> None:
        self._limits.arm(cgroup, now_ns, is_old=is_old)
        if self._request.hierarchy_version == 2 and self.tree.arm(cgroup, _CGROUP_EVENTS):
            self._populated.setdefault(cgroup.cgroup_id, is_old and _is_populated(cgroup))

    def _look_at_populated(self, cgroup: TreeCgroup, now_ns: int, records: list[bytes]) -> None:
        before = self._populated.get(cgroup.cgroup_id)
        if before is None:
            return
        populated = _is_populated(cgroup)
        if populated == before:
            return  # cgroup.events has the freezer's state too
        self._populated[cgroup.cgroup_id] = populated
        self._populated_changes += 1
        packed = packing.pack_populated(now_ns, cgroup.cgroup_id, cgroup.level, populated=populated)
        self._send(records, packing.KOORD_POPULATED, cgroup.cgroup_id, packed)

    def totals(self) -> bytes:
        """Return struct koord_totals as it is now. kswapd: its runs, of all NUMA nodes in node 0.

        `episodes` are allocation stalls of the machine and the times a limit was hit. `ring_lost` counts overflows of
        the kernel's queue, each of which may have hidden any number of mkdir and rmdir until the next rescan.
        """
        now_ns = time.monotonic_ns()
        if now_ns - self._looked_ns >= _LOOK_NS:
            self._now = self._vmstat.read()
        first, now = self._first, self._now
        some_ns, changed_ns = self._pressure.node_some_ns(now_ns)
        kills = self._limits.kills
        if self._request.node_cgroup_id is None:  # the root cgroup's own tasks stand in no cgroup's file
            kills = max(kills, (now.oom_kill or 0) - (first.oom_kill or 0))
        return packing.pack_totals(
            episodes=now.allocstall - first.allocstall + self._limits.hits,
            compactions=(now.compact_stall or 0) - (first.compact_stall or 0),
            populated=self._populated_changes,
            oom_kills=kills,
            births=self._mkdirs,
            deaths=self._deaths,
            ring_sent=self._sent,
            ring_lost=self.tree.overflows,
            node_some_ns=some_ns,
            node_changed_ts_ns=changed_ns,
            kswapd_runs=(now.pageoutrun or 0) - (first.pageoutrun or 0),
        )

    def stalls(self) -> list[tuple[bytes, bytes]]:
        """Return cgroup id and struct koord_stall of every cgroup that stalled, as `PressureTotals` tells.

        Cost:    20 µs for each cgroup whose pressure rose, and 5 µs where none did.
        """
        now_ns = time.monotonic_ns()
        self._now = self._vmstat.read()
        self._limits.look_again(self._now, now_ns)
        return self._pressure.stalls(self._now, self._limits, now_ns)

    def forget(self, cgroup_id: int) -> None:
        """Free what is kept of a cgroup that is gone."""
        self._pressure.forget(cgroup_id)
        self._limits.forget(cgroup_id)

    @property
    def can_scan(self) -> bool:
        """Never: the cgroups' files are read one by one."""
        return False

    def scan(self) -> memoryview:
        """Refuse: there is no scan without BPF.

        Raises:  SupportError: always.
        """
        raise SupportError("one-pass scan", "the files backend has none", "Read the cgroups' files instead.")

    def scanned(self) -> memoryview:
        """Refuse as `scan` does."""
        return self.scan()

    def scan_missed(self) -> int:
        """Return 0: there is no scan that could miss any."""
        return 0

    def send_kinds(self, kinds: int) -> None:
        """Send the records of these kinds, bit 1 << enum koord_kind for each; all are counted."""
        self._kinds = kinds

    def send_only(self, cgroup_ids: Collection[int] | None) -> None:
        """Send only records of these cgroups; None: of all. mkdir, rmdir and rename always come; all are counted."""
        self._only = None if cgroup_ids is None else frozenset(cgroup_ids)

    def lost_probes(self) -> list[SignalSource]:
        """Return the source of mkdir while watches are missing for some cgroups; else nothing."""
        source = self._describe_mkdir()
        self.sources = [source if each.signal == CGROUP_LIFECYCLE else each for each in self.sources]
        return [] if source.works else [source]

    def close(self) -> None:
        """Close every fd; twice is harmless."""
        self.tree.close()
        self._pressure.close()
        self._vmstat.close()

    def _describe_mkdir(self) -> SignalSource:
        if not self.tree.unwatched:
            return SignalSource(CGROUP_LIFECYCLE, "inotify on each cgroup's directory", works=True)
        return SignalSource(
            CGROUP_LIFECYCLE,
            "inotify on each cgroup's directory",
            False,
            f"{len(self.tree.unwatched)} cgroups have no watch: {self.tree.watches} of at most"
            f" {self.tree.max_watches} are taken, half of fs.inotify.max_user_watches",
            "Raise it: sysctl fs.inotify.max_user_watches=1048576.",
            "new pods below them are found by rescans, up to a second late",
        )

    def _describe(self) -> list[SignalSource]:
        is_v2 = self._request.hierarchy_version == 2
        scan_cost = "one file read per cgroup instead: about ten times the cost"
        no_pid = "without the victim's pid and size"
        return [
            *self._pressure.sources(),
            SignalSource(
                "kswapd activity",
                "/proc/vmstat pageoutrun",
                True,
                "it is not known by NUMA node",
                "Use BPF.",
                "runs are counted, not timed",
            ),
            SignalSource(
                "OOM kills with their cgroup",
                "memory.events.local by inotify"
                if is_v2
                else "memory.oom_control, looked at when /proc/vmstat oom_kill moves",
                True,
                "the files hold numbers only",
                "Use BPF.",
                no_pid,
            ),
            self._describe_mkdir(),
            SignalSource("cgroup renames", "inotify" if not is_v2 else "none: cgroup v2 renames nothing", works=True),
            SignalSource(
                "usage of all cgroups in one pass", "", False, "needs a BPF cgroup iterator", "Use BPF.", scan_cost
            ),
        ]


def _all_of(top: TreeCgroup) -> list[TreeCgroup]:
    found = [top]
    for cgroup in found:
        found.extend(cgroup.children.values())
    return found


def _is_populated(cgroup: TreeCgroup) -> bool:
    try:
        return b"populated 1" in Path(cgroup.path, _CGROUP_EVENTS).read_bytes()
    except OSError as error:
        if error.errno not in (errno.ENODEV, errno.ENOENT):
            raise
        return False
