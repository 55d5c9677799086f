"""Which cgroups hit their limit and where the OOM killer was, from memory.events or, on cgroup v1, two counters.

v2: memory.events.local by inotify. v1 does not notify: memory.failcnt and memory.oom_control are read when /proc/vmstat
says that something was reclaimed or killed, at most each second.
"""

from __future__ import annotations

import errno
import os

import msgspec

from koordebpf.errors import KernelFileError
from koordebpf.kernel.cgroup.tree import CgroupTree, TreeCgroup
from koordebpf.kernel.io.table import keyed, number
from koordebpf.kernel.proc.vmstat import VmstatValues
from koordebpf.kernel.signals import SignalRequest
from koordebpf.units import NS_PER_S

_FILE_BYTES = 1 << 12
_GONE = (errno.ENODEV, errno.ENOENT)
_COUNTS = (b"high", b"max", b"oom", b"oom_kill")
_POLL_NS = NS_PER_S  # Why: 20 µs for each cgroup, while anything is reclaimed
# Why 2 s: a limit that was hit for so long before a kill was the reason of it; v1's counters are a second old at most.
_KILL_MEMORY_NS = 2 * NS_PER_S


class Kills(msgspec.Struct, frozen=True):
    """`count` tasks of a cgroup were killed for one limit; 0: the machine ran out."""

    cgroup_id: int
    limit_id: int
    is_global: bool
    count: int


class _Seen(msgspec.Struct):
    hits: int = 0  # high + max, v1 failcnt
    ooms: int = 0  # v1: failcnt again, which has no count of its own for it
    kills: int = 0
    oom_ns: int = 0  # when `ooms` rose last; 0: never


