"""Blocks of a NodeSLO or an annotation to a limit for each disk. What cannot be used is named and left out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.files import CgroupFile, table_maximum
from koordebpf.kernel.cgroup.tables import Table
from koordebpf.slo.strategies.resource_qos import Block, IOConfig
from koordebpf.state.block_io.measured import Disks

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
_SHOWN = 80  # characters of a name that a tenant may choose


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
