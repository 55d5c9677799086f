"""Quotas below a v1 quota that is wanted: which there are, what they were before they were cut, and what fits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Held, Original, Places, Unusable, look
from koordebpf.decide.reconcile.quotas import OwnQuota, fitting_quotas
from koordebpf.decide.reconcile.values import FileKey
from koordebpf.errors import CgroupGone
from koordebpf.kernel.cgroup_files import CgroupFile, Value
from koordebpf.kernel.cgroupfs import walk


class CutQuotas:
    """Quotas of cgroups that no strategy names, cut to what is wanted above them. What they had is in the journal."""

    def __init__(self, places: Places, journal: Journal) -> None:
        self._places = places
        self._journal = journal
        self._known: dict[FileKey, Value] = {}  # of those on record, what they held last

    def fit(
        self, wanted: Mapping[FileKey, Value], paths: Iterable[str], now_ns: int, *, search: bool
    ) -> tuple[dict[FileKey, Held], dict[FileKey, Value]]:
        """Return the quotas below `paths` as they are, and as they are to be so that the wanted ones are taken.

        Those that are on record were cut before; with `search` every directory is looked at.

        Cost:    50 µs a cgroup.
        """
        held: dict[FileKey, Held] = {}
        own: dict[str, OwnQuota] = {}
        for path in paths:
            below = self._directories(path) if search else self._on_record(path)
            for each in (path, *below):
                key = (each, CgroupFile.CPU_QUOTA)
                if key in wanted:
                    self.forget([key])  # what it holds is no news
                self._read(key, now_ns, held, own, is_wanted=key in wanted)
        fitting = fitting_quotas(wanted, own)
        return {key: held[key] for key in fitting}, fitting

    def note(self, key: FileKey, value: Value) -> None:
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
            quota = look(self._places, key, now_ns)
            period = look(self._places, (path, CgroupFile.CPU_PERIOD), now_ns).value
        except Unusable:
            return
        original = self._journal.originals.get(key)
        value = quota.value
        if not is_wanted and original is not None and original.inode == quota.inode:
            if self._known.setdefault(key, value) == value:
                value = self._places.parse(key, original.text)
            else:
                # Somebody gave it another one since: that is its own now.
                self._known[key] = value
                with contextlib.suppress(OSError):
                    self._journal.record({key: Original(quota.text, quota.inode)})
        if isinstance(period, int) and not isinstance(value, frozenset):
            own[path] = OwnQuota(value, period)
            held[key] = quota

    def _directories(self, path: str) -> Iterator[str]:
        top = self._places.locate((path, CgroupFile.CPU_QUOTA))
        if top is None:
            return
        mount_point = top.parents[len(path.split("/"))] if path else top.parent
        with contextlib.suppress(CgroupGone):
            yield from (each for _, _, each in walk(top.parent, mount_point) if each != path)

    def _on_record(self, path: str) -> list[str]:
        start = f"{path}/" if path else ""
        keys = self._journal.originals
        return [each for each, file in keys if file is CgroupFile.CPU_QUOTA and each.startswith(start) and each != path]
