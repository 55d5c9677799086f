"""Quotas below a v1 quota that is wanted: which there are, what they were before they were cut, and what fits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Held, Original, Places, Unusable, read_held, written
from koordebpf.errors import CgroupGone
from koordebpf.kernel.cgroup.files import CgroupFile, Value
from koordebpf.kernel.cgroup.hierarchy import walk
from koordebpf.policy.reconcile import FileKey, OwnQuota, fitting_quotas


class CappedQuotas(msgspec.Struct):
    """Quotas that were restored in part: what they are to hold once there is room, and the changes made."""

    originals: dict[FileKey, Original] = msgspec.field(default_factory=dict)
    changes: list[FileChange] = msgspec.field(default_factory=list)


class CutQuotas:
    """Quotas of cgroups that no strategy names, cut to what is wanted above them. What they had is in the journal."""

    def __init__(self, places: Places, journal: Journal) -> None:
        self._places = places
        self._journal = journal
        self._known: dict[FileKey, Value] = {}  # of journalled files, what they held last

    def fit(
        self, wanted: Mapping[FileKey, Value], paths: Iterable[str], now_ns: int, *, search: bool
    ) -> tuple[dict[FileKey, Held], dict[FileKey, Value]]:
        """Return the quotas below `paths` as they are, and as they are to be so that the wanted ones are taken.

        Those that are journalled were cut before; with `search` every directory is looked at.

        Cost:    50 µs a cgroup.
        """
        held: dict[FileKey, Held] = {}
        own: dict[str, OwnQuota] = {}
        for path in paths:
            below = self._directories(path) if search else self._journalled(path)
            above = (each for each in _above(path) if (each, CgroupFile.CPU_QUOTA) in wanted)
            for each in (*above, path, *below):
                key = (each, CgroupFile.CPU_QUOTA)
                if key in wanted:
                    self.forget([key])  # what it holds is no news
                self._read(key, now_ns, held, own, is_wanted=key in wanted)
        fitting = fitting_quotas(wanted, own)
        return {key: held[key] for key in fitting}, fitting

    def below(self, paths: Iterable[str], keys: Iterable[FileKey]) -> list[FileKey]:
        """Return those of `keys` that are quotas below one of `paths`."""
        starts = tuple(f"{path}/" if path else "" for path in paths)
        return [key for key in keys if key[1] is CgroupFile.CPU_QUOTA and key[0].startswith(starts)]

    def restore_capped(
        self, originals: Mapping[FileKey, Original], now_ns: int, last: Mapping[FileKey, Value]
    ) -> CappedQuotas:
        """Restore the quotas that do not fit below one that stays written, as far as they fit. Parents first.

        Args:
            originals: what the files to be restored held.
            now_ns: CLOCK_MONOTONIC.
            last: what files held when they were last seen; one that another process wrote since is left to `restore`.
        """
        capped = CappedQuotas()
        for key, original in sorted(originals.items(), key=lambda entry: entry[0][0].count("/")):
            path, file = key
            limits = [(each, file) for each in _above(path) if self._stays(each, originals)]
            if file is not CgroupFile.CPU_QUOTA or not limits:
                continue
            held, fits = self._fitting(key, original, limits, now_ns)
            if held is None or fits is None or held.value != last.get(key, held.value):
                continue
            text = self._places.format(key, fits)
            change = FileChange(
                path=str(held.path),
                old=held.text.strip(),
                new=text,
                result=WriteResult.WRITTEN,
                reason="it held more before the first write, and the quota above it leaves no more",
                now_ns=now_ns,
            )
            try:
                written(self._places, key, held, [text], now_ns)
            except Unusable as error:
                change = msgspec.structs.replace(change, result=error.result, detail=error.detail)
            self._known[key] = fits
            owners = dict.fromkeys(name for each in limits for name in self._journal.originals[each].owners)
            capped.originals[key] = msgspec.structs.replace(original, owners=tuple(owners))
            capped.changes.append(change)
        return capped

    def _stays(self, path: str, originals: Mapping[FileKey, Original]) -> bool:
        key = (path, CgroupFile.CPU_QUOTA)
        return key in self._journal.originals and key not in originals

    # What a quota holds, and the part of its original that fits; None: all of it does, or it cannot be read.
    def _fitting(
        self, key: FileKey, original: Original, limits: Iterable[FileKey], now_ns: int
    ) -> tuple[Held | None, int | None]:
        held: dict[FileKey, Held] = {}
        own: dict[str, OwnQuota] = {}
        for each in (key, *limits):
            self._read(each, now_ns, held, own, is_wanted=True)
        value = self._places.parse(key, original.text)
        if key not in held or held[key].inode != original.inode or not isinstance(value, int):
            return None, None
        fits = value
        for limit in limits:
            if limit in held:
                below = {key[0]: OwnQuota(fits, own[key[0]].period_us), limit[0]: own[limit[0]]}
                cut = fitting_quotas({limit: held[limit].value}, below)[key]
                fits = cut if isinstance(cut, int) else fits
        return held[key], fits if fits < value else None

    def record(self, key: FileKey, value: Value) -> None:
        """Say that a quota was cut to this."""
        self._known[key] = value

    def forget(self, keys: Iterable[FileKey]) -> None:
        """Drop what is known of these, as of cgroups that are gone."""
        for key in keys:
            self._known.pop(key, None)

    def _read(
        self, key: FileKey, now_ns: int, held: dict[FileKey, Held], own: dict[str, OwnQuota], *, is_wanted: bool
    ) -> None:
        path, _ = key
        try:
            quota = read_held(self._places, key, now_ns)
            period = read_held(self._places, (path, CgroupFile.CPU_PERIOD), now_ns).value
        except Unusable:
            return
        original = self._journal.originals.get(key)
        value = quota.value
        if not is_wanted and original is not None and original.inode == quota.inode:
            if self._known.setdefault(key, value) == value:
                value = self._places.parse(key, original.text)
            else:
                # Another process has set one since: that is its own now.
                self._known[key] = value
                with contextlib.suppress(OSError):
                    self._journal.record({key: Original(quota.text, quota.inode, original.owners)})
        if isinstance(period, int) and (value is None or isinstance(value, int)):
            own[path] = OwnQuota(value, period)
            held[key] = quota

    def _directories(self, path: str) -> Iterator[str]:
        top = self._places.locate((path, CgroupFile.CPU_QUOTA))
        if top is None:
            return
        mount_point = top.parents[len(path.split("/"))] if path else top.parent
        with contextlib.suppress(CgroupGone):
            yield from (each for _, _, each in walk(top.parent, mount_point) if each != path)

    def _journalled(self, path: str) -> list[str]:
        start = f"{path}/" if path else ""
        keys = self._journal.originals
        return [each for each, file in keys if file is CgroupFile.CPU_QUOTA and each.startswith(start) and each != path]


def _above(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition("/")[0]
        yield path
