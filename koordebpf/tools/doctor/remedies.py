"""What to change on a host so that a signal works, or works better: the option, capability, package or mount. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from koordebpf.kernel.host.machine import HostFacts
from koordebpf.kernel.signals import SignalSource

FixKind = Literal["boot parameter", "capability", "kernel", "kernel option", "limit", "mount", "package"]


class Fix(msgspec.Struct, frozen=True):
    """One change. `command` is what to type, or the line to write; empty where there is nothing to type."""

    kind: FixKind
    what: str
    command: str = ""


class SignalFixes(msgspec.Struct, frozen=True):
    """What would fix one signal; the first change is the nearest one."""

    signal: str
    problem: str
    fixes: tuple[Fix, ...]
    otherwise: str = ""  # the sentence of who tried it, where no change is known


def fixes_of(sources: Iterable[SignalSource], host: HostFacts) -> list[SignalFixes]:
    """Return the changes for every source that does not work, or works less well than it could."""
    return [
        SignalFixes(source.signal, source.reason, found := _fixes(source, host), "" if found else source.remedy)
        for source in sources
        if source.reason
    ]


def fix_lines(fixes: Sequence[SignalFixes], wrap: Callable[[str, str], list[str]]) -> list[str]:
    """Return the changes as text.

    Args:
        fixes: what `fixes_of` found.
        wrap: breaks a head and its text into lines.
    """
    if not fixes:
        return ["Nothing to fix: all signals are available by the preferred method."]
    alike: dict[tuple[str, tuple[Fix, ...], str], list[str]] = {}
    for each in fixes:
        alike.setdefault((each.problem, each.fixes, each.otherwise), []).append(each.signal)
    lines: list[str] = []
    for (problem, changes, otherwise), signals in alike.items():
        lines += wrap("", f"{', '.join(signals)}: {problem}")
        for fix in changes:
            lines += wrap(f"  {fix.kind}: ", fix.what)
            # Never broken elsewhere than the shell allows: it is to be copied.
            lines += [f"    {line}" for line in fix.command.splitlines()]
        if otherwise:
            lines += wrap("  ", otherwise)
        lines.append("")
    return lines[:-1]


def _fixes(source: SignalSource, host: HostFacts) -> tuple[Fix, ...]:
    text = f"{source.signal} {source.reason} {source.remedy}".lower()
    found: list[Fix] = []
    for words, changes in _RULES:
        if any(word in text for word in words):
            found += [fix for fix in changes(host) if fix not in found]
    return tuple(found)


def _capability(*names: str) -> Callable[[HostFacts], list[Fix]]:
    def changes(host: HostFacts) -> list[Fix]:
        missing = [name for name in names if not host.may(name)]
        if not missing:
            return []
        short = [name.removeprefix("CAP_") for name in missing]
        docker = " ".join(f"--cap-add {name}" for name in short)
        pod = f"securityContext: {{capabilities: {{add: [{', '.join(short)}]}}}}"
        return [Fix("capability", f"{', '.join(missing)}; docker: {docker}", pod)]

    return changes


def _bpf_capability(host: HostFacts) -> list[Fix]:
    return _capability(*host.bpf_capabilities)(host)


def _option(*names: str) -> Callable[[HostFacts], list[Fix]]:
    def changes(host: HostFacts) -> list[Fix]:
        off = [name for name in names if host.option(name) not in (None, "y", "m")]
        return [Fix("kernel option", f"{name}=y; it is not in {host.options_path}") for name in off]

    return changes


def _since(release: tuple[int, int], why: str) -> Callable[[HostFacts], list[Fix]]:
    def changes(host: HostFacts) -> list[Fix]:
        if host.version >= release:
            return []
        return [Fix("kernel", f"Linux {release[0]}.{release[1]} or newer, for {why}; this is {host.release}")]

    return changes


def _psi(host: HostFacts) -> list[Fix]:
    words = host.command_line.split()
    is_off = "psi=0" in words or host.option("CONFIG_PSI_DEFAULT_DISABLED") == "y"
    return [_boot("psi=1", host)] if is_off and "psi=1" not in words else []


def _cgroup2(host: HostFacts) -> list[Fix]:
    return [_boot("systemd.unified_cgroup_hierarchy=1", host)]


def _memory_controller(host: HostFacts) -> list[Fix]:
    found = []
    if not host.mounted & {"cgroup", "cgroup2"}:
        found.append(Fix("mount", "the cgroup file system", "mount -t cgroup2 cgroup2 /sys/fs/cgroup"))
    if "cgroup_disable=memory" in host.command_line:
        found.append(_boot("cgroup_enable=memory", host))
    return found


def _freezer(host: HostFacts) -> list[Fix]:
    path = "/sys/fs/cgroup/freezer"
    command = f"mkdir -p {path}\nmount -t cgroup -o freezer cgroup {path}"
    return [Fix("mount", "the freezer hierarchy of cgroup v1", command)]


def _mount(kind: str, path: str) -> Callable[[HostFacts], list[Fix]]:
    def changes(host: HostFacts) -> list[Fix]:
        return [] if kind in host.mounted else [Fix("mount", f"{kind} at {path}", f"mount -t {kind} {kind} {path}")]

    return changes


def _package(debian: str, fedora: str, is_there: Callable[[HostFacts], bool]) -> Callable[[HostFacts], list[Fix]]:
    def changes(host: HostFacts) -> list[Fix]:
        if is_there(host):
            return []
        if {"debian", "ubuntu"} & set(host.distribution):
            return [Fix("package", debian, f"apt-get install {debian}")]
        if {"fedora", "rhel", "centos"} & set(host.distribution):
            return [Fix("package", fedora, f"dnf install {fedora}")]
        return [Fix("package", f"{debian} (Debian's name) or {fedora} (Fedora's)")]

    return changes


def _headers(host: HostFacts) -> list[Fix]:
    debian, fedora = f"linux-headers-{host.release}", f"kernel-devel-{host.release}"
    return _package(debian, fedora, lambda host: host.has_headers)(host)


def _lockdown(host: HostFacts) -> list[Fix]:
    # In `confidentiality` no program may read kernel memory.
    return [_boot("lockdown=integrity", host)] if host.lockdown == "confidentiality" else []


def _memlock(host: HostFacts) -> list[Fix]:
    if host.may("CAP_IPC_LOCK"):
        return []
    return [
        *_capability("CAP_IPC_LOCK")(host),
        Fix("limit", "RLIMIT_MEMLOCK; systemd: LimitMEMLOCK=infinity", "ulimit -l unlimited"),
    ]


def _boot(parameter: str, host: HostFacts) -> Fix:
    match host.boot_editor:
        case "grubby":
            return Fix("boot parameter", f"{parameter}, then reboot", f"grubby --update-kernel=ALL --args={parameter}")
        case "grub":
            edit = f"""sed -i 's/^GRUB_CMDLINE_LINUX="/&{parameter} /'"""
            command = f"{edit} \\\n  /etc/default/grub && update-grub"
            return Fix("boot parameter", f"{parameter}, then reboot", command)
    # An immutable or cloud system: its image, its machine configuration or its hypervisor has the command line.
    return Fix(
        "boot parameter", f"{parameter} on the kernel's command line, where this system keeps it; then reboot", ""
    )


# Words of a source, lower case → what may be missing. All that fit are asked; one that is there already gives nothing.
_RULES: Sequence[tuple[tuple[str, ...], Callable[[HostFacts], list[Fix]]]] = (
    (("memory controller",), _memory_controller),
    (("memory controller",), _option("CONFIG_MEMCG")),
    (("libbpf",), _package("libbpf1", "libbpf", lambda host: False)),
    (("(eperm)", "cap_bpf"), _bpf_capability),
    (("(eperm)", "lockdown"), _lockdown),
    (("btf",), _option("CONFIG_DEBUG_INFO_BTF")),
    (("(enosys)", "bpf system call", "bpf is not"), _option("CONFIG_BPF", "CONFIG_BPF_SYSCALL", "CONFIG_BPF_EVENTS")),
    (("memstall", "every memory stall", "refault"), _option("CONFIG_PSI", "CONFIG_KPROBES")),
    (("memstall", "every memory stall"), _psi),
    (("psi",), _option("CONFIG_PSI")),
    (("psi=1", "pressure accounting"), _psi),
    (("cap_sys_resource", "shorter window"), _capability("CAP_SYS_RESOURCE")),
    (("shorter window",), _since((6, 5), "windows below 500 ms")),
    (("cgroup v1", "use cgroup v2"), _cgroup2),
    (("freezer",), _freezer),
    (("mlockall", "cap_ipc_lock", "own memory"), _memlock),
    (("process_mrelease",), _since((5, 15), "process_mrelease")),
    (("cgroup iterator", "one pass"), _since((6, 1), "cgroup iterators")),
    (("throttl",), _since((5, 16), "mm_vmscan_throttled")),
    (("compaction",), _option("CONFIG_COMPACTION")),
    (("kernel has no cpu.idle",), _since((5, 15), "cpu.idle")),
    (("kernel has no cpu.cfs_quota_us", "kernel has no cpu.max"), _option("CONFIG_CFS_BANDWIDTH")),
    (("cpuset controller",), _option("CONFIG_CPUSETS")),
    (("tracefs",), _mount("tracefs", "/sys/kernel/tracing")),
    (("procfs", "/proc/meminfo"), _mount("proc", "/proc")),
    (("python3-bpfcc",), _package("python3-bpfcc", "python3-bcc", lambda host: host.has_bcc)),
    (("headers",), _headers),
)
