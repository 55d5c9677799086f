"""Records and map values of bpf/include/koord_events.h, packed: for what has no BPF program behind it.

`koordebpf.events` decodes them; a test holds the two together.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

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
