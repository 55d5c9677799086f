"""One virtual machine, from the boot to its results, which are read from files and never from its console."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil

from tests.vm.guest import Plan
from tests.vm.kernels import CannotHave, Kernel, Say
from tests.vm.matrix import Variant
from tests.vm.monitor import Monitor, write_emulator_stacks

ROOT = Path(__file__).parents[2]
_SCRATCH_MIB = 8192  # sparse; tests.felt makes a disk of 6 GiB on it
_SAY_EACH_S = 60
# A test that waits for ever fails after the first; a guest that says nothing at all for the second is ended.
_TEST_S = 480
_SILENT_S = 600
# Of the checkout: what is made by a build that guests need is taken, what only costs time is not.
_NOT_IN_SNAPSHOT = (".git", ".venv", ".make", ".*_cache", ".hypothesis", "dist", "*.egg-info")
_BOOT_OPTIONS = (
    "mitigations=off",  # page tables are switched at each system call otherwise, which emulation pays dearly
    "log_buf_len=16M",
    "printk.devkmsg=on",  # the tests' names are written there; no limit to their rate
    "loglevel=4",  # the console is a serial line and slow; the log is followed in a file
    # A CPU that is emulated on a busy machine may not run for long. What really stalls is seen all the same.
    "no_timer_check",  # at boot: that a timer ticks ten times in a moment
    "rcupdate.rcu_cpu_stall_timeout=150",
    "watchdog_thresh=60",
    # For tests/vm/monitor.py: all tasks and the stack of each CPU.
    "unknown_nmi_panic=1",
    "panic_print=0x41",
    # Debian's kernels clear every page once more than is needed, and ask a security module about each file.
    "init_on_alloc=0",
    "apparmor=0",
)
# What an emulated CPU is slow at: string instructions byte by byte, a fifth level of page tables, guards of user pages.
# It halves the time of a test that fills the machine.
EMULATED_CPU = "max,-erms,-fsrm,-la57,-smap,-smep,-pku,-umip"
# Why: with a thread for each CPU QEMU 7.2 hangs now and then, one thread busy, and then delivers not even an NMI. One
# thread for all CPUs waits for no other, and takes 40 % more CPU time (6.12 writes, 2 CPUs: 542 s in place of 387), far
# more while the guest swaps. So it is for the machine that hung most, and for the second boot of one that was silent.
ONE_THREAD = "-accel tcg,thread=single"
# The guest's clock moves by a nanosecond for each instruction, and jumps to the next timer where every CPU is idle.
INSTRUCTION_CLOCK = "-icount shift=0,sleep=off"
_PYTEST = (
    "-v", "--tb=short", "-rs", "--durations=0", "--durations-min=1",
    "-p", "no:cacheprovider",  # it writes into the checkout
    "-p", "tests.vm.marks",
    "-p", "pytest_rerunfailures", "@tests/again.txt",
    "-p", "pytest_timeout", f"--timeout={_TEST_S}", "--timeout-method=signal",
)  # fmt: skip
_ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPYCACHEPREFIX": "",  # what is compiled for guests lies in their copy of the checkout
    "PYTHONUNBUFFERED": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the host tests need none, and importing them is a fifth of the start
    "KOORDEBPF_REQUIRE": "host",
    "HOME": "/tmp",
    "TMPDIR": "/var/tmp",
}
# What a guest writes while it runs.
_SAYS = ("console.txt", "dmesg.txt", "pytest.txt", "bench.txt")
# How much longer than on the machine itself a test waits for what must happen.
_PATIENCE_EMULATED = "6"


def make_snapshot(into: Path) -> None:
    """Copy the checkout as it is now, its built objects too; what is edited meanwhile changes no guest.

    Raises:  CannotHave: its tests cannot be collected.
    """
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(ROOT, into, ignore=shutil.ignore_patterns(*_NOT_IN_SNAPSHOT))
    (into / ".venv").mkdir()
    # Compiling a module costs more than importing it, and guests may not keep what they compile. pytest has code of
    # its own of each test module.
    environ = os.environ | _ENVIRONMENT | {"PYTHONPATH": str(into), "PYTHONDONTWRITEBYTECODE": ""}
    for arguments in (
        ("compileall", "-q", "koordebpf", "tests"),
        ("pytest", *_PYTEST, "--collect-only", "-q", "tests/host"),
    ):
        command = [sys.executable, "-m", *arguments]
        done = subprocess.run(command, cwd=into, env=environ, capture_output=True, text=True, check=False)
    # A file that no host test imports may be half written: only what the last one says counts.
    if done.returncode:
        raise CannotHave(f"{shlex.join(command[1:])} in a copy of the checkout:\n{done.stdout}{done.stderr}")


def has_kvm() -> bool:
    """Tell whether guests run at the CPU's own speed here. /dev/kvm alone does not say: it may be a paravirtual one."""
    flags = {"vmx", "svm"} & set(Path("/proc/cpuinfo").read_text().split())
    return bool(flags) and os.access("/dev/kvm", os.R_OK | os.W_OK)


