"""Which rows of a file are ours, where several processes write rows of it: limits of block devices."""

from __future__ import annotations

from koordebpf.act.writer.places import Original, Places
from koordebpf.kernel.cgroup.files import Value
from koordebpf.kernel.cgroup.tables import Table, differing, with_rows


def our_devices(known: Original | None, before: Table, now: Table, written: Value) -> tuple[str, ...] | None:
    """Return the devices whose rows are ours at any moment of a write; None: it is not known.

    Args:
        known: the record of the file; None: there is none yet.
        before: the rows to which it is restored.
        now: what it holds.
        written: what it is to hold.
    """
    if not isinstance(written, Table) or (known is not None and known.devices is None):
        return None
    still = frozenset(known.devices or ()) & differing(before, now) if known is not None else frozenset()
    return tuple(sorted(still | differing(before, written)))


def unseen_rows(places: Places, original: Original, before: Table, now: Table) -> Table:
    """Return the rows to which a file is restored that no agent has looked at since it was written.

    Ours are as they were before and all others as they are now, also where another process wrote them since. What it
    wrote into a row of ours looks like what we wrote. A device that was taken away has no row.
    """
    if original.devices is None:
        return before
    held = dict(now.rows)
    devices = [each for each in original.devices if each in held or places.has_device(each)]
    return with_rows(now, before, devices)
