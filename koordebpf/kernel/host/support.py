"""What this host lets the agent do, found by trying each thing once and undoing it. Beside `KernelSignals.sources`."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import resource
from pathlib import Path

from koordebpf.errors import KernelFileError, SupportError
from koordebpf.kernel.bpf import libbpf
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.cgroup.reaping import SYS_PROCESS_MRELEASE
from koordebpf.kernel.host.machine import effective_capabilities
from koordebpf.kernel.proc.meminfo import MEMINFO, Meminfo
from koordebpf.kernel.proc.psi import MAX_CGROUP_TRIGGERS, NODE_CPU_PRESSURE, NODE_MEMORY_PRESSURE, PsiTrigger
from koordebpf.kernel.signals import SignalSource
from koordebpf.units import format_bytes

_SIGNAL = "confinement"
# Types that may do what root may: containers with seLinuxOptions.type spc_t, logins, services without a policy.
_FREE_TYPES = frozenset({"spc_t", "unconfined_t", "unconfined_service_t", "kernel_t", "init_t", "initrc_t"})
_ATTRIBUTES = ("/proc/self/attr/apparmor/current", "/proc/self/attr/current")
_ENFORCE = "/sys/fs/selinux/enforce"
BTF_PATH = Path("/sys/kernel/btf/vmlinux")
_ASKED_WINDOW_US = 50_000
_NOT_ALL = "stalls other than reclaim (refault, swap-in) are not in it"


def support_of_confinement() -> SignalSource:
    """Return what confines this process."""
    label = next(filter(None, (_read(path) for path in _ATTRIBUTES)), "")
    return confinement(label, _read(_ENFORCE))


def confinement(label: str, selinux_enforce: str) -> SignalSource:
    """Return what a label means for an agent.

    Args:
        label: /proc/self/attr/current: an SELinux context, an AppArmor profile and its mode, "": no module has labels.
        selinux_enforce: /sys/fs/selinux/enforce, 1 or 0; "": not mounted here, as in most containers.
    """
    if re.fullmatch(r"[^: ]+:[^: ]+:[^: ]+(:\S+)?", label):
        return _of_selinux(label, selinux_enforce)
    if not label:
        return SignalSource(_SIGNAL, "none: no SELinux or AppArmor here", works=True)
    profile, _, mode = label.partition(" (")
    if profile == "unconfined" or mode.startswith(("complain", "unconfined")):
        return SignalSource(_SIGNAL, f"none: AppArmor profile {label}", works=True)
    # The profile of containers allows all else that an agent does.
    return SignalSource(
        _SIGNAL, f"AppArmor profile {label}: a kill reaches processes of the same profile only", works=True
    )


def _of_selinux(context: str, enforce: str) -> SignalSource:
    domain = context.split(":")[2]
    if domain in _FREE_TYPES:
        return SignalSource(_SIGNAL, f"none: SELinux type {domain}", works=True)
    if enforce == "0":
        return SignalSource(_SIGNAL, f"none: SELinux type {domain}, permissive", works=True)
    return SignalSource(
        _SIGNAL,
        f"SELinux type {domain}",
        True,
        f"type {domain} is confined" if enforce == "1" else f"type {domain} is confined where SELinux enforces",
        "Give the pod seLinuxOptions.type spc_t.",
        "bpf(2), writes to cgroups and to /run/koordebpf, the runtime's and kubelet's sockets may be refused",
    )


def _read(path: str) -> str:
    try:
        # SELinux ends its context with a NUL, AppArmor with a line feed. Without a module that has labels: EINVAL.
        return Path(path).read_bytes().rstrip(b"\0\n").decode(errors="replace")
    except OSError:
        return ""


def host_line() -> str:
    """Return kernel release, architecture and libbpf's version in one line."""
    try:
        lib = libbpf.library()
        version = f"libbpf {lib.libbpf_major_version()}.{lib.libbpf_minor_version()}"
    except SupportError:
        version = "no libbpf"
    except AttributeError:  # before libbpf 0.6
        version = "libbpf 0"
    btf = "BTF" if BTF_PATH.exists() else "no BTF"
    who = "root" if os.geteuid() == 0 else f"uid {os.geteuid()}"
    return f"Linux {platform.release()} {platform.machine()}, {btf}, {version}, {os.cpu_count()} CPUs, {who}"


def support_of_files(hierarchy: MemoryHierarchy) -> list[SignalSource]:
    """Return how everything that is no BPF program is obtained here."""
    return [
        SignalSource("memory controller", f"cgroup v{hierarchy.version} at {hierarchy.mount_point}", works=True),
        support_of_node_usage(),
        _cgroup_slab(hierarchy),
        _node_psi(),
        _cgroup_psi(hierarchy),
        _cpu_psi(hierarchy),
        _kill(hierarchy),
        _early_release(),
        _memory_lock(),
        support_of_confinement(),
    ]


def support_of_node_usage(path: Path = MEMINFO) -> SignalSource:
    """Return whether it is known how full the machine is."""
    try:
        with Meminfo(path) as meminfo:
            values = meminfo.read()
    except (SupportError, KernelFileError) as error:
        return SignalSource("node usage", "", False, str(error), "Mount procfs.", "the machine cannot be the node")
    if values.problem is not None:
        remedy = "Run it where /proc/meminfo is the machine's own, without lxcfs."
        why = f"{path}: {values.problem}"
        return SignalSource("node usage", "", False, why, remedy, "nothing is evicted: the guard node_implausible")
    pool = values.hugetlb_bytes or 0
    said = f"; {format_bytes(pool)} of it are huge pages set aside, which count as used" if pool else ""
    return SignalSource("node usage", f"/proc/meminfo MemTotal − MemAvailable{said}", works=True)


