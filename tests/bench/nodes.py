"""The nodes that benchmarks run on: as many pods and containers as a real one, each a real cgroup."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, find_memory_hierarchy
from tests.support.nodes import MIB, NodeCgroup

GIB = 1 << 30
# For run directories, as /run is one: a decision is noted there first, and a disk that is synced keeps that waiting.
TMPFS = "/dev/shm"


class FullNode:
    """A node with `pods` pods and `containers` containers in all, one of which is for the hog."""

    def __init__(self, node: NodeCgroup, pods: int, containers: int) -> None:
        self.cgroup = node
        (self.hog,) = node.add_pod("hog")
        # On cgroup v1 a runtime puts a container into every hierarchy; the freezer is what a kill goes through there.
        self.hog_joins_too: tuple[str | Path, ...] = ()
        self.ballast = node.path.parent  # outside the node: the hierarchy's root
        for number in range(pods - 1):
            # Containers are spread as evenly as they go; every other pod is best-effort.
            first, last = ((containers - 1) * at // (pods - 1) for at in (number, number + 1))
            node.add_pod(f"pod-{number}", be=number % 2 == 0, containers=max(last - first, 1))
        name = "memory.current" if node.version == 2 else "memory.usage_in_bytes"
        self.usage_file = node.path / name

    @property
    def hog_uid(self) -> str:
        return str(self.cgroup.pods[0]["metadata"]["uid"])

    def threshold_bytes(self, percent: int) -> int:
        """Return the first byte of use that is `percent` of the node."""
        return -(-percent * self.cgroup.limit_bytes // 100)

    def usage_at(self, used_bytes: int) -> int:
        """Return the raw usage at which the agent finds `used_bytes` in use, with what is reclaimable now."""
        version = self.cgroup.version
        with CgroupMemory(self.cgroup.path, 2 if version == 2 else 1) as memory:
            stat = memory.read()
        reclaimable = stat.inactive_file_bytes + stat.active_file_bytes + (stat.slab_reclaimable_bytes or 0)
        return used_bytes + reclaimable


@contextmanager
def full_node(pods: int = 110, containers: int = 330, limit_bytes: int = 6 * GIB) -> Iterator[FullNode]:
    """Make the node; everything in it is killed and removed afterwards."""
    hierarchy = find_memory_hierarchy()
    with ExitStack() as stack:
        freezers: list[Path] = []
        stack.callback(_remove_all, freezers)  # after the node: what is left in it is dead by then
        node = stack.enter_context(NodeCgroup(hierarchy.mount_point, hierarchy.version, limit_bytes))
        full = FullNode(node, pods, containers)
        if hierarchy.freezer_mount_point:
            freezer = hierarchy.freezer_mount_point / full.hog.relative_to(hierarchy.mount_point)
            freezers += [freezer, *list(freezer.parents)[: len(full.hog.relative_to(hierarchy.mount_point).parts) - 1]]
            freezer.mkdir(parents=True)
            full.hog_joins_too = ("--cgroup", freezer / "cgroup.procs")
        yield full


def _remove_all(directories: list[Path]) -> None:
    for directory in directories:
        for _ in range(200):
            try:
                directory.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:  # EBUSY: a killed task is still leaving
                time.sleep(0.01)


def wait_until_below(path: Path, bytes_: int, timeout_s: float = 20) -> None:
    """Return once the number in `path` is below `bytes_`."""
    deadline = time.monotonic() + timeout_s
    while int(path.read_text()) >= bytes_:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{path} stays at or above {bytes_ // MIB} MiB")
        time.sleep(0.005)
