"""A node whose best-effort pod floods it with page cache, and the agent that limits it, for tests and benchmarks."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.host.paging_probe import Paging, paging, working_set
from tests.host.rigs.live_node import LiveNode
from tests.support.nodes import MIB, NodeCgroup

NODE_BYTES, SET_MIB = 512 * MIB, 96
_V1 = {"limit": "memory.limit_in_bytes", "softLimit": "memory.soft_limit_in_bytes"}
_JOIN = ("sh", "-c", 'echo $$ >"$1"; shift; exec "$@"', "sh")


class PageCacheNode(LiveNode):
    """Pod `ls` maps a file of 96 MiB and looks at pages at random; pod `be` reads a file without end.

    Args:
        node: has room for both pods' programs and not for what `be` reads.
        folder: for files; on a disk, where the file of `ls` is read from.
        flood_after_s: seconds of `felt` before `be` reads; after two `ls` looks.
        v1: the strategy's setting.
    """

    thresholds = (99, 98)

    def __init__(self, node: NodeCgroup, folder: Path, flood_after_s: int = 0, v1: str = "limit") -> None:
        self._folder, self._flood_after_s, self._v1 = folder, flood_after_s, v1
        super().__init__(node, ())

    def fill(self) -> None:
        (self.ls,) = self.add_pod("ls", be=False)
        (self.be,) = self.add_pod("be")
        self.ls_pod, self.be_pod = self.node.pod_paths["ls"], self.node.pod_paths["be"]
        self.set = working_set(self._folder / "set", SET_MIB)
        # A file without blocks: its page cache costs no disk, and comes as fast as the kernel can fill it with zeros.
        self.sparse = self._folder / "sparse"
        with self.sparse.open("wb") as made:
            made.truncate(1 << 40)
        self.limit_file = self.be_pod / ("memory.high" if self.node.version == 2 else _V1[self._v1])

    @property
    def flood(self) -> tuple[object, ...]:
        """The command of pod `be`."""
        reads = ("dd", f"if={self.sparse}", "of=/dev/null", "bs=1M")
        later = ("sh", "-c", 'sleep "$1"; shift; exec "$@"', "sh", self._flood_after_s, *reads)
        return (*_JOIN, self.be / "cgroup.procs", *(later if self._flood_after_s else reads))

    def arguments(self, *, is_on: bool = True, **settings: object) -> tuple[object, ...]:
        """Return an agent's arguments."""
        return self.agent_arguments(
            self.write_manifest(self._folder),
            featureGates={"BEPageCacheSuppress": is_on},
            strategies={"bePageCacheSuppress": {"v1": self._v1, **settings}},
        )

    def felt(self, seconds: float, warm_s: float, is_warm: Callable[[float], bool] | None = None) -> Paging:
        """Return what `ls` feels of the flood, after it has felt it for `warm_s`, or until `is_warm`, as `paging`."""
        return paging(self.ls_pod, self.ls, self.set, self.flood, seconds, 2, warm_s, is_warm)

    def start(self, container: Path, *command: object, **given: Any) -> subprocess.Popen[bytes]:
        """Start a process that has no page before it is in its container; the caller reads its standard output."""
        joined = (*_JOIN, container / "cgroup.procs", *command)
        return self.spawn(*joined, stdout=subprocess.PIPE, start_new_session=True, **given)

    def empty(self) -> None:
        """Drop the page cache of what `be` has read."""
        with self.sparse.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def limit(self) -> int | None:
        """Return the limit of pod `be`; None: it has none."""
        text = self.limit_file.read_text().strip()
        return None if text == "max" or int(text) >= 1 << 60 else int(text)


def ended(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
