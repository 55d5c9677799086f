"""The signals without any BPF program: inotify on the cgroup tree, and the kernel's counters in files.

What files cannot tell: single stalls, whose they were within a cgroup, and the pid of an OOM kill's victim.
`quality` says so wherever it matters.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from koordebpf.errors import KernelFileError, KernelProblem, SupportError
from koordebpf.kernel.backends.limit_events import LimitEvents
from koordebpf.kernel.cgroup.tree import CgroupTree, Change, TreeCgroup
from koordebpf.kernel.io.table import RAN_BACKWARDS, report_odd
from koordebpf.kernel.proc.psi import NODE_MEMORY_PRESSURE, PressureFile, parse_pressure
from koordebpf.kernel.proc.vmstat import Vmstat, VmstatValues
from koordebpf.kernel.signals import CGROUP_LIFECYCLE, BackendName, SignalRequest, SignalSource
from koordebpf.units import NS_PER_MS, NS_PER_S, gained

# enum koord_kind
KOORD_OOM_KILL = 2
KOORD_CGROUP_MKDIR = 3
KOORD_CGROUP_RMDIR = 4
KOORD_CGROUP_RENAME = 5
KOORD_POPULATED = 10
KOORD_NAME_LEN = 136
KOORD_HIST_SLOTS = 32
KOORD_MAX_NUMA_NODES = 64
_CGROUP = struct.Struct(f"<IIQQQII{KOORD_NAME_LEN}s")
_OOM_KILL = struct.Struct("<IIQQQ4QII16s")
_POPULATED = struct.Struct("<IIQQII")
_SUM = struct.Struct(f"<4Q{4 * KOORD_HIST_SLOTS}x")
_STALL_TAIL = struct.Struct("<3Q2I")
_TOTALS = struct.Struct(f"<11Q56x2Q16x{KOORD_MAX_NUMA_NODES}Q{2 * 8 * KOORD_MAX_NUMA_NODES}x")
_CAUSES = 6  # struct koord_stall: global, limit, compaction, throttled, other_global, other_limit
# Members of struct koord_stall, by place.
_GLOBAL, _LIMIT, _COMPACTION, _OTHER_GLOBAL = 0, 1, 2, 4
_NS_PER_US = 1_000
_FILE_BYTES = 1 << 10
_CGROUP_EVENTS = "cgroup.events"
_KINDS: dict[Change, int] = {
    "born": KOORD_CGROUP_MKDIR,
    "died": KOORD_CGROUP_RMDIR,
    "renamed": KOORD_CGROUP_RENAME,
}
# enum koord_kind as bits: OOM kill, cgroup mkdir, rmdir, rename. What the agent lives on.
_NEEDED_KINDS = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5
# Why 100 ms: new cgroups and those whose limit is hit all the time are looked at this often at most; most cgroups that
# live shorter are never looked into.
_LOOK_NS = 100 * NS_PER_MS
# Why 30 s: what no event tells (a controller that is switched on later, watches that are free again) is found then.
_COMPARE_NS = 30 * NS_PER_S


def pack_cgroup(kind: int, ts_ns: int, cgroup_id: int, parent_id: int, level: int, name: str) -> bytes:
    """Return struct koord_cgroup; a name that is too long is cut and marked."""
    raw = os.fsencode(name)
    is_cut = len(raw) >= KOORD_NAME_LEN
    return _CGROUP.pack(
        kind, _CGROUP.size, ts_ns, cgroup_id, parent_id, level, is_cut, raw[: KOORD_NAME_LEN - 1] if is_cut else raw
    )


def pack_oom_kill(ts_ns: int, cgroup_id: int, limit_id: int, *, is_global: bool) -> bytes:
    """Return struct koord_oom_kill of a victim that nothing but its cgroup is known of."""
    return _OOM_KILL.pack(KOORD_OOM_KILL, _OOM_KILL.size, ts_ns, cgroup_id, limit_id, 0, 0, 0, 0, 0, is_global, b"")


def pack_populated(ts_ns: int, cgroup_id: int, level: int, *, populated: bool) -> bytes:
    """Return struct koord_populated."""
    return _POPULATED.pack(KOORD_POPULATED, _POPULATED.size, ts_ns, cgroup_id, populated, level)


def pack_stall(sums: Sequence[tuple[int, int]], some_ns: int, changed_ts_ns: int) -> bytes:
    """Return struct koord_stall of (count, total_ns) for each of its six causes, without histograms and maxima."""
    if len(sums) != _CAUSES:
        raise ValueError(f"{len(sums)} causes: must be {_CAUSES}")
    body = b"".join(_SUM.pack(count, total_ns, 0, 0) for count, total_ns in sums)
    return body + _STALL_TAIL.pack(some_ns, changed_ts_ns, changed_ts_ns, 0, 0)


def pack_totals(
    *,
    episodes: int,
    compactions: int,
    populated: int,
    oom_kills: int,
    births: int,
    deaths: int,
    ring_sent: int,
    ring_lost: int,
    node_some_ns: int,
    node_changed_ts_ns: int,
    kswapd_runs: int,
) -> bytes:
    """Return struct koord_totals; kswapd's runs, which nothing tells apart by NUMA node, stand in node 0."""
    head = (episodes, compactions, 0, 0, populated, 0, oom_kills, births, deaths, ring_sent, ring_lost)
    return _TOTALS.pack(*head, node_some_ns, node_changed_ts_ns, kswapd_runs, *(0,) * (KOORD_MAX_NUMA_NODES - 1))


