"""Usage and LRU sizes of a thousand memory cgroups: in one pass, and by their files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.events.layout import decode_memcgs, unpack_memcgs
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, find_memory_hierarchy, walk
from koordebpf.kernel.signals import Backend
from koordebpf.units import PAGE_BYTES
from tests.bench.figure import figure
from tests.bench.report import Report
from tests.bench.timing import times_ms
from tests.support.nodes import MIB, NodeCgroup

_CGROUPS = 1000
_CONTAINERS = 3  # of each pod
_NODE_LEVELS = 4  # the node, kubepods, burstable, besteffort


def scan(report: Report) -> None:
    """Read the same cgroups in five ways."""
    hierarchy = find_memory_hierarchy()
    with ExitStack() as stack:
        node = stack.enter_context(NodeCgroup(hierarchy.mount_point, hierarchy.version, 1024 * MIB))
        for number in range((_CGROUPS - _NODE_LEVELS) // (1 + _CONTAINERS)):
            node.add_pod(f"pod-{number}", containers=_CONTAINERS)
        paths = [node.path.parent / path for _, _, path in walk(node.path, node.path.parent)]
        report.say(f"{len(paths)} cgroups")
        watch = stack.enter_context(NodeWatch(open_scope(hierarchy, node.path), None, 0))
        if watch.signals.can_scan:
            _one_pass(report, watch.signals, len(paths))
        else:
            report.cannot("scan: this kernel has no cgroup iterator (since 6.1)")
        kept = [stack.enter_context(CgroupMemory(path, hierarchy.version)) for path in paths]
        _by_files(report, kept, paths)


def _one_pass(report: Report, signals: Backend, cgroups: int) -> None:
    def in_kernel() -> None:
        signals.scan().release()

    def numbers() -> int:
        with signals.scan() as rows:
            return len(list(unpack_memcgs(rows)))

    def values() -> int:
        with signals.scan() as rows:
            return len(list(decode_memcgs(rows, PAGE_BYTES)))

    if not numbers() == values() == cgroups:
        raise RuntimeError(f"the scan reports {numbers()} cgroups, the file system has {cgroups}")
    n = 100 if report.quick else 1000
    name = f"scan of {cgroups} memory cgroups"
    report.add(figure(f"{name}, in the kernel", "ms", _times(in_kernel, n), "one pass, usage, limit and LRU sizes"))
    report.add(figure(f"{name}, decoded", "ms", _times(numbers, n), "the same and a row of numbers each", reach_p50=1))
    report.add(figure(f"{name}, as values", "ms", _times(values, n), "the same and a MemcgSample each"))


def _by_files(report: Report, kept: list[CgroupMemory], paths: list[Path]) -> None:
    version = kept[0].version

    def usages() -> None:
        for each in kept:
            each.usage_bytes()

    def everything() -> None:
        for each in kept:
            each.read()

    def opened() -> None:
        for path in paths:
            with CgroupMemory(path, version) as each:
                each.read()

    n = 10 if report.quick else 50
    name = f"the same {len(paths)} by files"
    report.add(figure(f"{name}, kept open, usage alone", "ms", _times(usages, n), "pread of one file each"))
    report.add(figure(f"{name}, kept open", "ms", _times(everything, n), "pread of usage and memory.stat each"))
    report.add(figure(f"{name}, opened", "ms", _times(opened, n), "open, read and close of both each"))


def _times(call: Callable[[], object], n: int) -> list[float]:
    call()
    return times_ms(call, n)
