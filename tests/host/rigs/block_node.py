"""A node whose best-effort pods write to a disk, with the files of block IO of every level."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.units import MIB
from tests.conftest import OTHER_MACHINE
from tests.host.rigs.live_node import LiveNode
from tests.support.loop_disk import LoopDisk
from tests.support.nodes import NodeCgroup

GATES = "BECPUSuppress=false,BlkIOReconcile=true"


class BlockNode(LiveNode):
    """A best-effort pod `be` of two containers, and a pod `ls`, on a node with a loop device."""

    def __init__(self, node: NodeCgroup, disk: LoopDisk) -> None:
        found = find_controllers()
        mount = found.get("blkio") or found.get("io")
        if mount is None:
            pytest.skip(f"{OTHER_MACHINE}no controller blkio or io")
        self.disk, self.version = disk, mount.version
        super().__init__(node, ("cpu", "blkio") if mount.version == 1 else ("io",), levels=None)

    def fill(self) -> None:
        self.be = self.add_pod("be", containers=2)
        (self.ls,) = self.add_pod("ls", be=False)

    @property
    def limited(self) -> list[Path]:
        """The directories that have a limit of the best-effort class, and each a part of it."""
        return self.be if self.version == 1 else [self.node.path / "kubepods/besteffort"]

    def part(self, limit: int) -> int:
        return limit // len(self.limited)

    def write(self, folder: Path, blocks: Iterable[dict[str, Any]] = (), *, enable: bool = True) -> Path:
        """Write the pods as they are now, and a NodeSLO with these blocks of the best-effort class."""
        qos = {"beClass": {"blkioQOS": {"enable": enable, "blocks": list(blocks)}}}
        return self.write_manifest(folder, resourceQOSStrategy=qos)

    def arguments(self, folder: Path, blocks: Iterable[dict[str, Any]] = (), **settings: Any) -> tuple[object, ...]:
        manifest = self.write(folder, blocks)
        return self.agent_arguments(manifest, "--feature-gates", GATES, strategies={"blockIO": settings})

    def block(self, **fields: int) -> dict[str, Any]:
        return {"name": self.disk.path, "type": "device", "ioCfg": fields}

    def written_in_s(self, directory: Path, mib: float) -> float:
        """Write so much to the disk out of a directory, past the page cache; return how long it took."""
        procs = self.file(directory, CgroupFile.IO_WRITE_BPS).parent / "cgroup.procs"
        count = int(mib * MIB) // (64 << 10)
        script = f"echo $$ > {procs} && exec dd if=/dev/zero of={self.disk.path} bs=64k count={count} oflag=direct"
        began = time.monotonic()
        done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return time.monotonic() - began