# Time lost to memory in each cgroup, from the totals of the memory.pressure files; without them, counts of limit hits.
#
# The kernel does not tell there whose shortage it was. What is known besides decides, for each interval and leaf
# cgroup: the cgroup or one above it hit its limit: `limit`; else the machine (or the node's own limit) reclaimed
# directly: `global`; else it compacted: `compaction`; else `other_global`, which is refault and swap-in.


class _Account:
    __slots__ = ("changed_ns", "counts", "some_ns", "times_ns", "total_us")

    def __init__(self, total_us: int) -> None:
        self.total_us = total_us  # as read last
        self.counts = [0] * _CAUSES
        self.times_ns = [0] * _CAUSES
        self.some_ns = 0
        self.changed_ns = 0


class PressureTotals:
    """What each cgroup of a tree stalled since start."""

    def __init__(self, tree: CgroupTree, request: SignalRequest) -> None:
        self._tree = tree
        self._is_machine = request.node_cgroup_id is None
        self._accounts: dict[int, _Account] = {}
        self._vmstat: VmstatValues | None = None
        self._node = self._open_node(request)
        self._node_us = 0
        self._node_first_us = self._node_us = self._read_node()
        self._node_changed_ns = time.monotonic_ns()
        self._descended_us = -1
        self.has_cgroups = request.hierarchy_version == 2 and self._node is not None
        if self.has_cgroups:
            stack = [tree.root]
            while stack:
                cgroup = stack.pop()
                self._accounts[cgroup.cgroup_id] = _Account(_some_us(cgroup) or 0)
                stack.extend(cgroup.children.values())

    @staticmethod
    def _open_node(request: SignalRequest) -> PressureFile | None:
        if request.node_cgroup_id is not None and request.hierarchy_version == 1:
            return None
        path = NODE_MEMORY_PRESSURE if request.node_cgroup_id is None else request.root / "memory.pressure"
        try:
            file = PressureFile(path)
        except KernelProblem:
            return None
        try:
            file.read()
        except KernelProblem:  # psi=0 shows itself at the first read
            file.close()
            return None
        return file

    def _read_node(self) -> int:
        try:
            return self._node.read().some.total_us if self._node else 0
        except KernelProblem:  # as it was: a file of another form says nothing, and its reader counts it
            return self._node_us

    def node_some_ns(self, now_ns: int) -> tuple[int, int]:
        """Return how long some task of the node stalled since start, and when that was seen to change."""
        node_us = self._read_node()
        if gained(node_us, self._node_us) is None:
            self._node_first_us += node_us - self._node_us
        if node_us != self._node_us:
            self._node_us, self._node_changed_ns = node_us, now_ns
        return (node_us - self._node_first_us) * _NS_PER_US, self._node_changed_ns

    def born(self, cgroup: TreeCgroup) -> None:
        """Count a new cgroup from zero."""
        self._accounts[cgroup.cgroup_id] = _Account(0)

    def died(self, cgroup: TreeCgroup) -> None:
        """Forget a cgroup that is gone."""
        self.forget(cgroup.cgroup_id)

    def forget(self, cgroup_id: int) -> None:
        """Forget the sums of an id."""
        self._accounts.pop(cgroup_id, None)

    def stalls(self, vmstat: VmstatValues, limits: LimitEvents, now_ns: int) -> list[tuple[bytes, bytes]]:
        """Return cgroup id and struct koord_stall of every cgroup that stalled or hit its limit.

        `count` is how often a limit was hit, and for the other causes in how many looks the time rose. A cgroup with
        children has a row with its `some_ns` only, as the contract says. The time is that of the pressure file: at
        least one task stalled, which is less than the sum over tasks.
        """
        hits = limits.drain_hits()
        for cgroup_id, count in hits.items():
            account = self._accounts.setdefault(cgroup_id, _Account(0))
            account.counts[_LIMIT] += count
            account.changed_ns = now_ns
        node_us = self._read_node()
        if self.has_cgroups and node_us != self._descended_us:
            self._descended_us = node_us
            self._descend(self._node_cause(vmstat, hits), hits, now_ns)
        self._vmstat = vmstat
        return [
            (
                cgroup_id.to_bytes(8, "little"),
                pack_stall(tuple(zip(each.counts, each.times_ns, strict=True)), each.some_ns, each.changed_ns),
            )
            for cgroup_id, each in self._accounts.items()
            if each.changed_ns
        ]

    def _node_cause(self, now: VmstatValues, hits: dict[int, int]) -> int:
        before = self._vmstat or now
        if now.allocstall != before.allocstall or (not self._is_machine and self._tree.root.cgroup_id in hits):
            return _GLOBAL
        return _COMPACTION if now.compact_stall != before.compact_stall else _OTHER_GLOBAL

    # A cgroup's total rises with any of its descendants': what did not rise need not be looked into.
    def _descend(self, node_cause: int, hits: dict[int, int], now_ns: int) -> None:
        stack = [(self._tree.root, node_cause)]
        while stack:
            cgroup, cause = stack.pop()
            is_root = cgroup is self._tree.root
            if not is_root and cgroup.cgroup_id in hits:
                cause = _LIMIT
            if not (is_root and self._is_machine):
                account = self._accounts.setdefault(cgroup.cgroup_id, _Account(0))
                total_us = _some_us(cgroup)
                if total_us is None or total_us == account.total_us:
                    continue
                grown_us, account.total_us = gained(total_us, account.total_us), total_us
                if grown_us is None:
                    report_odd(f"{cgroup.path}/memory.pressure", b"total=%d" % total_us, RAN_BACKWARDS)
                    continue
                grown_ns = grown_us * _NS_PER_US
                account.some_ns += grown_ns
                account.changed_ns = now_ns
                if not cgroup.children:
                    account.times_ns[cause] += grown_ns
                    account.counts[cause] += cause != _LIMIT or cgroup.cgroup_id not in hits
            stack.extend((child, cause) for child in cgroup.children.values())

    def sources(self) -> list[SignalSource]:
        """Return how reclaim stalls are obtained."""
        if self.has_cgroups:
            how, cost = "memory.pressure of each cgroup", "time without single stalls; refaults and swap-ins are in it"
            limit = f"{how}, while memory.events says that a limit is hit"
            return [
                SignalSource("global reclaim stalls", how, True, "no program times them", "Use BPF.", cost),
                SignalSource("memcg-limit reclaim stalls", limit, True, "no program times them", "Use BPF.", cost),
            ]
        why = "cgroup v1 has no memory.pressure" if self._node or not self._is_machine else "no pressure accounting"
        return [
            SignalSource(
                "global reclaim stalls",
                "/proc/vmstat allocstall, for the node alone",
                False,
                why,
                "Use BPF, or cgroup v2 with psi=1.",
                "stalls of pods are not timed",
            ),
            SignalSource(
                "memcg-limit reclaim stalls",
                "limit hits counted",
                False,
                why,
                "Use BPF, or cgroup v2 with psi=1.",
                "hits of a limit are counted, not timed",
            ),
        ]

    def close(self) -> None:
        """Close the node's file; twice is harmless."""
        if self._node:
            self._node.close()


