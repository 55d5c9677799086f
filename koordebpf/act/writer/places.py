"""Where the files are on this host, and what they hold now."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from koordebpf.act.writer.change import WriteResult, is_wish
from koordebpf.errors import CgroupGone, KernelFileError, errno_name
from koordebpf.kernel.cgroup.files import (
    CgroupFile,
    Sysctl,
    Value,
    Version,
    file_name,
    format_value,
    format_writes,
    is_shared,
    is_table,
    parse_value,
    settled,
)
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.cgroup.tables import Table, differing, with_rows
from koordebpf.kernel.host.written_texts import format_feature, format_part, group_of, parse_feature, parse_part
from koordebpf.kernel.io.text_file import OpenKernelFiles, Overtaken, read_kernel_file, write_kernel_file
from koordebpf.policy.reconcile import FileKey

_RESULTS = {
    errno.EBUSY: WriteResult.BUSY,
    errno.ENOENT: WriteResult.UNSUPPORTED,
    errno.EOPNOTSUPP: WriteResult.UNSUPPORTED,
}


# procfs recreates the inodes of sysctls whenever memory was short: their numbers identify nothing.
_SYSCTL_INODE = 0


class Original(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a file held, to the byte, and the inode of the file that held it; of a sysctl 0.

    `owners` are the strategies that have it written, in the order they came. Empty: a record from before owners were
    kept. `devices` are those of a table whose rows may be ours; None: it is no table, or a record from before they were
    kept, where all may be.
    """

    text: str
    inode: int
    owners: tuple[str, ...] = ()
    devices: tuple[str, ...] | None = None


class Places:
    """Finds files by key, and speaks their version's format."""

    def __init__(
        self, mounts: Mapping[str, ControllerMount], proc_sys: Path = Path("/proc/sys"), sysfs: Path = Path("/sys")
    ) -> None:
        self._mounts = dict(mounts)
        if "freezer" not in mounts and "memory" in mounts and mounts["memory"].version == 2:
            self._mounts["freezer"] = mounts["memory"]  # v2 freezes without a controller
        if "io" in mounts:
            self._mounts.setdefault("blkio", mounts["io"])  # its name on v2
        self._proc_sys = proc_sys
        self._sysfs = sysfs
        self.kept = OpenKernelFiles()  # of those that are looked at again and again
        self.versions: dict[str, Version] = {name: mount.version for name, mount in self._mounts.items()}

    def locate(self, key: FileKey) -> Path | None:
        """Return the file, None where this host cannot have it."""
        path, file = key
        if isinstance(file, Sysctl):
            return self._of_node(file, path)
        found = self._of_cgroup(path, file)
        return None if found is None else Path(found)

    # Text: a Path costs more than what is done with it where files are only looked for.
    def _of_cgroup(self, path: str, file: CgroupFile) -> str | None:
        mount = self._mounts.get(file.controller)
        name = file_name(file, mount.version) if mount else None
        return f"{mount.mount_point}/{path}/{name}" if mount and name else None

    def name(self, key: FileKey) -> str:
        """Return the file's path for people, also where the host cannot have it."""
        path, file = key
        return str(self.locate(key) or Path(path) / file.value)

    # Before Linux 5.13 (commit 8a99b6833c88, "sched: Move SCHED_DEBUG sysctl to debugfs") it lay one level higher.
    def _of_node(self, file: Sysctl, part: str) -> Path:
        if not file.is_in_sysfs:
            return self._proc_sys / file.path
        path = self._sysfs / file.path
        if file is Sysctl.RESCTRL_SCHEMATA:
            return path.parent / group_of(part) / path.name
        before = path.parent.with_name("sched_features")
        return before if file is Sysctl.SCHED_FEATURES and not path.exists() and before.exists() else path

    def parse(self, key: FileKey, text: str) -> Value:
        """Return what a file that reads as `text` holds.

        Raises: KernelFileError: not its format.
        """
        path, file = key
        if file is Sysctl.SCHED_FEATURES:
            return parse_feature(text, path, self.name(key))
        if file is Sysctl.RESCTRL_SCHEMATA:
            return parse_part(text, path, self.name(key))
        if isinstance(file, Sysctl):
            try:
                return int(text)
            except ValueError:
                raise KernelFileError(str(self.locate(key)), text, "must be a number") from None
        return parse_value(file, self.versions[file.controller], text, f"{path}/{file}")

    def format(self, key: FileKey, value: Value) -> str:
        """Return what is written so that the file holds `value`."""
        path, file = key
        if file is Sysctl.SCHED_FEATURES:
            return format_feature(path, value == 1)
        if file is Sysctl.RESCTRL_SCHEMATA:
            assert isinstance(value, int)  # as broken_sysctl_rule saw to
            return format_part(path, value)
        # A file that this host cannot have is shown as on v2.
        return (
            str(value) if isinstance(file, Sysctl) else format_value(file, self.versions.get(file.controller, 2), value)
        )

    def writes(self, key: FileKey, now: Value, wanted: Value) -> tuple[str, ...]:
        """Return what is written, each by a write(2) of its own, so that a file that holds `now` holds `wanted`."""
        _, file = key
        if isinstance(file, Sysctl) or not is_table(file):
            return (self.format(key, wanted),)
        return format_writes(file, self.versions[file.controller], now, wanted)

    def has_device(self, number: str) -> bool:
        """Tell whether there is a block device of this major:minor."""
        return (self._sysfs / "dev/block" / number).exists()

    def is_as_before(self, key: FileKey, held: Held, original: Original) -> bool:
        """Tell whether a file holds what it held at first: every byte, of one that is shared the key's own value."""
        if is_shared(key[1]):
            return held.value == self.parse(key, original.text)
        return held.text == original.text

    def is_held(self, key: FileKey, held: Value, wanted: Value) -> bool:
        """Tell whether a file that holds `held` is as it would be if `wanted` were written."""
        return held == self.settled(key, wanted)

    def settled(self, key: FileKey, wanted: Value) -> Value:
        """Return what a file reads as after this was written."""
        _, file = key
        return wanted if isinstance(file, Sysctl) else settled(file, self.versions[file.controller], wanted)

    def is_overtaken(self, key: FileKey, before: Value, wanted: Value, after: Held) -> bool:
        """Tell whether another process wrote a file between a write of `wanted` and the look at it, which is `after`.

        Then `after` is made what the file held between the two. The kernel takes a number as it is, or not at all, and
        of a set of CPUs those that are there: another value is another process's. Of a table, so are the rows that
        were not written.
        """
        alone, now = self.settled(key, wanted), after.value
        if isinstance(alone, Table) and isinstance(now, Table) and isinstance(before, Table):
            alone = with_rows(alone, now, differing(before, alone))
        elif isinstance(key[1], Sysctl) or now == before or not is_wish(alone, now, self.versions.get("cpuset")):
            return False
        if alone == now:
            return False
        after.text, after.value = self.format(key, alone), alone
        return True

    def keep_open(self, held: Mapping[FileKey, Held]) -> None:
        """Close the files that were kept open to be looked at again, but for these."""
        self.kept.close_all_but({each.path for each in held.values()})

    def is_there(self, key: FileKey, original: Original) -> bool:
        """Tell whether the file is still the one whose content is in the journal."""
        path, file = key
        found = self.locate(key) if isinstance(file, Sysctl) else self._of_cgroup(path, file)
        try:
            return found is not None and _inode(key, os.stat(found).st_ino) == original.inode  # noqa: PTH116
        except OSError:
            return False


