"""What "the node" is: the machine, or a cgroup with a memory limit."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroupfs import CgroupMemory, MemoryHierarchy, cgroup_id


class NodeScope(msgspec.Struct, frozen=True):
    """The node: where its cgroups are, and which one it is itself.

    `path` is the directory that scans start at: the memory hierarchy's root for the machine.
    """

    kind: Literal["machine", "cgroup"]
    hierarchy: MemoryHierarchy
    path: Path
    root_id: int  # cgroup id of `path`

    @property
    def node_cgroup_id(self) -> int | None:
        """The cgroup that is the node; None: the machine is."""
        return self.root_id if self.kind == "cgroup" else None

    @property
    def node_path(self) -> str:
        """Its path below any hierarchy's mount; "": the machine is the node."""
        return self.path.relative_to(self.hierarchy.mount_point).as_posix() if self.kind == "cgroup" else ""


def open_scope(hierarchy: MemoryHierarchy, node_cgroup: Path | None) -> NodeScope:
    """Return the scope that `--node-cgroup` names: a directory, or a path below the memory hierarchy's root.

    Raises:  ConfigError: it is no cgroup of the memory hierarchy, or has no memory limit.
    """
    root = hierarchy.mount_point
    if node_cgroup is None:
        return NodeScope("machine", hierarchy, root, cgroup_id(root))
    text = str(node_cgroup)
    path = node_cgroup if text.startswith(f"{root}/") else root / text.lstrip("/")
    if not path.is_dir() or path == root:
        raise ConfigError("--node-cgroup", text, f"must name a cgroup below {root}")
    with CgroupMemory(path, hierarchy.version) as memory:
        if memory.limit_bytes() is None:
            name = "memory.max" if hierarchy.version == 2 else "memory.limit_in_bytes"
            raise ConfigError("--node-cgroup", text, f"must have a memory limit: write one to {path / name}")
    return NodeScope("cgroup", hierarchy, path, cgroup_id(path))
