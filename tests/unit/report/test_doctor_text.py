"""The tables of `koordebpf doctor`, and what it says to type."""

from __future__ import annotations

import msgspec
import pytest

from koordebpf.kernel.host.machine import CAPABILITIES, HostFacts, parse_config, parse_os_release
from koordebpf.kernel.signals import SignalSource
from koordebpf.tools.doctor.page import BackendTry, DoctorReport, doctor_report, doctor_text
from koordebpf.tools.doctor.remedies import Fix, SignalFixes, fixes_of

WORKS = SignalSource("node usage", "/proc/meminfo", works=True)
MISSING = SignalSource(
    "OOM kills", "", False, "this kernel has no such tracepoint (ENOENT)", "Use 5.10.", "not reported"
)
POORER = SignalSource(
    "node PSI trigger", "window 2000 ms", True, "a shorter window was refused", "Give CAP.", "slower " * 9
)
REFUSED = SignalSource("global reclaim stalls", "BPF", False, "the kernel refuses (EPERM)", "Give CAP_BPF.", "untimed")
TRIES = (BackendTry("co-re", True), BackendTry("bcc", False, "not needed: co-re works"))
HOST = HostFacts(
    release="6.12.1-amd64",
    distribution=("debian",),
    capabilities=frozenset(CAPABILITIES),
    options={"CONFIG_PSI": "y", "CONFIG_MEMCG": "y", "CONFIG_KPROBES": "y", "CONFIG_DEBUG_INFO_BTF": "y"},
    options_path="/boot/config-6.12.1-amd64",
    command_line="quiet",
    mounted=frozenset({"cgroup2", "proc"}),
    lockdown="none",
    has_btf=True,
    has_headers=False,
    has_bcc=False,
    boot_editor="grub",
)


def report(*sources: SignalSource, tries: tuple[BackendTry, ...] = TRIES, host: HostFacts = HOST) -> DoctorReport:
    return doctor_report("Linux 6.18", tries, sources, fixes_of(sources, host), "backend co-re: all is timed")


def with_host(**change: object) -> HostFacts:
    return msgspec.structs.replace(HOST, **change)


def fix(source: SignalSource, host: HostFacts) -> dict[str, str]:
    (found,) = fixes_of([source], host)
    return {f"{each.kind} {each.what}": each.command for each in found.fixes}


def test_a_note_says_what_it_costs_and_degrades_nothing() -> None:
    noted = doctor_report("Linux 6.18", TRIES, [WORKS], [], notes=[POORER])
    assert (noted.health, noted.exit_code) == ("all", 0)
    lines = doctor_text(noted).splitlines()
    below = lines[next(at for at, line in enumerate(lines) if line.startswith("   NOTE ")) :]
    assert below[1].split() == ["ok", "node", "PSI", "trigger", "window", "2000", "ms"]
    assert any("a shorter window was refused" in line for line in below)
    assert below[-2:] == ["1 of 1 work here.", "The agent runs here with every signal."]


def test_what_is_missing_says_why_how_and_what_it_costs() -> None:
    lines = doctor_text(report(WORKS, MISSING, POORER)).splitlines()
    assert lines[0] == "Linux 6.18"
    assert "ok co-re                               is taken" in lines
    assert "   bcc                                 not needed: co-re works" in lines
    assert "ok node usage                          /proc/meminfo" in lines
    assert any(line.startswith("-- OOM kills") and "no such tracepoint" in line for line in lines)
    assert any("costs: not reported" in line for line in lines)
    assert any("a shorter window was refused" in line for line in lines)
    assert lines[-3] == "2 of 3 work here."
    assert max(map(len, lines)) <= 80


def test_a_path_that_is_longer_than_its_column_is_broken() -> None:
    path = "/sys/fs/cgroup/cpuset/kubepods.slice/kubepods-besteffort.slice"
    lines = doctor_text(report(msgspec.structs.replace(MISSING, reason=f"there is no {path}"))).splitlines()
    assert max(map(len, lines)) <= 80
    assert path in "".join(line.strip() for line in lines)


def test_the_same_cause_is_explained_once() -> None:
    other = msgspec.structs.replace(REFUSED, signal="kswapd activity")
    text = doctor_text(report(REFUSED, other), with_fixes=True)
    assert text.count("the kernel refuses (EPERM)") == 2  # in the table, and above the fix
    assert "global reclaim stalls, kswapd activity: the kernel refuses (EPERM)" in text


