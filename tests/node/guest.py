"""A virtual machine that runs a node: power on, run commands in it, save it with its memory, restore it in a second."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from qemu.qmp import ConnectError
from qemu.qmp.legacy import QEMUMonitorProtocol

from tests.cluster.processes import ServerProcess
from tests.node.network import NODE_ADDRESS, require_own_network
from tests.support.patience import patience
from tests.vm.kernels import Kernel
from tests.vm.machine import EMULATED_CPU, ONE_THREAD

KUBELET_PORT = 10250
_BOOT_OPTIONS = (
    "root=/dev/vda rw console=ttyS0 net.ifnames=0 psi=1",
    # Why: tests/vm/machine.py says it of the same options.
    "mitigations=off no_timer_check rcupdate.rcu_cpu_stall_timeout=150 watchdog_thresh=60 init_on_alloc=0 apparmor=0",
    "random.trust_cpu=1 tsc=reliable audit=0 quiet loglevel=4 systemd.show_status=0 systemd.log_level=warning",
)
# Where a saved machine's memory and disk are, and the state of its devices.
_MEMORY, _DISK, _DEVICES = "memory", "disk.qcow2", "devices"
_SETTINGS = "machine.json"
SAVED = (_MEMORY, _DISK, _DEVICES, _SETTINGS)
_BOOT_S = 240
_BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
_ANSWER_S = 120
_ASK_S = 5  # where there may be no answer
_LOAD_S = 30
_CLOCK_TRIES = 5
_CLOCK_S = 0.25


class GuestFailed(RuntimeError):
    """The guest or QEMU did not do what was asked of it."""


class Machine(msgspec.Struct, frozen=True):
    """What is different about a guest. What was saved is restored with the same."""

    cpus: int = 4  # best-effort pods keep two of them
    memory_mib: int = 2048
    boot_options: tuple[str, ...] = ()  # numa=fake=2
    cgroup_driver: str = "systemd"  # of the kubelet and of containerd, or cgroupfs
    runtime: str = "containerd"  # or crio


class Answer(msgspec.Struct, frozen=True):
    """How a command ended in the guest: its exit code, standard output and error together."""

    code: int
    text: str


class Guest:
    """One running guest. `close()` ends QEMU, without a word to the guest.

    Made by `power_on()` or `restore()`. Whatever it writes stays in `folder`.
    """

    def __init__(self, folder: Path, machine: Machine, command: Sequence[str]) -> None:
        require_own_network()
        self.folder, self.machine = folder, machine
        self.started_s = time.monotonic()
        self._qemu = ServerProcess("qemu", command, folder / "qemu.log")
        self._number = 0
        self._monitor = QEMUMonitorProtocol(str(folder / "monitor"))
        self._commands: socket.socket | None = None
        self._heard = b""
        try:
            self._connect_monitor()
        except BaseException:
            self.close()
            raise

    @classmethod
    def power_on(cls, kernel: Kernel, initrd: Path, disk: Path, folder: Path, machine: Machine) -> Guest:
        """Boot from a disk, which keeps as it is: what is written goes to a file beside the memory's."""
        with (folder / _MEMORY).open("wb") as memory:
            memory.truncate(machine.memory_mib << 20)
        _make_overlay(folder / _DISK, disk, "raw")
        command = _command(folder, machine, folder / _MEMORY, is_saved=False)
        guest = cls(folder, machine, [*command, *_boot(kernel, initrd, machine)])
        guest.wait_until_up()
        return guest

    @classmethod
    def restore(cls, kernel: Kernel, initrd: Path, saved: Path, folder: Path) -> Guest:
        """Continue a guest that was saved; any number of times, the saved one keeps as it is. Its clock is set."""
        machine = msgspec.json.decode((saved / _SETTINGS).read_bytes(), type=Machine)
        _make_overlay(folder / _DISK, saved / _DISK, "qcow2")
        command = _command(folder, machine, saved / _MEMORY, is_saved=True)
        guest = cls(folder, machine, [*command, *_boot(kernel, initrd, machine), "-incoming", "defer", "-S"])
        guest._load(saved / _DEVICES)
        guest.set_clock()
        return guest

    @staticmethod
    def saved_memory(saved: Path) -> Path:
        """Return the file of a saved guest's memory, which no restored one may change."""
        return saved / _MEMORY

    @property
    def pid(self) -> int:
        """Return QEMU's process."""
        return self._qemu.pid

    def wait_until_up(self) -> None:
        """Wait until the guest runs commands."""
        self.run("true", _BOOT_S)

    def run(self, command: str, timeout_s: float = _ANSWER_S, *, given: bytes = b"") -> Answer:
        """Run a shell command as root, with `given` as its standard input; an exit code other than 0 is an answer.

        Raises:  GuestFailed: no answer in time, or QEMU has ended.
        """
        self._number += 1
        request = {"id": self._number, "command": command, "input": base64.b64encode(given).decode()}
        deadline = time.monotonic() + patience(timeout_s)
        self._way().settimeout(patience(timeout_s))
        self._way().sendall(json.dumps(request).encode() + b"\n")
        while True:
            answer = self._next_answer(deadline, command)
            if answer["id"] == self._number:  # an older one came too late
                text = base64.b64decode(answer["output"]).decode(errors="replace")
                return Answer(int(answer["code"]), text)

    def check(self, command: str, timeout_s: float = _ANSWER_S, *, given: bytes = b"") -> str:
        """Run a command that has to succeed; return what it printed.

        Raises:  GuestFailed: it did not.
        """
        answer = self.run(command, timeout_s, given=given)
        if answer.code:
            raise GuestFailed(f"{command} ended with {answer.code} in the guest:\n{answer.text}")
        return answer.text

    def write(self, path: str, content: bytes, mode: str = "600") -> None:
        """Write a file in the guest."""
        self.check(f"mkdir -p $(dirname {path}) && cat >{path} && chmod {mode} {path}", given=content)

    def set_clock(self) -> None:
        """Give the guest this machine's time.

        Raises:  GuestFailed: it differs all the same.
        """
        offset_s = self.clock_offset_s()
        for _ in range(_CLOCK_TRIES):
            if abs(offset_s) < _CLOCK_S:
                return
            self.check(f"date --set='{-offset_s:+.3f} seconds' >/dev/null")
            offset_s = self.clock_offset_s()
        raise GuestFailed(f"the guest's clock is {offset_s:+.3f} s from this machine's")

    def clock_offset_s(self) -> float:
        """Return how far the guest's clock is ahead of this machine's, by the fastest of a few samples."""
        samples = []
        for _ in range(_CLOCK_TRIES):
            before_s = time.time()
            theirs_s = float(self.check("date +%s.%N"))
            after_s = time.time()
            samples.append((after_s - before_s, theirs_s - (before_s + after_s) / 2))
        return min(samples)[1]

    def uptime_s(self) -> float:
        """Return the guest's CLOCK_MONOTONIC, to 10 ms: it is never suspended."""
        return float(self.check("cut -d' ' -f1 /proc/uptime"))

    def reboot(self, command: str = "systemctl reboot") -> None:
        """Boot it again; return when it runs commands and its clock is set. What was in its memory is lost.

        Raises:  GuestFailed: it does not come back.
        """
        before = self.check(_BOOT_ID)
        with contextlib.suppress(GuestFailed):  # it may end before it answers
            self.run(command, _ASK_S)
        deadline = time.monotonic() + patience(_BOOT_S)
        while True:
            try:
                if self.run(_BOOT_ID, _ASK_S).text != before:
                    return self.set_clock()
            except GuestFailed:
                if self._qemu.process.poll() is not None or time.monotonic() > deadline:
                    raise

    def pause(self) -> None:
        """Stop its CPUs."""
        self._monitor.cmd("stop")

    def resume(self) -> None:
        """Let its CPUs run again; its clock stood meanwhile."""
        self._monitor.cmd("cont")

    def save(self) -> None:
        """Pause the guest, write its devices beside its memory and disk, end QEMU: `restore` continues it from there.

        What is free by then takes no room. A restored guest does not report free pages any more: QEMU would make holes
        of them in the saved file, even where it maps that one privately (QEMU 7.2, ram_block_discard_range).

        Raises:  GuestFailed: QEMU could not write them.
        """
        self.check("sync && fstrim / && modprobe -r virtio_balloon")
        self._monitor.cmd("stop")
        self._migrate(f"exec:cat >'{self.folder / _DEVICES}'")
        self._monitor.cmd("quit")
        self._qemu.process.wait(patience(20))
        self.close()
        (self.folder / _SETTINGS).write_bytes(msgspec.json.encode(self.machine))

    def close(self) -> None:
        """End it; twice is harmless."""
        if self._commands is not None:
            self._commands.close()
            self._commands = None
        with contextlib.suppress(EOFError, OSError):  # QEMU may have ended
            self._monitor.close()
        self._qemu.stop()

    def _load(self, devices: Path) -> None:
        self._allow_shared_memory()
        self._monitor.cmd("migrate-incoming", uri=f"exec:cat '{devices}'")
        self._wait_for_migration()
        self._monitor.cmd("cont")

    def _migrate(self, uri: str) -> None:
        self._allow_shared_memory()
        self._monitor.cmd("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
        self._monitor.cmd("migrate", uri=uri)
        self._wait_for_migration()

    # The memory is a file already, and keeps its place.
    def _allow_shared_memory(self) -> None:
        wanted = [{"capability": "x-ignore-shared", "state": True}]
        self._monitor.cmd("migrate-set-capabilities", capabilities=wanted)

    def _wait_for_migration(self) -> None:
        deadline = time.monotonic() + patience(_LOAD_S)
        while (state := dict(self._monitor.cmd("query-migrate"))).get("status") != "completed":
            if state.get("status") == "failed" or time.monotonic() > deadline:
                raise GuestFailed(f"QEMU says of the saved state: {state}\n{self._qemu.last_words()}")
            time.sleep(0.02)

    def _connect_monitor(self) -> None:
        deadline = time.monotonic() + patience(20)
        while not (self.folder / "monitor").exists():
            self._check_time(deadline, "QEMU has no monitor")
            time.sleep(0.02)
        while True:
            try:
                self._monitor.connect()
            except ConnectError:  # the socket has its name before QEMU listens
                self._check_time(deadline, "QEMU's monitor does not listen")
                time.sleep(0.02)
            else:
                return

    def _way(self) -> socket.socket:
        if self._commands is None:
            self._commands = socket.socket(socket.AF_UNIX)
            self._commands.connect(str(self.folder / "commands"))
        return self._commands

    def _next_answer(self, deadline: float, command: str) -> dict[str, object]:
        way = self._way()
        way.settimeout(0.5)
        while b"\n" not in self._heard:
            self._check_time(deadline, f"no answer to: {command}")
            try:
                part = way.recv(1 << 16)
            except TimeoutError:
                continue
            if not part:
                raise GuestFailed(f"QEMU is gone: {self._qemu.last_words()}")
            self._heard += part
        line, _, self._heard = self._heard.partition(b"\n")
        answer: dict[str, object] = json.loads(line)
        return answer

    def _check_time(self, deadline: float, what: str) -> None:
        if self._qemu.process.poll() is not None:
            raise GuestFailed(f"QEMU ended: {self._qemu.last_words()}")
        if time.monotonic() > deadline:
            console = self.folder / "console.txt"
            said = console.read_text(errors="replace")[-2000:] if console.exists() else ""
            raise GuestFailed(f"{what}; the guest's console:\n{said}")


def _make_overlay(path: Path, base: Path, kind: str) -> None:
    # Relative, so that both may be moved together.
    backing = os.path.relpath(base, path.parent)
    command = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", backing, "-F", kind, str(path)]
    subprocess.run(command, check=True, capture_output=True)


def _boot(kernel: Kernel, initrd: Path, machine: Machine) -> list[str]:
    options = " ".join((*_BOOT_OPTIONS, *machine.boot_options))
    return ["-kernel", str(kernel.image), "-initrd", str(initrd), "-append", options]


def _command(folder: Path, machine: Machine, memory: Path, *, is_saved: bool) -> list[str]:
    size = f"{machine.memory_mib}M"
    backend = f"memory-backend-file,id=ram,size={size},mem-path={memory},share={'off' if is_saved else 'on'}"
    return [
        "qemu-system-x86_64", *ONE_THREAD.split(), "-cpu", EMULATED_CPU,
        "-machine", "pc,memory-backend=ram,usb=off,vmport=off,smm=off", "-smp", str(machine.cpus), "-m", size,
        "-object", backend,
        "-nodefaults", "-no-user-config", "-display", "none", "-rtc", "base=utc,clock=host",
        "-chardev", f"file,id=console,path={folder}/console.txt", "-serial", "chardev:console",
        "-drive", f"file={folder / _DISK},if=none,id=disk,format=qcow2,cache=unsafe,discard=unmap",
        "-device", "virtio-blk-pci,drive=disk",
        "-netdev", f"user,id=net,hostfwd=tcp:{NODE_ADDRESS}:{KUBELET_PORT}-:{KUBELET_PORT}",
        "-device", "virtio-net-pci,netdev=net,romfile=",
        "-device", "virtio-serial-pci",
        "-chardev", f"socket,id=commands,path={folder}/commands,server=on,wait=off",
        "-device", "virtserialport,chardev=commands,name=koordebpf.commands",
        "-device", "virtio-rng-pci", "-device", f"virtio-balloon-pci,free-page-reporting={'off' if is_saved else 'on'}",
        "-qmp", f"unix:{folder}/monitor,server=on,wait=off",
    ]  # fmt: skip
