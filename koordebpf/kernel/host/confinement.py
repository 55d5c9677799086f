"""Which Linux security module confines this process, and what that keeps from it."""

from __future__ import annotations

import re
from pathlib import Path

from koordebpf.kernel.signals.interface import SignalSource

_SIGNAL = "confinement"
# Types that may do what root may: containers with seLinuxOptions.type spc_t, logins, services without a policy.
_FREE_TYPES = frozenset({"spc_t", "unconfined_t", "unconfined_service_t", "kernel_t", "init_t", "initrc_t"})
_ATTRIBUTES = ("/proc/self/attr/apparmor/current", "/proc/self/attr/current")
_ENFORCE = "/sys/fs/selinux/enforce"


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
