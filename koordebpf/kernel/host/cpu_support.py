"""What this host lets suppression do: whose CPU use is known, and by which files best-effort pods can be held."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from koordebpf.errors import KernelFileError
from koordebpf.kernel.cgroup.files import CgroupFile, file_name, format_cpu_list
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.io.table import field
from koordebpf.kernel.proc.cpu_topology import SYSFS, isolated_cpus
from koordebpf.kernel.signals import SignalSource

_MIN_CPUS = 2  # best-effort pods keep so many


def support_of_suppression(
    mounts: Mapping[str, ControllerMount], node_path: str, be_path: str | None, online_cpus: int
) -> list[SignalSource]:
    """Return how CPU is measured here, and how each policy holds best-effort pods.

    Args:
        mounts: by controller.
        node_path: of the cgroup that is the node, below any mount; "": the machine.
        be_path: of the best-effort directory; None: there is none yet, and a new one of the node stands for it.
        online_cpus: of the machine.
    """
    by_cpuset = _by(mounts, node_path, be_path, "cpuset", CgroupFile.CPUSET_CPUS)
    if by_cpuset.works and online_cpus <= _MIN_CPUS:
        by_cpuset = _with_few_cpus(by_cpuset.signal, online_cpus)
    by_quota = _by(mounts, node_path, be_path, "cfsQuota", CgroupFile.CPU_QUOTA)
    by_idle = _by(mounts, node_path, be_path, "cpuIdle", CgroupFile.CPU_IDLE)
    if by_quota.works and not by_idle.works:
        shares = file_name(CgroupFile.CPU_SHARES, mounts["cpu"].version)
        cost = "best-effort pods have the least weight there is, and still run beside others"
        by_idle = SignalSource(by_idle.signal, f"the least {shares}", True, by_idle.reason, by_idle.remedy, cost)
    return [_usage(mounts, node_path), by_cpuset, by_quota, by_idle]


def support_of_isolation(sysfs: Path = SYSFS) -> list[SignalSource]:
    """Return a line on the CPUs that the kernel keeps from ordinary tasks; [] where there are none."""
    signal, cost = "isolated CPUs", "isolated CPUs count as ordinary ones"
    try:
        found = isolated_cpus(sysfs)
    except (KernelFileError, OSError) as error:
        return [SignalSource(signal, "", False, str(error), "Read the file that it names.", cost)]
    lists = ", ".join(f"{name} {format_cpu_list(cpus)}" for name, cpus in found.items())
    how = f"{lists}: in no share pool, and never best-effort pods', unless kubelet's shared set names them"
    return [SignalSource(signal, how, True)] if found else []


def _with_few_cpus(signal: str, online_cpus: int) -> SignalSource:
    if online_cpus < _MIN_CPUS:
        remedy, cost = "None is needed: cfsQuota serves in its place.", "cpuset holds as cfsQuota does"
        return SignalSource(signal, "", False, f"fewer than {_MIN_CPUS} CPUs are online", remedy, cost)
    reason = f"best-effort pods keep {_MIN_CPUS} CPUs, and no more are online"
    return SignalSource(
        signal, "", False, reason, "Set cpuSuppressPolicy to cfsQuota.", "cpuset suppression is disabled"
    )


def _usage(mounts: Mapping[str, ControllerMount], node_path: str) -> SignalSource:
    signal, cost = "CPU usage", "no pod is suppressed, and BECPUEvict and CPUEvict are off"
    # v2 has cpu.stat in every cgroup, with the controller enabled or not.
    accounted = mounts.get("cpuacct")
    name, mount = ("cpuacct.usage", accounted) if accounted else ("cpu.stat", mounts.get("cpu"))
    if mount is None:
        return SignalSource(signal, "", False, *_no_mount("cpu"), cost)
    if not (directory := mount.mount_point / node_path).is_dir():
        return SignalSource(signal, "", False, *_no_directory(directory), cost)
    return SignalSource(signal, f"{'' if node_path else '/proc/stat, '}{name} of cgroups", works=True)


def _by(
    mounts: Mapping[str, ControllerMount], node_path: str, be_path: str | None, policy: str, file: CgroupFile
) -> SignalSource:
    signal, cost = f"suppression by {policy}", f"no pod is suppressed where the policy is {policy}"
    mount = mounts.get(file.controller)
    if mount is None:
        return SignalSource(signal, "", False, *_no_mount(file.controller), cost)
    held = mount.mount_point / (node_path if be_path is None else be_path)
    if not held.is_dir():
        return SignalSource(signal, "", False, *_no_directory(held), cost)
    name = file_name(file, mount.version) or ""
    try:
        is_there = _may_have(held, name) if be_path is None else _has(held, name)
    except OSError as error:
        remedy = "Run as root, with the file system mounted writable."
        return SignalSource(signal, "", False, f"{error.strerror} at {error.filename}", remedy, cost)
    if not is_there:
        above = held if be_path is None else held.parent
        return SignalSource(signal, "", False, *_no_file(above, name, file.controller, mount.version), cost)
    return SignalSource(signal, f"{name}, cgroup v{mount.version} at {mount.mount_point}", works=True)


def _has(directory: Path, name: str) -> bool:
    try:
        os.close(os.open(directory / name, os.O_WRONLY | os.O_CLOEXEC))
    except FileNotFoundError:
        return False
    return True


# The root has not all files that those below it have, and there may be none below it yet.
def _may_have(top: Path, name: str) -> bool:
    probe = top / f"koordebpf-probe-{os.getpid()}"
    probe.mkdir()
    try:
        return _has(probe, name)
    finally:
        probe.rmdir()


def _no_mount(controller: str) -> tuple[str, str]:
    return f"no cgroup mount has the {controller} controller", "In a container, mount the host's /sys/fs/cgroup."


def _no_directory(directory: Path) -> tuple[str, str]:
    return f"there is no {directory}", "Make the node's directory in this hierarchy too."


# On v2 a cgroup has a controller's files where the one above it hands the controller down.
def _no_file(above: Path, name: str, controller: str, version: int) -> tuple[str, str]:
    switch = above / "cgroup.subtree_control"
    if version == 2 and controller not in _words(switch):
        return f"{controller} is not in {switch}", f"A kubelet puts it there; or: echo +{controller} > {switch}"
    return f"this kernel has no {name}", "Use a newer kernel, or another policy."


def _words(path: Path) -> list[str]:
    try:
        return [field(word) for word in path.read_bytes().split()]
    except OSError:
        return []