class Held(msgspec.Struct):
    """What one file held when it was last looked at."""

    path: Path
    text: str
    inode: int
    value: Value
    checked_ns: int
    is_ours: bool = False  # the value is one that was written here
    satisfies: tuple[Value, ...] = ()  # the desired value that it was found to hold; empty: not known


class Unusable(Exception):
    """A file could not be read or written; `result` is what becomes of the write."""

    def __init__(self, result: WriteResult, detail: str) -> None:
        super().__init__(detail)
        self.result = result
        self.detail = detail


def read_held(places: Places, key: FileKey, now_ns: int, before: Held | None = None) -> Held:
    """Return what the file holds now; `before` is what it held when it was last looked at.

    Raises: Unusable: it is gone, not there on this kernel, or not readable.
    Cost:    14 µs, with `before` 3 µs from the second time on.
    """
    path = before.path if before else places.locate(key)
    if path is None:
        raise Unusable(WriteResult.UNSUPPORTED, "this host has no such file")
    try:
        # What is looked at again will be looked at once more.
        is_kept = before is not None and not isinstance(key[1], Sysctl)
        read = places.kept.read(path) if is_kept else read_kernel_file(path)
        value = before.value if before and before.text == read.text else places.parse(key, read.text)
        return Held(path, read.text, _inode(key, read.inode), value, now_ns)
    except (CgroupGone, OSError, KernelFileError) as error:
        raise Unusable(*_classify(error, key)) from None


def written(
    places: Places,
    key: FileKey,
    held: Held,
    texts: Sequence[str],
    now_ns: int,
    wrote: Callable[[str], object] = lambda _: None,
) -> Held:
    """Write `texts` to the file that was looked at, each by a write(2) of its own; return what it holds then.

    `wrote` gets each text that was written, whatever follows.

    Raises: Unusable: it was not written, or cannot be read any more. With `YIELDED`: it holds another value than it
            did when it was looked at.
    Cost:    1.5 µs of it for that last look, so that another process has microseconds to be overwritten in.
    """

    def is_as_looked_at(now: str) -> bool:
        # What is written for one key of a file that is shared may change another's.
        return now == held.text or is_shared(key[1]) or places.parse(key, now) == held.value

    inode = None if isinstance(key[1], Sysctl) else held.inode
    try:
        after = write_kernel_file(held.path, texts, inode, wrote, is_as_looked_at)
        return Held(held.path, after, held.inode, places.parse(key, after), now_ns, is_ours=True)
    except Overtaken:
        raise Unusable(WriteResult.YIELDED, "another process has written it since it was looked at") from None
    except (CgroupGone, OSError, KernelFileError) as error:
        raise Unusable(*_classify(error, key)) from error


def _inode(key: FileKey, inode: int) -> int:
    return _SYSCTL_INODE if isinstance(key[1], Sysctl) else inode


def _classify(error: Exception, key: FileKey) -> tuple[WriteResult, str]:
    if isinstance(error, CgroupGone):
        if key[1] is Sysctl.RESCTRL_SCHEMATA:
            return WriteResult.GONE, "the group is gone"
        if isinstance(key[1], Sysctl):
            return WriteResult.UNSUPPORTED, "this kernel has no such file"
        return WriteResult.GONE, "the cgroup is gone"
    if isinstance(error, OSError) and error.errno is not None:
        return _RESULTS.get(error.errno, WriteResult.REFUSED), errno_name(error)
    return WriteResult.REFUSED, str(error)


def beside(key: FileKey, versions: Mapping[str, Version]) -> FileKey | None:
    """Return the file to be read beside one that is written: what the kernel looks at, or what it resets."""
    path, file = key
    match file:
        case CgroupFile.CPUSET_CPUS if versions["cpuset"] == 1 and path:
            return path.rpartition("/")[0], file
        case CgroupFile.CPU_IDLE:
            return path, CgroupFile.CPU_SHARES
        case CgroupFile.CPU_SHARES:
            return path, CgroupFile.CPU_IDLE
    return None
