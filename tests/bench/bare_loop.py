"""The least that Python can do: sleep by the distance to the threshold, scan, kill the biggest. For comparison only.

`python -m tests.bench.bare_loop NODE_CGROUP THRESHOLD_BYTES` prints `sent NS SEEN_NS` for each kill.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.events.layout import MEMCG_LRU_AT, unpack_memcgs
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, find_memory_hierarchy

_FLOOR_S = 0.005
_FASTEST_BYTES_PER_S = 6 << 30


def main(node: Path, threshold_bytes: int) -> None:
    """Kill what is biggest each time the usage reaches the threshold."""
    scope = open_scope(find_memory_hierarchy(), node)
    mount_point = scope.hierarchy.mount_point
    with NodeWatch(scope, None, 1 << 60) as watch, CgroupMemory(node, scope.hierarchy.version) as memory:
        print("ready", flush=True)
        while True:
            usage = memory.usage_bytes()
            if usage < threshold_bytes:
                time.sleep(min(1.0, max(_FLOOR_S, (threshold_bytes - usage) / _FASTEST_BYTES_PER_S)))
                continue
            seen_ns = time.monotonic_ns()
            rows = watch.signals.scan()
            leaves = {row[0]: sum(row[MEMCG_LRU_AT : MEMCG_LRU_AT + 2]) for row in unpack_memcgs(rows)}
            rows.release()
            victim = watch.index.path(max(leaves, key=lambda cgroup_id: leaves[cgroup_id]))
            assert victim is not None
            for pid in (mount_point / victim / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            print("sent", time.monotonic_ns(), seen_ns, flush=True)
            while memory.usage_bytes() > threshold_bytes // 2:
                time.sleep(0.005)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
