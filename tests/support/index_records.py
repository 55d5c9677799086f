"""Kernel records of cgroups, taken into an index as the agent does."""

from __future__ import annotations

from koordebpf.attribution.index import CgroupIndex
from koordebpf.events.records import CgroupBirth, CgroupDeath, CgroupRename


def apply(index: CgroupIndex, record: CgroupBirth | CgroupDeath | CgroupRename) -> None:
    """Take one record in."""
    match record:
        case CgroupBirth():
            index.born(record)
        case CgroupDeath():
            index.died(record)
        case CgroupRename():
            index.renamed(record)
