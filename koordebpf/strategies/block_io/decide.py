"""BlkIOReconcile: limits of block devices for best-effort pods, and for pods that ask for their own. Pure.

On cgroup v2 a limit of a directory is one of all below it. On v1 it is one of the processes in that very directory
(block/blk-throttle.c: "the broken flat hierarchy behavior is retained"), so that containers get parts of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.files import CgroupFile, file_name, table_maximum
from koordebpf.kernel.cgroup.tables import Table, tighter
from koordebpf.kernel.host.strategy_files import cgroup_file
from koordebpf.policy.reconcile import CgroupWrite
from koordebpf.policy.strategy import Decision, Empty, Strategy
from koordebpf.slo.strategies.resource_qos import Block, IOConfig, QOSClass
from koordebpf.state.view import NodeView
from koordebpf.strategies.block_io.values import (
    BLKIO_QOS_ANNOTATION,
    BlockIOMeasured,
    BlockIOPod,
    BlockIOSettings,
    BlockIOView,
    Disks,
    Share,
    annotated_blocks,
    block_io_view,
)

Tables = dict[CgroupFile, Table]
THROTTLES: Mapping[str, CgroupFile] = {
    "readBPS": CgroupFile.IO_READ_BPS,
    "writeBPS": CgroupFile.IO_WRITE_BPS,
    "readIOPS": CgroupFile.IO_READ_IOPS,
    "writeIOPS": CgroupFile.IO_WRITE_IOPS,
}
LIMITS: Mapping[str, CgroupFile] = {**THROTTLES, "ioWeightPercent": CgroupFile.IO_WEIGHT}
# The lower of two: io.latency has one target for both.
LATENCY: Mapping[str, CgroupFile] = {"readLatency": CgroupFile.IO_LATENCY, "writeLatency": CgroupFile.IO_LATENCY}
COST: Mapping[str, CgroupFile] = {
    "readLatencyPercent": CgroupFile.IO_COST_RPCT,
    "readLatency": CgroupFile.IO_COST_RLAT,
    "writeLatencyPercent": CgroupFile.IO_COST_WPCT,
    "writeLatency": CgroupFile.IO_COST_WLAT,
}
MODEL: Mapping[str, CgroupFile] = {
    "modelReadBPS": CgroupFile.IO_MODEL_RBPS,
    "modelReadSeqIOPS": CgroupFile.IO_MODEL_RSEQIOPS,
    "modelReadRandIOPS": CgroupFile.IO_MODEL_RRANDIOPS,
    "modelWriteBPS": CgroupFile.IO_MODEL_WBPS,
    "modelWriteSeqIOPS": CgroupFile.IO_MODEL_WSEQIOPS,
    "modelWriteRandIOPS": CgroupFile.IO_MODEL_WRANDIOPS,
}
_COST_DEFAULTS = {"readLatencyPercent": 95, "readLatency": 3000, "writeLatencyPercent": 95, "writeLatency": 3000}
_BFQ = "Give the device the scheduler bfq (v1), or enable io.cost (CONFIG_BLK_CGROUP_IOCOST)."
_SHOWN = 80  # characters of a name that a tenant may choose
_PLACE = "spec.resourceQOSStrategy"
_BE, _ANNOTATION = f"{_PLACE}.beClass.blkioQOS", f"annotation {BLKIO_QOS_ANNOTATION}"
_THROTTLES = frozenset(THROTTLES.values())


class Names(msgspec.Struct, frozen=True):
    """What names of blocks stand for: whole disks. `spec_volumes` are names of a pod's volumes in its spec."""

    devices: Mapping[str, Disks] = {}
    groups: Mapping[str, Disks] = {}
    volumes: Mapping[str, Disks] = {}
    spec_volumes: frozenset[str] = frozenset()

    def disks(self, block: Block, path: str) -> Disks:
        """Return the disks of a block, at least one.

        Raises:  ConfigError: no such type, no such name, or it cannot be known which volume is meant.
        """
        match block.type:
            case "device":
                found, rule = self.devices.get(block.name), "must be a block device such as /dev/vdb"
            case "volumegroup":
                found, rule = self.groups.get(block.name), "must be a volume group of LVM with a volume in use"
            case "podvolume":
                found, rule = self._volume(block.name)
            case _:
                raise ConfigError(f"{path}.type", block.type[:_SHOWN], "must be device, volumegroup or podvolume")
        if not found:
            raise ConfigError(f"{path}.name", block.name[:_SHOWN], rule)
        return found

    # The directory of a claim is named after its PersistentVolume, which the pod's spec does not name.
    def _volume(self, name: str) -> tuple[Disks | None, str]:
        if name in self.volumes:
            return self.volumes[name], ""
        rule = "must be a volume of the pod that is mounted from a block device, or its PersistentVolume"
        if name not in self.spec_volumes:
            return None, rule
        claimed = {disks for each, disks in self.volumes.items() if each not in self.spec_volumes}
        if len(claimed) > 1:
            return None, "must be the PersistentVolume's name: the pod has several claims, on different disks"
        return (claimed.pop() if claimed else None), rule


