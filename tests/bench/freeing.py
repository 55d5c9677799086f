"""How long after the decision the victim's memory is free again."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from tests.bench.figure import figure
from tests.bench.nodes import FullNode, full_node
from tests.bench.report import Report
from tests.support.agent_process import AgentProcess
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB

_BLOCKS = 2  # in turn, so that a machine that gets busier favours none
_SLACK_BYTES = 32 * MIB
_POLL_S = 0.0005
_NS_PER_MS = 1_000_000
_METHOD = (
    "from decided_ns of the audit line until the node cgroup's usage, polled each 0.5 ms, is within"
    " 32 MiB of what it was; executor cgroup"
)


def freeing(report: Report) -> None:
    """Let victims of 1 and 2.5 GiB be evicted, n ≥ 20 each; on cgroup v1 some are not frozen first, in turn."""
    n = 3 if report.quick else 20
    with full_node() as node:
        for percent, size in ((17, "1 GiB"), (42, "2.5 GiB")):
            found: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(_BLOCKS):
                for is_frozen in (True, False) if node.hog_joins_too else (True,):
                    found[is_frozen] += _series(node, percent, -(-n // _BLOCKS), is_frozen=is_frozen)
            name = f"decision → memory free again, {size}"
            report.add(figure(name, "ms", found[True], _METHOD, reach_p99=150))
            if found[False]:
                report.add(figure("  not in the freezer hierarchy", "ms", found[False], _METHOD))


def _series(node: FullNode, percent: int, n: int, *, is_frozen: bool) -> list[float]:
    took: list[float] = []
    threshold = node.threshold_bytes(percent)
    with tempfile.TemporaryDirectory() as name:
        audit = Path(name) / "audit.jsonl"
        manifest = node.cgroup.write_manifest(Path(name) / "pods.json", percent, percent - 2)
        with AgentProcess(node.cgroup, manifest, audit=audit) as agent:
            for number in range(n):
                base = int(node.usage_file.read_text())
                hog = Hog(node.hog, (threshold + 64 * MIB) // MIB, *(node.hog_joins_too if is_frozen else ()))
                try:
                    freed_ns = _wait_freed(node.usage_file, base, threshold // 2)
                finally:
                    hog.stop()
                plan = agent.wait_for_eviction(number)
                took.append((freed_ns - plan["decided_ns"]) / _NS_PER_MS)
                time.sleep(0.2)
    return took


def _wait_freed(usage_file: Path, base: int, half: int) -> int:
    # Return when usage was back after it had been over half of the threshold.
    was_high = False
    deadline_ns = time.monotonic_ns() + 30 * 1_000_000_000
    fd = os.open(usage_file, os.O_RDONLY)
    try:
        while (now_ns := time.monotonic_ns()) < deadline_ns:
            usage = int(os.pread(fd, 32, 0))
            was_high = was_high or usage > half
            if was_high and usage < base + _SLACK_BYTES:
                return now_ns
            time.sleep(_POLL_S)
    finally:
        os.close(fd)
    raise RuntimeError("the victim's memory did not come back within 30 s")