# None: gone, without pressure files, switched off for this cgroup (cgroup.pressure), or of another form.
def _some_us(cgroup: TreeCgroup) -> int | None:
    try:
        fd = os.open(f"{cgroup.path}/memory.pressure", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENODEV, errno.ENOENT, errno.EOPNOTSUPP):
            raise
        return None
    try:
        text = os.read(fd, _FILE_BYTES)
    except OSError as error:
        if error.errno not in (errno.ENODEV, errno.EOPNOTSUPP):
            raise
        return None
    finally:
        os.close(fd)
    try:
        return parse_pressure(text, f"{cgroup.path}/memory.pressure").some.total_us
    except KernelFileError:
        return None


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
                    self._check_populated(cgroup, now_ns, records)
                else:
                    self._limits.fired(cgroup, now_ns)
                continue
            self._account(what, cgroup)
            packed = pack_cgroup(_KINDS[what], now_ns, cgroup.cgroup_id, cgroup.parent_id, cgroup.level, cgroup.name)
            self._send(records, _KINDS[what], cgroup.cgroup_id, packed)
        if now_ns - self._looked_ns >= _LOOK_NS:
            self._looked_ns = now_ns
            self._now = self._vmstat.read()
            self._limits.poll(self._now, now_ns)
            for cgroup in self._fresh:
                self._arm(cgroup, now_ns, is_old=False)
                self._check_populated(cgroup, now_ns, records)
            self._fresh.clear()
        for kill in self._limits.drain_kills(now_ns):
            packed = pack_oom_kill(now_ns, kill.cgroup_id, kill.limit_id, is_global=kill.is_global)
            for _ in range(kill.count):
                self._send(records, KOORD_OOM_KILL, kill.cgroup_id, packed)
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

    def _check_populated(self, cgroup: TreeCgroup, now_ns: int, records: list[bytes]) -> None:
        before = self._populated.get(cgroup.cgroup_id)
        if before is None:
            return
        populated = _is_populated(cgroup)
        if populated == before:
            return  # cgroup.events has the freezer's state too
        self._populated[cgroup.cgroup_id] = populated
        self._populated_changes += 1
        packed = pack_populated(now_ns, cgroup.cgroup_id, cgroup.level, populated=populated)
        self._send(records, KOORD_POPULATED, cgroup.cgroup_id, packed)

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
            kills = max(kills, gained(now.oom_kill, first.oom_kill) or 0)
        return pack_totals(
            episodes=(gained(now.allocstall, first.allocstall) or 0) + self._limits.hits,
            compactions=gained(now.compact_stall, first.compact_stall) or 0,
            populated=self._populated_changes,
            oom_kills=kills,
            births=self._mkdirs,
            deaths=self._deaths,
            ring_sent=self._sent,
            ring_lost=self.tree.overflows,
            node_some_ns=some_ns,
            node_changed_ts_ns=changed_ns,
            kswapd_runs=gained(now.pageoutrun, first.pageoutrun) or 0,
        )

    def stalls(self) -> list[tuple[bytes, bytes]]:
        """Return cgroup id and struct koord_stall of every cgroup that stalled, as `PressureTotals` tells.

        Cost:    20 µs for each cgroup whose pressure rose, and 5 µs where none did.
        """
        now_ns = time.monotonic_ns()
        self._now = self._vmstat.read()
        self._limits.poll(self._now, now_ns)
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
