"""The rules of cpuset.cpus as the kernel has them, for tests that check an order of writes without one.

tests/host/test_writer_rules.py holds it against the running kernel.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable


class CpusetTree:
    """Cgroups by path with their CPUs; "" is the root, which has all of `cpus` and is not written.

    Two rules of v1 hold on v2 too in some kernels. `keeps_children`: a set may not become less than a child's; not
    since 1f1562fcd04a ("cgroup/cpuset: Don't let child cpusets restrict parent in default hierarchy") in v5.17.
    `keeps_tasks`: a set that has tasks may not become empty; not in the newest.
    """

    def __init__(
        self,
        version: int,
        cpus: Iterable[int],
        *,
        possible: int,
        keeps_children: bool = True,
        keeps_tasks: bool = True,
    ) -> None:
        self.version = version
        self.possible = possible  # CPUs that the kernel has room for: nr_cpu_ids
        self.keeps_children = keeps_children or version == 1
        self.keeps_tasks = keeps_tasks or version == 1
        self.cpus: dict[str, frozenset[int]] = {"": frozenset(cpus)}
        self.populated: set[str] = set()  # with tasks of their own

    def add(self, path: str) -> None:
        assert parent(path) in self.cpus
        self.cpus[path] = frozenset()

    def write(self, path: str, cpus: frozenset[int]) -> int:
        """Write and return 0, or the errno of the refusal."""
        refusal = self.refusal(path, cpus)
        if refusal == 0:
            self.cpus[path] = cpus
        return refusal

    def refusal(self, path: str, cpus: frozenset[int]) -> int:
        if any(cpu >= self.possible for cpu in cpus):
            return errno.ERANGE
        if not cpus <= self.cpus[""]:
            return errno.EINVAL
        if cpus == self.cpus[path]:
            return 0
        if self.keeps_children and not all(self.cpus[child] <= cpus for child in self.children(path)):
            return errno.EBUSY
        if self.version == 1 and not cpus <= self.cpus[parent(path)]:
            return errno.EACCES
        # The tasks of those below count too.
        if self.keeps_tasks and not cpus and self.cpus[path] and any(below(path, one) for one in self.populated):
            return errno.ENOSPC
        return 0

    def effective(self, path: str) -> frozenset[int]:
        """Return the CPUs that the cgroup's tasks run on."""
        if path == "":
            return self.cpus[""]
        if self.version == 1:
            return self.cpus[path]
        above = self.effective(parent(path))
        return self.cpus[path] & above or above

    def children(self, path: str) -> list[str]:
        return [one for one in self.cpus if one and parent(one) == path]


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def below(path: str, other: str) -> bool:
    """Tell whether `other` is `path` or lies below it."""
    return other == path or other.startswith(f"{path}/") or path == ""
