"""The value that each file is restored to, kept in the journal: the first one, or what others wrote since."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from koordebpf.act.writer.change import Seen, is_wish
from koordebpf.act.writer.foreign import our_devices, unseen_rows
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.overwritten import is_slice
from koordebpf.act.writer.owners import with_owners
from koordebpf.act.writer.places import Held, Original, Places, Unusable, read_held
from koordebpf.errors import KernelFileError
from koordebpf.kernel.cgroup.files import CgroupFile, Value, is_throttle
from koordebpf.kernel.cgroup.tables import Table, overlaid, with_changes
from koordebpf.policy.reconcile import FileKey
from koordebpf.units import NS_PER_S

# At one call. Why 48: they are 0.5 ms; all of 440 files at once are 4. Why 60: of any number all are due in a minute.
_LOOKS, _CALLS = 48, 60
_DROP_NS = 60 * NS_PER_S


class Originals:
    """Decides what goes into the journal; without one, in a dry run, nothing is. `seen` has what files held last."""

    def __init__(self, places: Places, journal: Journal | None) -> None:
        self._places = places
        self._journal = journal
        self.seen = Seen()
        self._due: list[FileKey] = []  # to be looked at whether they are gone
        self._dropped_ns: int | None = None

    def read(self, key: FileKey, now_ns: int, before: Held | None = None) -> Held:
        """Return what a file holds now; `before` is what it held when it was last looked at.

        A file that held its original value, and holds another one now, takes that as its original value. Of a table
        that was not written here since, each row that has changed is taken so; of one that an agent before this one
        has written, each row that is not ours.

        Raises: Unusable: as `places.read_held`.
        """
        held = read_held(self._places, key, now_ns, before)
        *_, last = self.seen.lately(key) or (None,)
        if self._journal is not None and held.value != last and self._has(key, held):
            original, is_ours = self._journal.originals[key], before is not None and before.is_ours
            # Where it cannot be recorded, the one before stays.
            if not self.seen.lately(key):
                self._adopt_unseen(key, original, held)
            elif not is_ours if isinstance(last, Table) else self._is(key, original, last):
                self.adopt(key, last, held)
        self.seen.record(key, held.value)
        return held

    def _adopt_unseen(self, key: FileKey, original: Original, held: Held) -> None:
        if self._journal is None or not isinstance(held.value, Table):
            return
        before = self._rows_before(key, held)
        rows = unseen_rows(self._places, original, before, held.value)
        if rows != before:
            with contextlib.suppress(OSError):
                self._journal.record({key: msgspec.structs.replace(original, text=self._places.format(key, rows))})

    def target(self, key: FileKey, wanted: Value, held: Held) -> Value:
        """Return what a file is to hold where this is wanted of it; of a table its other rows stay as they were.

        Of two limits of one device, the wanted one and what the file held at first, the lower one counts.
        """
        if not isinstance(wanted, Table) or not isinstance(held.value, Table):
            return wanted
        before = self._rows_before(key, held)
        return overlaid(before, wanted, takes_lower=is_throttle(key[1]))

    def is_reset(self, key: FileKey, held: Held) -> bool:
        """Tell whether a slice's file holds what it held at first: then systemd has put that back."""
        known = None if self._journal is None else self._journal.originals.get(key)
        return is_slice(key) and known is not None and self._places.is_as_before(key, held, known)

    def adopt(self, key: FileKey, last: Value, held: Held) -> OSError | None:
        """Record what another process wrote to a file that held `last`: the file is restored to that value.

        Of a table these are the rows that it changed. Returns why it is not in the journal; None: it is.
        """
        if self._journal is None or not is_wish(last, held.value, self._places.versions.get("cpuset")):
            return None
        known, text = self._journal.originals.get(key), held.text
        if isinstance(held.value, Table) and isinstance(last, Table) and known is not None:
            text = self._places.format(key, with_changes(self._rows_before(key, held), last, held.value))
        known = known or Original(text, held.inode)
        try:
            self._journal.record({key: msgspec.structs.replace(known, text=text, inode=held.inode)})
        except OSError as error:
            return error
        return None

    def record(
        self,
        held: Mapping[FileKey, Held],
        written: Mapping[FileKey, Value],
        owners_of: Callable[[FileKey], tuple[str, ...]],
        looked: Iterable[FileKey] = (),
    ) -> None:
        """Journal what the files to be written hold, before they are written, and the sets of CPUs below them.

        Args:
            held: what files hold.
            written: what is written now.
            owners_of: the strategies that have a file written.
            looked: those that were just looked at.
        Raises:  OSError: it is not in the journal. Nothing may be written then.
        """
        if self._journal is None:
            return
        first = {
            key: Original(held[key].text, held[key].inode, owners_of(key), self._devices(key, held[key], value))
            for key, value in written.items()
            if key in held and not self._has(key, held[key])
        }
        first |= self._below(held, first, looked, self._journal.originals)
        joined = {
            key: msgspec.structs.replace(
                with_owners(self._journal.originals[key], owners_of(key)),
                devices=self._devices(key, held[key], value),
            )
            for key, value in written.items()
            if key in held and key not in first
        }
        self._journal.record(
            first | {key: each for key, each in joined.items() if each != self._journal.originals[key]}
        )
        self.seen.begin(first)

    def drop_gone(self, wanted: Collection[FileKey], now_ns: int) -> list[FileKey]:
        """Take those of cgroups that are gone off the record, a part of all at each call; return them.

        Cgroups are made and removed by the thousand. Each minute all are due again, and what was seen of files that are
        neither wanted nor journalled is forgotten.
        """
        originals = {} if self._journal is None else self._journal.originals
        if self._dropped_ns is None or now_ns - self._dropped_ns >= _DROP_NS:
            self._dropped_ns = now_ns
            self._due = list(originals)
            self.seen.keep(originals, wanted)
        if self._journal is None or not self._due:
            return []
        count = max(_LOOKS, len(originals) // _CALLS + 1)
        now, self._due = [key for key in self._due[:count] if key in originals], self._due[count:]
        gone = [key for key in now if not self._places.is_there(key, originals[key])]
        with contextlib.suppress(OSError):  # the next time
            self._journal.forget(gone)
            self._journal.compact()
        for key in now:
            if key in originals and not self.seen.lately(key):  # of an agent before this one
                with contextlib.suppress(Unusable):
                    self.read(key, now_ns)
        return gone

    def _is(self, key: FileKey, original: Original, value: Value) -> bool:
        try:
            return self._places.parse(key, original.text) == value
        except KernelFileError:
            return False

    def _rows_before(self, key: FileKey, held: Held) -> Table:
        if self._journal is not None and self._has(key, held):
            with contextlib.suppress(KernelFileError):
                rows = self._places.parse(key, self._journal.originals[key].text)
                return rows if isinstance(rows, Table) else Table()
        return held.value if isinstance(held.value, Table) else Table()

    def _devices(self, key: FileKey, held: Held, value: Value) -> tuple[str, ...] | None:
        if self._journal is None or not isinstance(held.value, Table):
            return None
        known = self._journal.originals[key] if self._has(key, held) else None
        return our_devices(known, self._rows_before(key, held), held.value, value)

    def _has(self, key: FileKey, held: Held) -> bool:
        known = None if self._journal is None else self._journal.originals.get(key)
        return known is not None and known.inode == held.inode

    # On v1 a new cgroup gets a copy of its parent's CPUs: below one that is held these are not its own.
    # Its own are journalled too where they are as wanted: what is not in the journal was made later.
    def _below(
        self,
        held: Mapping[FileKey, Held],
        first: Mapping[FileKey, Original],
        looked: Iterable[FileKey],
        known: Mapping[FileKey, Original],
    ) -> dict[FileKey, Original]:
        below: dict[FileKey, Original] = {}
        if self._places.versions.get("cpuset") != 1:
            return below
        for key in sorted(looked, key=lambda key: key[0].count("/")):
            path, file = key
            if file is not CgroupFile.CPUSET_CPUS or key not in held or self._has(key, held[key]):
                continue
            above = (path.rpartition("/")[0], file)
            original = below.get(above) or first.get(above) or known.get(above)
            if original is not None:
                value = held[key].value
                is_copy = not value or value in self.seen.lately(above)
                below[key] = Original(original.text if is_copy else held[key].text, held[key].inode, original.owners)
        return below


def touches(wanted: Value, before: Value, now: Value) -> bool:
    """Tell whether a change of a file concerns what is wanted of it: of a table, one of the rows that are wanted."""
    if not isinstance(wanted, Table) or not isinstance(before, Table) or not isinstance(now, Table):
        return True
    was, has = dict(before.rows), dict(now.rows)
    return any(was.get(device) != has.get(device) for device, _ in wanted.rows)
