"""Which files of this kernel a strategy needs, and which of them are there: looks, and writes none.

A part of a strategy works where one of its files is there. Files of Anolis kernels are left out: the pages of the
strategies name them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.files import CgroupFile, file_name
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.proc.tasks import cookie_of
from koordebpf.kernel.signals import SignalSource

SCHED_FEATURES = "/sys/kernel/debug/sched/features"
CORE_SCHEDULING = "prctl(PR_SCHED_CORE)"
_SCHED_FEATURES = (Path(SCHED_FEATURES), Path("/sys/kernel/debug/sched_features"))
_NEWER = "Use a newer kernel."
_V2_ALONE = (CgroupFile.IO_COST_RPCT,)  # v1 has it on Anolis kernels
_NO_DIRECTORY = "The kubelet makes a pod's directory in each hierarchy: restart it, and look again."


class KernelFile(NamedTuple):
    """A file, or a call, of the kernel, and what a strategy does with it.

    Attributes:
        does: in words.
        since: the Linux release that first had it, as `v1` and `v2` say.
        v1: the file's name in a pod's directory, or its path; None: cgroup v1 has none.
        v2: the same of cgroup v2.
        controller: whose hierarchy the file is in; "": it is of the machine.
        is_in_root: the file is in the hierarchy's root alone.
        remedy: what to do where it is missing.
    """

    does: str
    since: str
    v1: str | None
    v2: str | None
    controller: str
    remedy: str = _NEWER
    is_in_root: bool = False


def cgroup_file(does: str, since: str, file: CgroupFile, *, is_in_root: bool = False, remedy: str = "") -> KernelFile:
    """Return what a strategy does with a cgroup file."""
    remedy = remedy or _NEWER
    v1 = None if file in _V2_ALONE else file_name(file, 1)
    return KernelFile(does, since, v1, file_name(file, 2), file.controller, remedy, is_in_root)


def machine_file(does: str, since: str, path: str, remedy: str) -> KernelFile:
    """Return what a strategy does with a file of the machine, or a call."""
    return KernelFile(does, since, path, path, "", remedy)


def file_of(part: KernelFile, pod: Path, mounts: Mapping[str, ControllerMount]) -> str | None:
    """Return the file by which a part works here; None: there is none.

    Args:
        part: of a strategy.
        pod: a directory of a pod, relative to every hierarchy.
        mounts: by controller; one without a mount has no file.
    """
    if not part.controller:
        return _of_machine(part)
    mount = _mount_of(part, mounts)
    if mount is None:
        return None
    name = part.v1 if mount.version == 1 else part.v2
    directory = mount.mount_point if part.is_in_root else mount.mount_point / pod
    return name if name is not None and (directory / name).exists() else None


def support_of_strategies(
    parts: Iterable[tuple[str, KernelFile]], pod: Path | None, mounts: Mapping[str, ControllerMount]
) -> tuple[SignalSource, ...]:
    """Return a line for each part, given with the feature gate of its strategy.

    `pod` is the directory of any pod of the node; None: there is none yet, and only the machine's files are looked at.
    """
    lines = []
    for gate, part in parts:
        if not _is_of(part, mounts):
            continue
        if part.controller and pod is None:
            lines.append(SignalSource(gate, f"{part.does}: seen once the node has a pod", works=True))
        elif how := file_of(part, pod or Path(), mounts):
            lines.append(SignalSource(gate, f"{part.does}: {how}", works=True))
        elif missing := _missing_directory(part, pod or Path(), mounts):
            reason = f"{part.does}: there is no {missing}"
            lines.append(SignalSource(gate, "", False, reason, _NO_DIRECTORY, "this part is left out"))
        else:
            name = part.v2 if _version(part, mounts) == 2 else part.v1
            reason = f"{part.does}: {f'this kernel has no {name}' if name else f'only cgroup v2 has {part.v2}'}"
            remedy = part.remedy if name else "Use cgroup v2."
            lines.append(SignalSource(gate, "", False, reason, remedy, "this part is left out"))
    return tuple(lines)


# Where the hierarchy has no directory of the pod, nothing is known of the kernel's files.
def _missing_directory(part: KernelFile, pod: Path, mounts: Mapping[str, ControllerMount]) -> Path | None:
    mount = _mount_of(part, mounts)
    if not part.controller or part.is_in_root or mount is None or (part.v1 if mount.version == 1 else part.v2) is None:
        return None
    directory = mount.mount_point / pod
    return None if directory.is_dir() else directory


# A soft limit is of v1 as memory.low is of v2: neither is missing where the other one is.
def _is_of(part: KernelFile, mounts: Mapping[str, ControllerMount]) -> bool:
    return part.v2 is not None or _version(part, mounts) == 1


def _version(part: KernelFile, mounts: Mapping[str, ControllerMount]) -> int:
    mount = _mount_of(part, mounts) or mounts.get("memory")
    return mount.version if mount else 2


# The controller of block devices is called blkio on v1, and io on v2.
def _mount_of(part: KernelFile, mounts: Mapping[str, ControllerMount]) -> ControllerMount | None:
    return mounts.get(part.controller) or mounts.get({"io": "blkio", "blkio": "io"}.get(part.controller, ""))


def _of_machine(part: KernelFile) -> str | None:
    if part.v1 == CORE_SCHEDULING:
        return CORE_SCHEDULING if _has_core_scheduling() else None
    paths = _SCHED_FEATURES if part.v1 == SCHED_FEATURES else (Path(part.v1 or ""),)
    return next((str(path) for path in paths if _exists(path)), None)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        return error.errno == errno.EACCES


def _has_core_scheduling() -> bool:
    try:
        return cookie_of(os.getpid()) is not None
    except SupportError:
        return False