def boot(variant: Variant, kernel: Kernel, snapshot: Path, results: Path, minutes: float, say: Say) -> float:
    """Boot, run, power off; return the seconds that it had a CPU, however busy this machine is.

    What happened stands in `results`; a machine that does not end in time is ended.

    Raises:  CannotHave: there is no QEMU, no virtme-ng.
    """
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    is_fast = has_kvm()
    environment = _ENVIRONMENT | {"KOORDEBPF_PATIENCE": "1" if is_fast else _PATIENCE_EMULATED} | variant.environment
    environment["PYTHONPATH"] = str(snapshot)
    plan = Plan((*_PYTEST, *variant.tests), environment, variant.kind, variant.bench)
    (results / "plan.json").write_bytes(msgspec.json.encode(plan))
    scratch = results / "scratch.img"
    _make_scratch(scratch)
    monitor = Monitor(results)
    options = f"{_scratch_options(scratch, variant.disk_mib_s)} {monitor.options}"
    command = _command(variant, kernel, snapshot, results, options, is_fast)
    (results / "command.txt").write_text(shlex.join(command) + "\n")
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"}
    say(f"booting {kernel.release}{'' if is_fast else ', emulated'}")
    started_s = time.monotonic()
    with (results / "console.txt").open("wb") as console:
        process = subprocess.Popen(
            command, env=environ, cwd="/", stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT
        )
        try:
            cpu_s, is_over = _wait(process, started_s, minutes * 60, results, say)
            if not is_over:
                write_emulator_stacks(process.pid, results / "qemu.txt")
                monitor.ask_for_stacks()
        finally:
            if process.poll() is None:
                end_children(process.pid)
                process.wait()
            scratch.unlink()
            monitor.close()
    say(f"ended after {time.monotonic() - started_s:.0f} s, {cpu_s:.0f} s of them on a CPU")
    return cpu_s


