"""Kernel records of cgroups, taken into an index as the agent does."""

from __future__ import annotations

from koordebpf.attribution.index import CgroupIndex
from koordebpf.events.records import CgroupMkdir, CgroupRename, CgroupRmdir


def apply(index: CgroupIndex, record: CgroupMkdir | CgroupRmdir | CgroupRename) -> None:
    """Take one record in."""
    match record:
        case CgroupMkdir():
            index.born(record)
        case CgroupRmdir():
            index.died(record)
        case CgroupRename():
            index.renamed(record)
