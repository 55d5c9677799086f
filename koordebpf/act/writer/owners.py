"""Which strategy has which file written, as the journal has it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from koordebpf.act.writer.places import Original
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.reconcile import FileKey

SUPPRESS = "suppress"  # also of records without an owner: the ladder had a journal of its own then
LADDER = "ladder"


class Withdrawal(msgspec.Struct, frozen=True):
    """The files that a strategy has written and wants no more.

    `restored` are to hold what they held at first; `shared` are still wanted by others, with the owners that remain.
    """

    restored: dict[FileKey, Original]
    shared: dict[FileKey, Original]


def has_owner(original: Original, owner: str) -> bool:
    """Tell whether a strategy has the file written."""
    return owner in (original.owners or (SUPPRESS,))


def with_owners(original: Original, owners: Collection[str]) -> Original:
    """Return the record with these owners as well."""
    known = original.owners or (SUPPRESS,)
    new = tuple(owner for owner in owners if owner not in known)
    return msgspec.structs.replace(original, owners=(*known, *new)) if new else original


def withdrawal(
    originals: Mapping[FileKey, Original],
    owner: str | None,
    files: Collection[CgroupFile] | None,
    still_wanted: Collection[FileKey],
) -> Withdrawal:
    """Return what becomes of the journalled files when a strategy wants them no more.

    Args:
        originals: the record.
        owner: the strategy; None: all of them.
        files: only these, of every cgroup; None: all.
        still_wanted: files that another strategy names.
    """
    restored: dict[FileKey, Original] = {}
    shared: dict[FileKey, Original] = {}
    for key, original in originals.items():
        if (files is not None and key[1] not in files) or not (owner is None or has_owner(original, owner)):
            continue
        others = tuple(each for each in original.owners if owner is not None and each != owner)
        # A quota that another strategy had cut, and does not name, is as much of its own as the one above it leaves.
        if key in still_wanted or (others and key[1] is not CgroupFile.CPU_QUOTA):
            shared[key] = msgspec.structs.replace(original, owners=others)
        else:
            restored[key] = original
    return Withdrawal(restored, shared)