def tables_of(
    blocks: Iterable[Block], names: Names, fields: Mapping[str, CgroupFile], place: str, problems: list[str]
) -> Tables:
    """Return the limit of each disk, file by file; where two blocks lie on one disk the lower one. 0 is no limit.

    Args:
        blocks: as written.
        names: what their names stand for.
        fields: those that count; others are named.
        place: of the blocks, for problems.
        problems: sentences are added.
    """
    limits: dict[CgroupFile, dict[str, int]] = {}
    for at, block in enumerate(blocks):
        path = f"{place}.blocks[{at}]"
        config = block.ioCfg or IOConfig()
        problems += unused(config, fields, path)
        try:
            disks = names.disks(block, path)
        except ConfigError as error:
            problems.append(f"{error}; the block is left out")
            continue
        for name, file in fields.items():
            value = getattr(config, name)
            if not value or value > table_maximum(file):  # so many requests a second that it is no limit
                continue
            of_file = limits.setdefault(file, {})
            for disk in disks:
                of_file[disk] = min(value, of_file.get(disk, value))
    return {file: Table.of(rows) for file, rows in limits.items()}


def cost_tables(blocks: Iterable[Block], names: Names, place: str, problems: list[str]) -> Tables:
    """Return io.cost of the root: what it aims for, and its model of each disk where `enableUserModel` says so.

    What a block leaves out of its aims is koordlet's default: 95 % of requests within 3 ms.
    """
    whole = [
        msgspec.structs.replace(each, ioCfg=_with_defaults(each.ioCfg or IOConfig(), at, place, problems))
        for at, each in enumerate(blocks)
    ]
    return tables_of(whole, names, {**COST, **MODEL}, place, problems)


def unused(config: IOConfig, fields: Mapping[str, CgroupFile], path: str) -> list[str]:
    """Return a sentence on each field that is set and has no effect in this place."""
    written = msgspec.structs.asdict(config)
    return [
        f"{path}.ioCfg.{name}: has no effect here"
        for name, value in written.items()
        if value is not None and name not in fields
    ]


def _with_defaults(config: IOConfig, at: int, place: str, problems: list[str]) -> IOConfig:
    aims = {name: value for name, value in _COST_DEFAULTS.items() if getattr(config, name) is None}
    ignored: dict[str, None] = {}
    if not config.enableUserModel:
        ignored = dict.fromkeys(MODEL)
        if any(getattr(config, name) is not None for name in MODEL):
            problems.append(f"{place}.blocks[{at}].ioCfg: model… has no effect without enableUserModel")
    return msgspec.structs.replace(config, **aims, **ignored, enableUserModel=None)


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


class BlockIODecision(Decision[Empty], frozen=True, kw_only=True):
    """The decision with what each write comes from, and sentences on what cannot be used."""

    sources: tuple[BlockWrite, ...] = ()
    problems: tuple[str, ...] = ()


class BlockIO(Strategy[BlockIOMeasured, Empty, BlockIOSettings]):
    """Koordlet's blkio strategy: asked each 10 s, and at once when a pod, the NodeSLO or a cgroup changes."""

    name = "blockIO"
    gate = "BlkIOReconcile"
    summary = "limit the block IO of best-effort pods, and of pods that ask"
    measured = BlockIOMeasured
    settings = BlockIOSettings
    annotations = frozenset({BLKIO_QOS_ANNOTATION})
    needs = (
        cgroup_file("limit bytes and operations a second", "2.6.37", CgroupFile.IO_READ_BPS),
        cgroup_file("weigh pods", "5.4", CgroupFile.IO_WEIGHT, remedy=_BFQ),
        cgroup_file("keep a latency target", "4.19", CgroupFile.IO_LATENCY),
        cgroup_file("model the device", "5.4", CgroupFile.IO_COST_RPCT, is_in_root=True),
    )
    state = Empty

    def decide(
        self, view: NodeView, measured: BlockIOMeasured | None, state: Empty, settings: BlockIOSettings
    ) -> BlockIODecision:
        """Return the limits of all directories.

        Skips:   not_due: what was written before stays.
        """
        if measured is None:
            return BlockIODecision(state=state, reason="block IO is not due", skipped="not_due")
        made = wanted(block_io_view(measured, view.facts), settings)
        writes = tuple(each.write for each in made.writes)
        paths = len({each.path for each in writes})
        return BlockIODecision(
            state=state,
            reason=f"block IO: {paths} cgroups have limits of {_devices(made.writes)} devices",
            writes=writes,
            sources=made.writes,
            problems=made.problems,
        )


def _devices(writes: tuple[BlockWrite, ...]) -> int:
    return len({device for each in writes for device, _ in getattr(each.write.value, "rows", ())})


BLOCK_IO = BlockIO()