def _make_scratch(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(_SCRATCH_MIB << 20)
    # The guest's kernel would initialize the rest beside the tests.
    lazy = "lazy_itable_init=0,lazy_journal_init=0"
    subprocess.run(["/sbin/mkfs.ext4", "-q", "-F", "-E", lazy, path], check=True)


def _scratch_options(scratch: Path, mib_s: int) -> str:
    most = f",throttling.bps-total={mib_s << 20}" if mib_s else ""
    return f"-drive file={scratch},if=virtio,format=raw,cache=unsafe{most}"


def _command(variant: Variant, kernel: Kernel, snapshot: Path, results: Path, options: str, is_fast: bool) -> list[str]:
    vng = Path(sys.executable).parent / "vng"
    if not vng.exists():
        raise CannotHave("virtme-ng is not in .venv; .ci/setup vm installs it")
    # A second way to the host's files: the first is mounted without a cache.
    qemu = (
        "-fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"
        f" -device virtio-9p-pci,fsdev=host,mount_tag=host {options}"
    )
    # virtme-ng adds six of them, and QEMU looks at a file for each of a port's queues whenever it wakes: 384 in all.
    qemu += " -global virtio-serial-pci.max_ports=2"
    if not is_fast:
        # Without it QEMU's CPU, which is an AMD, does not say that a core has two threads.
        qemu += f" -cpu {EMULATED_CPU}{',+topoext' if variant.threads > 1 else ''}"
        if variant.has_one_thread or variant.has_instruction_clock:
            qemu += f" {ONE_THREAD}"
        if variant.has_instruction_clock:
            qemu += f" {INSTRUCTION_CLOCK}"
    if variant.numa_nodes > 1:
        # A node has sockets of its own, or the kernel warns of its caches.
        qemu += f" -smp {variant.cpus},sockets={variant.numa_nodes}"
    if variant.threads > 1:
        qemu += f" -smp {variant.cpus},threads={variant.threads}"
    each = variant.cpus // variant.numa_nodes
    sizes_mib = variant.numa_mib or (variant.memory_mib // variant.numa_nodes,) * variant.numa_nodes
    numa = [f"--numa={mib}M,cpus={at * each}-{(at + 1) * each - 1}" for at, mib in enumerate(sizes_mib)]
    settings = [f"HEADERS={kernel.headers}"] if variant.needs_headers else []
    settings += [f"SWAP_MIB={variant.swap_mib}"] if variant.swap_mib else []
    inside = ["env", *settings, "sh", snapshot / "tests/vm/guest.sh", snapshot, results, Path(sys.prefix).resolve()]
    return [
        "nice", "-n", "10", str(vng), "-v", "--force-9p", *(() if is_fast else ("--disable-kvm",)),
        "-r", str(kernel.image), "--rwdir", str(results),
        "--cpus", str(variant.cpus), "--memory", f"{variant.memory_mib}M", *(numa if variant.numa_nodes > 1 else ()),
        *(f"--append={option}" for option in (*_BOOT_OPTIONS, *variant.boot_options)),
        f"--qemu-opts={qemu}", "--exec", shlex.join(map(str, inside)),
    ]  # fmt: skip


def _wait(
    process: subprocess.Popen[bytes], started_s: float, at_most_s: float, results: Path, say: Say
) -> tuple[float, bool]:
    # Returns the CPU time of QEMU, and whether it ended.
    said, heard, cpu_s, heard_bytes = started_s, started_s, 0.0, -1
    while (now := time.monotonic()) - started_s < at_most_s and now - heard < _SILENT_S:
        try:
            process.wait(1)
            return cpu_s, True
        except subprocess.TimeoutExpired:
            cpu_s = max(cpu_s, _cpu_s(process.pid))
            if (grown := _heard_bytes(results)) != heard_bytes:
                heard, heard_bytes = now, grown
            if now - said >= _SAY_EACH_S:
                said = now
                say(f"{now - started_s:.0f} s: {_progress(results)}")
    say(f"does not end: killed after {now - started_s:.0f} s, silent for {now - heard:.0f} s, in {_progress(results)}")
    return cpu_s, False


def _heard_bytes(results: Path) -> int:
    return sum(path.stat().st_size for name in _SAYS if (path := results / name).exists())


def end_children(pid: int | None = None) -> None:
    """Kill what a process has started, and what that has; the own process's if none is named."""
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def _cpu_s(pid: int) -> float:
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(child.cpu_times()[:2])
    return total


def _progress(results: Path) -> str:
    # pytest's last whole line, without the colours and the share: the test that ran last.
    if (results / "bench.txt").exists():
        return "benchmarks"
    try:
        lines = (results / "pytest.txt").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return "not up yet"
    return next((line.strip() for line in reversed(lines) if "::" in line), "tests are being collected")
