"""Which parts of the strategies the running kernel has files for, and the table of it in docs/qos/README.md."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from koordebpf.decision.strategies import KERNEL_FILES
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, find_controllers
from koordebpf.kernel.host.strategy_files import KernelFile, file_of

_CONTROLLERS = ("memory", "cpu", "cpuset", "io", "blkio")
_NONE = "–"


def name_of(gate: str, part: KernelFile) -> str:
    """Return what a part is called in results."""
    return f"{gate}: {part.does}"


def try_all() -> dict[str, str]:
    """Return for each part the file by which it works here, "" where there is none. Nothing is left."""
    mounts = {name: mount for name, mount in find_controllers().items() if name in _CONTROLLERS}
    top = Path(f"koordebpf-probe-{os.getpid()}")
    pod = top / "pod"
    roots = {mount.mount_point for mount in mounts.values()}
    handed_down = {root: set(_control(root).read_text().split()) for root in roots if _control(root).exists()}
    try:
        for root in roots:
            (root / top).mkdir()
        _hand_down(mounts, top)
        for root in roots:
            (root / pod).mkdir()
        return {name_of(gate, part): file_of(part, pod, mounts) or "" for gate, part in KERNEL_FILES}
    finally:
        for path in (root / each for root in roots for each in (pod, top)):
            if path.exists():
                path.rmdir()
        # Or no test could mount one of them as cgroup v1, and a process that moves to a cgroup would lose its CPU.
        for root, names in handed_down.items():
            for name in set(_control(root).read_text().split()) - names:
                _control(root).write_text(f"-{name}")


def _control(directory: Path) -> Path:
    return directory / "cgroup.subtree_control"


# As a kubelet does on v2: a cgroup has the files of controllers that the one above hands down.
def _hand_down(mounts: Mapping[str, ControllerMount], top: Path) -> None:
    for name, mount in mounts.items():
        if mount.version == 2:
            for directory in (mount.mount_point, mount.mount_point / top):
                _control(directory).write_text(f"+{name}")


def rows(found: Mapping[str, Mapping[str, str]]) -> Iterable[list[str]]:
    """Yield the rows of the table: a head, then one for each part; `found` is by column."""
    yield ["strategy", "does", "by", "since", *found]
    before = ""
    for gate, part in KERNEL_FILES:
        names = dict.fromkeys(f"`{each}`" for each in (part.v2, part.v1) if each)
        cells = [cell_of(column.get(name_of(gate, part))) for column in found.values()]
        yield [f"`{gate}`" if gate != before else "", part.does, ", ".join(names), part.since, *cells]
        before = gate


def cell_of(found: str | None) -> str:
    """Return what stands in a table for what was found; None: it was not looked for yet."""
    return "?" if found is None else "✓" if found else _NONE