@pytest.mark.parametrize(
    ("sources", "tries", "health", "code"),
    [
        ((WORKS,), TRIES, "all", 0),
        ((WORKS, MISSING), TRIES, "degraded", 1),
        ((WORKS, POORER), TRIES, "degraded", 1),
        ((WORKS,), (BackendTry("co-re", False, "no BTF", failed=True), BackendTry("files", True)), "degraded", 1),
        ((WORKS,), (BackendTry("files", False, "no cgroups", failed=True),), "cannot", 2),
    ],
)
def test_the_exit_code(
    sources: tuple[SignalSource, ...], tries: tuple[BackendTry, ...], health: str, code: int
) -> None:
    found = report(*sources, tries=tries)
    assert (found.health, found.exit_code) == (health, code)


def test_json_reads_back() -> None:
    found = report(WORKS, REFUSED, host=with_host(capabilities=frozenset()))
    assert msgspec.json.decode(msgspec.json.encode(found), type=DoctorReport) == found


NO_PSI = SignalSource("node PSI trigger", "", False, "pressure accounting is switched off", "Boot with psi=1", "x")
V1 = SignalSource("PSI of cgroups", "summed", True, "cgroup v1 has no memory.pressure", "Use cgroup v2.", "x")
NO_ITER = SignalSource("usage of all cgroups in one pass", "", False, "no cgroup iterator (EINVAL)", "Linux 6.1.", "x")
NO_MEMCG = SignalSource("memory controller", "", False, "no cgroup mount has it", "Mount it", "x")
NO_LOCK = SignalSource("the agent's own memory", "", False, "RLIMIT_MEMLOCK is 8 and CAP_IPC_LOCK is missing", "y", "x")
NO_LIBBPF = SignalSource("BPF", "", False, "libbpf.so.1 was not found", "Install libbpf1.", "x")
NO_BTF = SignalSource("backend co-re", "", False, "this kernel has no BTF", "y", "x")
NO_BCC = SignalSource("backend bcc", "", False, "python3-bpfcc is not installed", "y", "x")
NO_HEADERS = SignalSource("backend bcc", "", False, "the running kernel's headers are not installed", "y", "x")
NO_FREEZER = SignalSource("kill a cgroup", "pidfd", True, "no freezer hierarchy", "Mount it.", "x")
NO_STALL = SignalSource("every memory stall", "", False, "psi_memstall_enter cannot be probed", "y", "x")
NO_IDLE = SignalSource("suppression by cpuIdle", "the least cpu.shares", True, "this kernel has no cpu.idle", "y", "x")
NO_CPUSET = SignalSource("suppression by cpuset", "", False, "no cgroup mount has the cpuset controller", "y", "x")
GRUB = "sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{} /' \\\n  /etc/default/grub && update-grub"


