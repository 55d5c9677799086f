"""What block IO wants of a node: which file gets which limits, and from which field. Pure.

On cgroup v2 a limit of a directory is one of all below it. On v1 it is one of the processes in that very directory
(block/blk-throttle.c: "the broken flat hierarchy behavior is retained"), so that containers get parts of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.files import CgroupFile, file_name
from koordebpf.kernel.cgroup.tables import Table, tighter
from koordebpf.policy.block_io.limits import LATENCY, LIMITS, THROTTLES, Names, Tables, cost_tables, tables_of
from koordebpf.policy.block_io.settings import BlockIOSettings, Share
from koordebpf.policy.reconcile.values import CgroupWrite
from koordebpf.slo.pods.block_io import BLKIO_QOS_ANNOTATION, annotated_blocks
from koordebpf.slo.strategies.resource_qos import Block, QOSClass
from koordebpf.state.block_io.measured import BlockIOMeasured, BlockIOPod, BlockIOView

_PLACE = "spec.resourceQOSStrategy"
_BE, _ANNOTATION = f"{_PLACE}.beClass.blkioQOS", f"annotation {BLKIO_QOS_ANNOTATION}"
_THROTTLES = frozenset(THROTTLES.values())


class BlockWrite(msgspec.Struct, frozen=True, gc=False):
    """One file, and in words the field that its limits come from."""

    write: CgroupWrite
    source: str


class Wanted(msgspec.Struct, frozen=True):
    """What block IO wants of a node, and sentences on what cannot be used."""

    writes: tuple[BlockWrite, ...] = ()
    problems: tuple[str, ...] = ()


def wanted(view: BlockIOView, settings: BlockIOSettings) -> Wanted:
    """Return what block IO wants of a node's files.

    Cost:    20 µs where nothing is limited, 0.2 ms with one limit of 330 containers.
    """
    collected = _Collected(view, settings.v1_share)
    collected.add_best_effort()
    for pod in view.pods:
        collected.add_pod(pod)
    collected.add_latencies()
    collected.add_root()
    writes = tuple(
        BlockWrite(CgroupWrite(path, file, table), " and ".join(sources))
        for (path, file), (table, sources) in sorted(collected.tables.items())
    )
    return Wanted(writes, tuple(dict.fromkeys(collected.problems)))


class _Collected:
    def __init__(self, view: BlockIOView, share: Share) -> None:
        self.tables: dict[tuple[str, CgroupFile], tuple[Table, tuple[str, ...]]] = {}
        self.problems: list[str] = []
        self._view = view
        self._measured: BlockIOMeasured = view.measured
        self._names = Names(view.measured.devices, view.measured.groups)
        self._is_flat = view.measured.version == 1 and share != "directory"
        self._divides = share == "divide"

    def add_best_effort(self) -> None:
        blocks, path = enabled_blocks(self._measured, "beClass"), self._measured.directories.get("BestEffort")
        if not blocks or path is None:
            return
        tables = tables_of(blocks, self._names, LIMITS, _BE, self.problems)
        containers = [each for pod in self._view.pods if pod.path.startswith(f"{path}/") for each in pod.containers]
        self._add(path, containers, tables, _BE)

    def add_pod(self, pod: BlockIOPod) -> None:
        if not pod.annotation:
            return
        problems: list[str] = []
        try:
            blocks = annotated_blocks(pod.annotation)
        except ConfigError as error:
            self.problems.append(f"pod {pod.key}: {error}; it has no limits of its own")
            return
        names = msgspec.structs.replace(self._names, volumes=pod.volumes, spec_volumes=pod.spec_volumes)
        tables = tables_of(blocks, names, LIMITS, _ANNOTATION, problems)
        self.problems += (f"pod {pod.key}: {each}" for each in problems)
        self._add(pod.path, pod.containers, tables, _ANNOTATION)

    # The kernel weighs the targets of one directory's children against each other: of the Burstable directory, and of
    # Guaranteed pods, which lie beside it. A pod's annotation never sets one: it would slow down the others.
    def add_latencies(self) -> None:
        directories = self._measured.directories
        top = directories.get("Guaranteed")
        guaranteed = [pod.path for pod in self._view.pods if pod.path.rpartition("/")[0] == top]
        burstable = [directories["Burstable"]] if "Burstable" in directories else []
        for name, paths in (("lsrClass", guaranteed), ("lsClass", burstable)):
            place = f"{_PLACE}.{name}.blkioQOS"
            tables = tables_of(enabled_blocks(self._measured, name), self._names, LATENCY, place, self.problems)
            for path in paths:
                self._put(path, tables, place)

    def add_root(self) -> None:
        place = f"{_PLACE}.cgroupRoot.blkioQOS"
        if blocks := enabled_blocks(self._measured, "cgroupRoot"):
            self._put("", cost_tables(blocks, self._names, place, self.problems), place)

    def _add(self, path: str, containers: Sequence[str], tables: Tables, source: str) -> None:
        if not self._is_flat:
            self._put(path, tables, source)
            return
        self._put(path, {file: table for file, table in tables.items() if file not in _THROTTLES}, source)
        of_each = {
            file: _part(table, len(containers)) if self._divides else table
            for file, table in tables.items()
            if file in _THROTTLES and containers
        }
        for container in containers:
            self._put(container, of_each, source)

    def _put(self, path: str, tables: Tables, source: str) -> None:
        for file, table in tables.items():
            if file not in self._measured.files:
                name = file_name(file, self._measured.version) or file_name(file, 2)
                self.problems.append(f"{source}: this node has no {name}, which it needs: it has no effect")
            elif (before := self.tables.get((path, file))) is None:
                self.tables[path, file] = table, (source,)
            else:
                self.tables[path, file] = tighter(before[0], table), (*before[1], source)


def enabled_blocks(measured: BlockIOMeasured, of_class: str) -> tuple[Block, ...]:
    """Return the blocks of a class; none: it is not enabled."""
    found: QOSClass | None = getattr(measured.qos, of_class, None)
    part = found.blkioQOS if found is not None else None
    return (part.blocks or ()) if part is not None and part.enable else ()


# At least one: no limit is less than that.
def _part(table: Table, count: int) -> Table:
    return Table.of({disk: max(1, limit // count) for disk, limit in table.rows})