def _cgroup_slab(hierarchy: MemoryHierarchy) -> SignalSource:
    if hierarchy.version == 2:
        return SignalSource("reclaimable slab of a cgroup", "memory.stat slab_reclaimable", works=True)
    return SignalSource(
        "reclaimable slab of a cgroup",
        "",
        False,
        "cgroup v1 does not show it",
        "Use cgroup v2.",
        "counts as used in a node cgroup; the machine's own usage is exact",
    )


def _node_psi() -> SignalSource:
    try:
        with PsiTrigger(NODE_MEMORY_PRESSURE, window_us=_ASKED_WINDOW_US) as trigger:
            window_ms = trigger.window_us // 1000
    except SupportError as error:
        return SignalSource(
            "node PSI trigger",
            "",
            False,
            error.reason,
            error.remedy,
            "no wake-up by PSI: sampling finds the crossing",
        )
    how = f"{NODE_MEMORY_PRESSURE}, window {window_ms} ms"
    if window_ms * 1000 == _ASKED_WINDOW_US:
        return SignalSource("node PSI trigger", how, works=True)
    return SignalSource(
        "node PSI trigger",
        how,
        True,
        "a shorter window was refused",
        "Give CAP_SYS_RESOURCE (and Linux 6.5 for windows below 500 ms).",
        f"PSI wakes at most every {window_ms} ms",
    )


# On cgroup v2 pods have triggers of their own, which are granted as the machine's.
def _cpu_psi(hierarchy: MemoryHierarchy) -> SignalSource:
    signal, cost = "CPU PSI trigger", "no wake-up of CPU suppression by PSI: it looks each second"
    where = NODE_CPU_PRESSURE if hierarchy.version == 1 else "cpu.pressure of the latency-sensitive side"
    try:
        with PsiTrigger(NODE_CPU_PRESSURE, window_us=_ASKED_WINDOW_US) as trigger:
            window_ms = trigger.window_us // 1000
    except SupportError as error:
        return SignalSource(signal, "", False, error.reason, error.remedy, cost)
    how = f"{where}, window {window_ms} ms"
    if window_ms * 1000 == _ASKED_WINDOW_US:
        return SignalSource(signal, how, works=True)
    remedy = "Give CAP_SYS_RESOURCE (and Linux 6.5 for windows below 500 ms)."
    return SignalSource(
        signal, how, True, "a shorter window was refused", remedy, f"PSI wakes at most every {window_ms} ms"
    )


def _cgroup_psi(hierarchy: MemoryHierarchy) -> SignalSource:
    if hierarchy.version == 1:
        return SignalSource(
            "PSI of cgroups",
            "summed from their reclaim stalls",
            True,
            "cgroup v1 has no memory.pressure",
            "Use cgroup v2.",
            _NOT_ALL,
        )
    if not _has_cgroup_file(hierarchy, "memory.pressure"):
        return SignalSource(
            "PSI of cgroups",
            "summed from their reclaim stalls",
            True,
            "no memory.pressure",
            "Boot with psi=1.",
            _NOT_ALL,
        )
    how = f"memory.pressure, and triggers on at most {MAX_CGROUP_TRIGGERS} latency-sensitive pods"
    return SignalSource("PSI of cgroups", how, works=True)


def _kill(hierarchy: MemoryHierarchy) -> SignalSource:
    if hierarchy.version == 2:
        if _has_cgroup_file(hierarchy, "cgroup.kill"):
            return SignalSource("kill a cgroup", "cgroup.kill", works=True)
        return SignalSource("kill a cgroup", "cgroup.freeze, then SIGKILL by pidfd", works=True)
    if hierarchy.freezer_mount_point:
        return SignalSource("kill a cgroup", "freezer, then SIGKILL by pidfd", works=True)
    return SignalSource(
        "kill a cgroup",
        "SIGKILL by pidfd, in rounds",
        True,
        "no freezer hierarchy",
        "Mount it.",
        "forks need more rounds",
    )


def _has_cgroup_file(hierarchy: MemoryHierarchy, name: str) -> bool:
    # The root has not all files that the others have, and a freshly booted machine may have no others.
    if next(hierarchy.mount_point.glob(f"*/{name}"), None):
        return True
    probe = hierarchy.mount_point / f"koordebpf-probe-{os.getpid()}"
    try:
        probe.mkdir()
    except OSError:
        return False
    try:
        return (probe / name).exists()
    finally:
        probe.rmdir()


def _early_release() -> SignalSource:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(SYS_PROCESS_MRELEASE, -1, 0)
    if ctypes.get_errno() != errno.ENOSYS:
        return SignalSource("early release of a victim", "process_mrelease", works=True)
    return SignalSource(
        "early release of a victim",
        "",
        False,
        "this kernel has no process_mrelease",
        "Linux 5.15.",
        "a victim's memory comes back when its last thread has left",
    )


def _memory_lock() -> SignalSource:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    # CAP_IPC_LOCK is bit 14, include/uapi/linux/capability.h.
    if effective_capabilities() >> 14 & 1 or limit == resource.RLIM_INFINITY:
        return SignalSource("the agent's own memory", "mlockall", works=True)
    return SignalSource(
        "the agent's own memory",
        "",
        False,
        f"RLIMIT_MEMLOCK is {limit} bytes and CAP_IPC_LOCK is missing",
        "Give CAP_IPC_LOCK.",
        "the agent itself may be reclaimed",
    )
