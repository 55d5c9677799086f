"""What files hold while writes are planned, and what the kernel refuses in such a tree."""

from __future__ import annotations

from collections.abc import Mapping

from koordebpf.kernel.cgroup.files import (
    IDLE_SHARES,
    CgroupFile,
    Merge,
    Sysctl,
    Value,
    Version,
    format_cpu_list,
    merge_of,
    settled,
    shares_of_weight,
)
from koordebpf.kernel.cgroup.tables import Table
from koordebpf.policy.reconcile.values import FileKey

# What leaving cpu.idle = 1 resets cpu.shares to, a cpu.weight of 100: kernel/sched/fair.c, NICE_0_LOAD.
_DEFAULT_SHARES: dict[Version, int] = {1: 1024, 2: shares_of_weight(100)}


class FileTree:
    """Files by (path, file) with their values as planned so far.

    The nearest known directory above stands for the parent, the nearest below for the children: CPUs are nested all the
    way down, so what these refuse those in between refuse too.
    """

    def __init__(self, current: Mapping[FileKey, Value], versions: Mapping[str, Version]) -> None:
        self.now = dict(current)
        self._versions = versions
        self._parent: dict[FileKey, FileKey] = {}
        self._children: dict[FileKey, list[FileKey]] = {}
        for key in current:
            path, file = key
            if merge_of(file) is Merge.NONE:
                continue
            while path:
                path = path.rpartition("/")[0]
                if (path, file) in current:
                    self._parent[key] = (path, file)
                    self._children.setdefault((path, file), []).append(key)
                    break

    def settled(self, key: FileKey, value: Value) -> Value:
        """Return what the file shows once `value` is written to it."""
        _, file = key
        return value if isinstance(file, Sysctl) else settled(file, self._versions[file.controller], value)

    def merged(self, key: FileKey, target: Value) -> Value:
        """Return the least value that holds both what the file holds and `target`."""
        _, file = key
        held = self.now[key]
        match merge_of(file):
            case Merge.NONE:
                return target
            case Merge.UNION:
                # No CPUs on v2 are all that the parent has: it stays so as long as the children change. To become so
                # it waits for them, since an empty set was less than its children's before 1f1562fcd04a
                # ("cgroup/cpuset: Don't let child cpusets restrict parent in default hierarchy") in v5.17.
                if self._versions["cpuset"] == 2 and not held:
                    return held
                return _cpus(held) | _cpus(target)
            case Merge.LARGER:
                return target if _at_most(held, target) else held

    def refusal(self, key: FileKey, value: Value) -> str | None:
        """Return why the kernel would refuse the write, None where that is not known beforehand.

        On v2 a child may have more than its parent, and gets what both have.

        Source:  kernel/cgroup/cpuset-v1.c, cpuset1_validate_change: EACCES above, EBUSY below; kernel/sched/fair.c,
                 sched_group_set_shares: EINVAL. A v1 quota above the parent's is EINVAL too, each by its period.
        """
        path, file = key
        if file is CgroupFile.CPU_SHARES and self.now.get((path, CgroupFile.CPU_IDLE)) == 1:
            return "the kernel keeps the shares of a cgroup that is idle"
        if file is not CgroupFile.CPUSET_CPUS or self._versions["cpuset"] == 2:
            return None
        parent = self._parent.get(key)
        if parent is not None and (excess := _cpus(value) - _cpus(self.now[parent])):
            return f"the parent /{parent[0]} has not CPU {format_cpu_list(excess)}"
        for child in self._children.get(key, ()):
            if excess := _cpus(self.now[child]) - _cpus(value):
                return f"the child /{child[0]} has CPU {format_cpu_list(excess)}"
        return None

    def set(self, key: FileKey, value: Value) -> None:
        """Note that the file holds `value` from now on, and what the kernel changes with it."""
        path, file = key
        self.now[key] = value
        if file is CgroupFile.CPU_IDLE and (path, CgroupFile.CPU_SHARES) in self.now:
            default = _DEFAULT_SHARES[self._versions["cpu"]]
            self.now[path, CgroupFile.CPU_SHARES] = IDLE_SHARES if value == 1 else default


def _at_most(first: Value, second: Value) -> bool:
    assert not isinstance(first, frozenset | Table)
    assert not isinstance(second, frozenset | Table)
    return second is None or (first is not None and first <= second)


def _cpus(value: Value) -> frozenset[int]:
    assert isinstance(value, frozenset)
    return value
