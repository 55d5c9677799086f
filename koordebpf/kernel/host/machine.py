"""What kind of host this is, as far as it decides what to change on it: read once, never changed here.

Also which processes this one can see (its pid namespace and those below), and whether a network interface has a link.
"""

from __future__ import annotations

import gzip
import os
import platform
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from koordebpf.errors import CgroupGone, KernelFileError
from koordebpf.kernel.bpf.lockdown import lockdown
from koordebpf.kernel.io.table import field, rows
from koordebpf.kernel.io.text_file import read_kernel_file
from koordebpf.kernel.proc.mounts import read_mounts

_PROC_PID_INIT_INO = 0xEFFFFFFC  # include/linux/proc_ns.h
_PROC = Path("/proc")
NET = Path("/sys/class/net")
# Of a name: 15 characters, without a slash, colon or space. Source: net/core/dev.c, dev_valid_name.
_NAME = re.compile(r"[^/:\s]{1,15}")
_DOWN = frozenset({"down", "lowerlayerdown", "notpresent"})
# include/uapi/linux/capability.h: those that some part of the agent needs.
CAPABILITIES = {
    "CAP_IPC_LOCK": 14,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_RESOURCE": 24,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
}
_BPF_CAPABILITIES_SINCE = (5, 8)
_BCC = Path("/usr/lib/python3/dist-packages/bcc")  # the distribution's; PyPI's bcc is something else


def is_initial(proc: Path = _PROC) -> bool:
    """Tell whether this is the machine's own pid namespace; also where that cannot be read."""
    try:
        return (proc / "self/ns/pid").stat().st_ino == _PROC_PID_INIT_INO
    except OSError:
        return True


def is_of_a_pod(proc: Path = _PROC) -> bool:
    """Tell whether the namespace's first process is a container of Kubernetes, which sees no other pod's processes.

    A nested node, as kind's, has a namespace of its own too, and its pods' are below that one.
    """
    try:
        return b"kubepods" in (proc / "1/cgroup").read_bytes()
    except OSError:
        return True


def has_link(name: str, net: Path = NET) -> bool | None:
    """Tell whether an interface of this network namespace has a link; None: that is not known here.

    It is not where there is no such interface, nor of one that stands for another, such as a veth or a VLAN: in a
    network namespace of its own a pod has an eth0, too, and that is not the node's.

    Source:  Documentation/ABI/testing/sysfs-class-net: operstate, carrier, ifindex, iflink.
    Cost:    60 µs.
    """
    if not _NAME.fullmatch(name) or name in (".", ".."):
        return None
    folder = net / name
    index, peer, state = (_read(folder / file) for file in ("ifindex", "iflink", "operstate"))
    if index is None or index != peer or state is None:
        return None
    # `unknown` is what a driver without operational states says; the carrier of one that is switched off is EINVAL.
    return state not in _DOWN and _read(folder / "carrier") != "0"


def _read(path: Path) -> str | None:
    try:
        return read_kernel_file(path).text.strip()
    except (OSError, CgroupGone, KernelFileError, ValueError):  # ValueError: a name that is no path, or no text
        return None


_CAPABILITY_BITS = re.compile(rb"[0-9a-f]{1,16}")


class HostFacts(msgspec.Struct, frozen=True):
    """One host. None: not known here."""

    release: str
    distribution: tuple[str, ...]  # ID and ID_LIKE of os-release, the nearest first
    capabilities: frozenset[str]  # effective, of CAPABILITIES
    options: dict[str, str] | None  # CONFIG_X → y, m, n or its value
    options_path: str | None
    command_line: str
    mounted: frozenset[str]  # file system types
    lockdown: str | None  # none, integrity, confidentiality
    has_btf: bool
    has_headers: bool
    has_bcc: bool
    boot_editor: Literal["grub", "grubby"] | None = None  # what changes the kernel's command line here

    @property
    def version(self) -> tuple[int, int]:
        """The release's first two numbers; (0, 0): it begins with none."""
        parts = self.release.replace("-", ".").split(".")
        return (
            (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else (0, 0)
        )

    def may(self, capability: str) -> bool:
        """Tell whether the process has a capability, or the older one that held it."""
        if capability in ("CAP_BPF", "CAP_PERFMON") and "CAP_SYS_ADMIN" in self.capabilities:
            return True
        return capability in self.capabilities

    @property
    def bpf_capabilities(self) -> tuple[str, ...]:
        """What loading tracing programs takes on this release."""
        return ("CAP_BPF", "CAP_PERFMON") if self.version >= _BPF_CAPABILITIES_SINCE else ("CAP_SYS_ADMIN",)

    def option(self, name: str) -> str | None:
        """Return the value of a kernel option, `n` where the configuration does not name it; None: not known."""
        return None if self.options is None else self.options.get(name, "n")


def host_facts() -> HostFacts:
    """Return what this host is; everything that cannot be read is not known."""
    release = platform.release()
    options, options_path = _options(release)
    return HostFacts(
        release=release,
        distribution=parse_os_release(_text(Path("/etc/os-release")).split("\n")),
        capabilities=_capabilities(),
        options=options,
        options_path=options_path,
        command_line=_text(Path("/proc/cmdline")).strip(),
        mounted=_mounted(),
        lockdown=lockdown(),
        has_btf=Path("/sys/kernel/btf/vmlinux").exists(),
        has_headers=Path(f"/lib/modules/{release}/build/include").is_dir(),
        has_bcc=_BCC.is_dir(),
        boot_editor=_boot_editor(),
    )


def _mounted() -> frozenset[str]:
    try:
        return frozenset(each.fstype for each in read_mounts())
    except OSError:
        return frozenset()


def _boot_editor() -> Literal["grub", "grubby"] | None:
    if shutil.which("grubby"):
        return "grubby"
    return "grub" if Path("/etc/default/grub").exists() and shutil.which("update-grub") else None


def parse_config(lines: Iterable[str]) -> dict[str, str]:
    """Return the options of a kernel configuration; those that are not set are left out."""
    pairs = (line.strip().partition("=") for line in lines if line.startswith("CONFIG_"))
    return {name: value.strip('"') for name, _, value in pairs if value}


def parse_os_release(lines: Iterable[str]) -> tuple[str, ...]:
    """Return ID and ID_LIKE of an os-release file."""
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    words = f"{values.get('ID', '')} {values.get('ID_LIKE', '')}".replace('"', "").split()
    return tuple(dict.fromkeys(words))


def _options(release: str) -> tuple[dict[str, str] | None, str | None]:
    try:
        with gzip.open("/proc/config.gz", "rt") as file:
            return parse_config(file), "/proc/config.gz"
    except OSError:
        pass
    for path in (Path(f"/boot/config-{release}"), Path(f"/lib/modules/{release}/config")):
        if text := _text(path):
            return parse_config(text.split("\n")), str(path)
    return None, None


def _capabilities() -> frozenset[str]:
    effective = effective_capabilities()
    return frozenset(name for name, bit in CAPABILITIES.items() if effective >> bit & 1)


def effective_capabilities(status: Path = Path("/proc/self/status")) -> int:
    """Return the capabilities of this process as bits; all of root's where procfs does not say.

    Source:  proc_pid_status(5), CapEff.
    """
    try:
        table = status.read_bytes()
    except OSError:
        table = b""
    for row in rows(table):
        key, _, value = row.partition(b":\t")
        if key == b"CapEff" and _CAPABILITY_BITS.fullmatch(value):
            return int(value, 16)
    return ~0 if os.geteuid() == 0 else 0


def _text(path: Path) -> str:
    try:
        return field(path.read_bytes())
    except OSError:
        return ""
