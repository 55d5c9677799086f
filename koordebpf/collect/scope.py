"""What "the node" is: the machine, or a cgroup with a memory limit."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from koordebpf.attribution.paths import USERS
from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, MemoryHierarchy, cgroup_id
from koordebpf.kernel.signals import SignalRequest


class NodeScope(msgspec.Struct, frozen=True):
    """The node: where its cgroups are, and which one it is itself.

    `path` is the directory that scans start at: the memory hierarchy's root for the machine. `cgroup_root` is the
    kubelet's --cgroup-root, below it; None: it is learned.
    """

    kind: Literal["machine", "cgroup"]
    hierarchy: MemoryHierarchy
    path: Path
    root_id: int  # cgroup id of `path`
    cgroup_root: str | None = None

    @property
    def node_cgroup_id(self) -> int | None:
        """The cgroup that is the node; None: the machine is."""
        return self.root_id if self.kind == "cgroup" else None

    @property
    def node_path(self) -> str:
        """Its path below any hierarchy's mount; "": the machine is the node."""
        return self.path.relative_to(self.hierarchy.mount_point).as_posix() if self.kind == "cgroup" else ""


def open_scope(hierarchy: MemoryHierarchy, node_cgroup: Path | None, cgroup_root: str | None = None) -> NodeScope:
    """Return the scope that `--node-cgroup` names: a directory, or a path below the memory hierarchy's root.

    Raises:  ConfigError: it is no cgroup of the memory hierarchy, or has no memory limit; or `cgroup_root` is nothing
             that a kubelet takes as its --cgroup-root.
    """
    root = hierarchy.mount_point
    kubelet_root = None if cgroup_root is None else _checked_root(cgroup_root, root)
    if node_cgroup is None:
        return NodeScope("machine", hierarchy, root, cgroup_id(root), kubelet_root)
    text = str(node_cgroup)
    path = node_cgroup if text.startswith(f"{root}/") else root / text.lstrip("/")
    if not path.is_dir() or path == root:
        raise ConfigError("--node-cgroup", text, f"must name a cgroup below {root}")
    with CgroupMemory(path, hierarchy.version) as memory:
        if memory.limit_bytes() is None:
            name = "memory.max" if hierarchy.version == 2 else "memory.limit_in_bytes"
            raise ConfigError("--node-cgroup", text, f"must have a memory limit: write one to {path / name}")
    return NodeScope("cgroup", hierarchy, path, cgroup_id(path), kubelet_root)


def signal_request(scope: NodeScope, min_stall_ns: int, *, measures: bool = True) -> SignalRequest:
    """Return what a backend is asked for about the node; the fields are those of `SignalRequest`."""
    hierarchy = scope.hierarchy
    return SignalRequest(
        hierarchy_version=hierarchy.version,
        hierarchy_id=hierarchy.hierarchy_id,
        mount_point=hierarchy.mount_point,
        root=scope.path,
        node_cgroup_id=scope.node_cgroup_id,
        node_level=len(scope.path.relative_to(hierarchy.mount_point).parts),
        min_stall_ns=min_stall_ns,
        measures=measures,
    )


def _checked_root(text: str, mount_point: Path) -> str:
    levels = [level for level in text.split("/") if level]
    if not text.startswith("/") or not {".", ".."}.isdisjoint(levels):
        raise ConfigError("--cgroup-root", text, "must be a path as the kubelet's own --cgroup-root: / or /custom")
    if f"{text}/".startswith(f"{mount_point}/"):
        raise ConfigError("--cgroup-root", text, f"must be as the kubelet has it, without {mount_point}: / or /custom")
    if levels and (levels[-1] == "kubepods" or levels[-1].endswith("kubepods.slice")):
        raise ConfigError("--cgroup-root", text, "must be what kubepods is below, as the kubelet's own --cgroup-root")
    if USERS in levels:
        raise ConfigError("--cgroup-root", text, f"must not be below {USERS}, where every login may make cgroups")
    return "/" + "/".join(levels)


def folder_of(run_dir: Path, scope: NodeScope) -> Path:
    """Return the folder of the one agent that acts on this node."""
    return run_dir / ("machine" if scope.kind == "machine" else f"{scope.path.name}-{scope.root_id}")