class LimitEvents:
    """The counters of every cgroup of a tree, and what was added to them."""

    def __init__(self, tree: CgroupTree, request: SignalRequest) -> None:
        self.hits = 0  # of all cgroups, since start
        self.kills = 0
        self._tree = tree
        self._node_id = request.node_cgroup_id
        self._is_v2 = request.hierarchy_version == 2
        self._seen: dict[int, _Seen] = {}
        self._hit: dict[int, int] = {}  # since the last take_hits
        self._killed: list[tuple[TreeCgroup, int]] = []
        self._disarmed: set[TreeCgroup] = set()
        self._gate: tuple[int | None, int | None] = (None, None)
        self._polled_ns = 0
        # memory.events.local came with Linux 5.2; before, there are only sums over the subtree.
        self._file = "memory.events.local"
        first = next(iter(tree.root.children.values()), tree.root)
        if self._is_v2 and _read(f"{first.path}/{self._file}") is None and _read(f"{first.path}/memory.events"):
            self._file = "memory.events"

    def misses(self, cgroup: TreeCgroup) -> bool:
        """Tell whether nothing is heard of a cgroup: its memory controller was off when it was armed."""
        return self._is_v2 and self._file not in cgroup.file_wds and cgroup not in self._disarmed

    def arm(self, cgroup: TreeCgroup, now_ns: int, *, is_old: bool) -> None:
        """Begin to count: an old cgroup from what it has now, a new one from zero."""
        if self._is_v2:
            self._tree.arm(cgroup, self._file, once=True)
        if cgroup.cgroup_id not in self._seen:
            self._seen[cgroup.cgroup_id] = (is_old and self._now(cgroup)) or _Seen()
        if not is_old:
            self._read(cgroup, now_ns)

    def fired(self, cgroup: TreeCgroup, now_ns: int) -> None:
        """Look at a cgroup whose file was modified; its watch is spent until `poll`.

        At once: a container whose last task was killed is soon gone, and its file with it.
        """
        self._disarmed.add(cgroup)
        self._read(cgroup, now_ns)

    def poll(self, vmstat: VmstatValues, now_ns: int) -> None:
        """Look at what may have changed, and set the watches that are spent."""
        for cgroup in self._disarmed:
            self._tree.arm(cgroup, self._file, once=True)
            self._read(cgroup, now_ns)
        self._disarmed.clear()
        if self._is_v2 or now_ns - self._polled_ns < _POLL_NS:
            return
        gate = (vmstat.pgscan, vmstat.oom_kill)
        if gate != self._gate or None in gate:
            self._gate, self._polled_ns = gate, now_ns
            stack = [self._tree.root]
            while stack:
                cgroup = stack.pop()
                self._read(cgroup, now_ns)
                stack.extend(cgroup.children.values())

    def _read(self, cgroup: TreeCgroup, now_ns: int) -> None:
        before = self._seen.get(cgroup.cgroup_id)
        now = self._now(cgroup)
        if before is None or now is None:
            return
        now.oom_ns = now_ns if now.ooms > before.ooms else before.oom_ns
        self._seen[cgroup.cgroup_id] = now
        if (hits := now.hits - before.hits) > 0:
            self.hits += hits
            self._hit[cgroup.cgroup_id] = self._hit.get(cgroup.cgroup_id, 0) + hits
        # Sums over the subtree would tell of each kill once more at every level.
        is_own = self._file != "memory.events" or not cgroup.children
        if (kills := now.kills - before.kills) > 0 and is_own:
            self.kills += kills
            self._killed.append((cgroup, kills))

    def drain_kills(self, now_ns: int) -> list[Kills]:
        """Return what the OOM killer did since the last call, each with the limit that was hit."""
        taken = []
        while self._killed:  # looking for a limit may find more
            cgroup, count = self._killed.pop(0)
            limit = self._limit_of(cgroup, now_ns)
            taken.append(Kills(cgroup.cgroup_id, limit, limit in (0, self._node_id), count))
        return taken

    def _limit_of(self, cgroup: TreeCgroup, now_ns: int) -> int:
        each: TreeCgroup | None = cgroup
        while each is not None:
            if self._is_v2:
                self._read(each, now_ns)  # its own event may still be in the queue
            seen = self._seen.get(each.cgroup_id)
            if seen and seen.oom_ns and now_ns - seen.oom_ns < _KILL_MEMORY_NS:
                return each.cgroup_id
            each = each.parent
        return 0

    def drain_hits(self) -> dict[int, int]:
        """Return how often each cgroup hit its limit (high or max) since the last call."""
        taken, self._hit = self._hit, {}
        return taken

    def died(self, cgroup: TreeCgroup) -> None:
        """Forget a cgroup that is gone."""
        self._disarmed.discard(cgroup)
        self.forget(cgroup.cgroup_id)

    def forget(self, cgroup_id: int) -> None:
        """Forget the counters of an id."""
        self._seen.pop(cgroup_id, None)
        self._hit.pop(cgroup_id, None)

    # None: gone, or without a memory controller, or of another form, which the reader counts.
    def _now(self, cgroup: TreeCgroup) -> _Seen | None:
        path = cgroup.path
        try:
            if self._is_v2:
                events = _counts(f"{path}/{self._file}")
                if events is None:
                    return None
                high, most, oom, kills = events
                return _Seen(high + most, oom, kills)
            failcnt = _read(f"{path}/memory.failcnt")
            control = _counts(f"{path}/memory.oom_control")
            if failcnt is None or control is None:
                return None
            hits = number(f"{path}/memory.failcnt", failcnt)
            return _Seen(hits, hits, control[-1])
        except KernelFileError:
            return None


# None: the cgroup is gone, or has no memory controller.
def _read(path: str) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return None
    try:
        return os.read(fd, _FILE_BYTES)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return None
    finally:
        os.close(fd)


# high, max, oom and oom_kill, 0 for what this kernel or cgroup version does not count.
def _counts(path: str) -> tuple[int, int, int, int] | None:
    data = _read(path)
    if data is None:
        return None
    high, most, oom, kills = (count or 0 for count in map(keyed(path, data, _COUNTS).optional, _COUNTS))
    return high, most, oom, kills