@pytest.mark.parametrize(
    ("source", "host", "expected"),
    [
        (
            REFUSED,
            with_host(capabilities=frozenset()),
            {
                "capability CAP_BPF, CAP_PERFMON; docker: --cap-add BPF --cap-add PERFMON": (
                    "securityContext: {capabilities: {add: [BPF, PERFMON]}}"
                )
            },
        ),
        (
            REFUSED,
            with_host(capabilities=frozenset(), release="5.4.0"),
            {
                "capability CAP_SYS_ADMIN; docker: --cap-add SYS_ADMIN": (
                    "securityContext: {capabilities: {add: [SYS_ADMIN]}}"
                )
            },
        ),
        (
            REFUSED,
            with_host(lockdown="confidentiality"),
            {"boot parameter lockdown=integrity, then reboot": GRUB.format("lockdown=integrity")},
        ),
        (
            POORER,
            with_host(capabilities=frozenset({"CAP_BPF"}), release="5.10.0-46-amd64"),
            {
                "capability CAP_SYS_RESOURCE; docker: --cap-add SYS_RESOURCE": (
                    "securityContext: {capabilities: {add: [SYS_RESOURCE]}}"
                ),
                "kernel Linux 6.5 or newer, for windows below 500 ms; this is 5.10.0-46-amd64": "",
            },
        ),
        (
            NO_PSI,
            with_host(options={"CONFIG_PSI": "y", "CONFIG_PSI_DEFAULT_DISABLED": "y"}),
            {"boot parameter psi=1, then reboot": GRUB.format("psi=1")},
        ),
        (
            NO_PSI,
            with_host(command_line="psi=0", distribution=("fedora",), boot_editor="grubby"),
            {"boot parameter psi=1, then reboot": "grubby --update-kernel=ALL --args=psi=1"},
        ),
        (
            NO_PSI,
            with_host(command_line="psi=0", distribution=("talos",), boot_editor=None),
            {"boot parameter psi=1 on the kernel's command line, where this system keeps it; then reboot": ""},
        ),
        (NO_PSI, with_host(options={}), {"kernel option CONFIG_PSI=y; it is not in /boot/config-6.12.1-amd64": ""}),
        (
            V1,
            HOST,
            {
                "boot parameter systemd.unified_cgroup_hierarchy=1, then reboot": GRUB.format(
                    "systemd.unified_cgroup_hierarchy=1"
                )
            },
        ),
        (
            NO_ITER,
            with_host(release="5.10.0-46-amd64"),
            {"kernel Linux 6.1 or newer, for cgroup iterators; this is 5.10.0-46-amd64": ""},
        ),
        (
            NO_MEMCG,
            with_host(mounted=frozenset({"proc"})),
            {"mount the cgroup file system": "mount -t cgroup2 cgroup2 /sys/fs/cgroup"},
        ),
        (
            NO_MEMCG,
            with_host(command_line="cgroup_disable=memory"),
            {"boot parameter cgroup_enable=memory, then reboot": GRUB.format("cgroup_enable=memory")},
        ),
        (
            NO_LOCK,
            with_host(capabilities=frozenset({"CAP_BPF"})),
            {
                "capability CAP_IPC_LOCK; docker: --cap-add IPC_LOCK": (
                    "securityContext: {capabilities: {add: [IPC_LOCK]}}"
                ),
                "limit RLIMIT_MEMLOCK; systemd: LimitMEMLOCK=infinity": "ulimit -l unlimited",
            },
        ),
        (NO_LIBBPF, HOST, {"package libbpf1": "apt-get install libbpf1"}),
        (NO_LIBBPF, with_host(distribution=("rhel", "fedora")), {"package libbpf": "dnf install libbpf"}),
        (
            NO_BTF,
            with_host(options={}, has_btf=False),
            {"kernel option CONFIG_DEBUG_INFO_BTF=y; it is not in /boot/config-6.12.1-amd64": ""},
        ),
        (NO_BCC, HOST, {"package python3-bpfcc": "apt-get install python3-bpfcc"}),
        (
            NO_HEADERS,
            HOST,
            {"package linux-headers-6.12.1-amd64": "apt-get install linux-headers-6.12.1-amd64"},
        ),
        (
            NO_FREEZER,
            HOST,
            {
                "mount the freezer hierarchy of cgroup v1": (
                    "mkdir -p /sys/fs/cgroup/freezer\nmount -t cgroup -o freezer cgroup /sys/fs/cgroup/freezer"
                )
            },
        ),
        (NO_IDLE, with_host(release="5.10.0"), {"kernel Linux 5.15 or newer, for cpu.idle; this is 5.10.0": ""}),
        (
            NO_CPUSET,
            with_host(options={}),
            {"kernel option CONFIG_CPUSETS=y; it is not in /boot/config-6.12.1-amd64": ""},
        ),
        (
            NO_STALL,
            with_host(options={"CONFIG_PSI": "y"}),
            {"kernel option CONFIG_KPROBES=y; it is not in /boot/config-6.12.1-amd64": ""},
        ),
    ],
)
def test_what_to_type(source: SignalSource, host: HostFacts, expected: dict[str, str]) -> None:
    assert fix(source, host) == expected


def test_what_is_there_already_is_not_asked_for() -> None:
    assert fix(REFUSED, HOST) == {}
    (found,) = fixes_of([REFUSED], HOST)
    assert found.otherwise == "Give CAP_BPF."
    assert fix(NO_PSI, with_host(options=None, command_line="psi=1")) == {}


def test_what_works_needs_nothing() -> None:
    assert fixes_of([WORKS], HOST) == []
    assert "Nothing to fix" in doctor_text(report(WORKS), with_fixes=True)


def test_a_command_may_be_copied() -> None:
    found = SignalFixes("a", "b", (Fix("boot parameter", "c", GRUB.format("systemd.unified_cgroup_hierarchy=1")),))
    lines = doctor_text(msgspec.structs.replace(report(WORKS), fixes=(found,)), with_fixes=True).splitlines()
    assert max(map(len, lines)) <= 80
    at = next(at for at, line in enumerate(lines) if "sed -i" in line)
    assert lines[at].endswith("\\")
    assert lines[at + 1].strip() == "/etc/default/grub && update-grub"


def test_hosts_are_read() -> None:
    assert parse_config(["# CONFIG_A is not set\n", "CONFIG_B=y\n", 'CONFIG_C="x"\n', "\n"]) == {
        "CONFIG_B": "y",
        "CONFIG_C": "x",
    }
    assert parse_os_release(["ID=ubuntu", 'ID_LIKE="debian"', "NAME=x"]) == ("ubuntu", "debian")
    assert [with_host(release=release).version for release in ("6.18.44-fc", "5.10", "next")] == [
        (6, 18),
        (5, 10),
        (0, 0),
    ]
    assert with_host(options=None).option("CONFIG_PSI") is None
    assert HOST.option("CONFIG_NOT") == "n"
