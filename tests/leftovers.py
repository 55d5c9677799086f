"""What a folder's tests leave on the machine: processes, mounts, cgroups, files, BPF programs. Others work there too.

Told apart by marks that are inherited. As root every process of the folder has a group id of its own, and so
has each cgroup, directory and file that it makes. Its mounts are in a mount namespace of its own. Where there is no
root, a variable of the environment marks the processes, and nothing else can be left.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

_VARIABLE = "TESTS_OF_KOORDEBPF"  # not KOORDEBPF_…: those are settings, which the demo keeps from its agent
_GROUPS = 1 << 30  # above what any machine gives to users
# How long what is ending may take; the kernel frees programs after grace periods.
_ENDS_WITHIN_S = float(os.environ.get("KOORDEBPF_ENDS_WITHIN_S", "10"))
_FREED_WITHIN_S = 6 * _ENDS_WITHIN_S
_CLEANED_UP_WITHIN_S = 120.0  # of what was interrupted: a guest and a control plane end in some seconds
_FOR_FILES = ("/tmp", "/var/tmp", "/dev/shm")
_OF_OTHERS = {"/run/mount"}  # mount(8) makes it when it is first called
_DEEPEST = 16  # what is deeper lies in what another process made
_PYTESTS = re.compile("pytest-of-.*")  # its own folder, with what the last three runs had
_NAME_CHARACTERS = 15  # of a BPF program: BPF_OBJ_NAME_LEN and a zero
# Where neither tracefs nor debugfs is mounted, as on a machine without users of them, a test that needs one
# mounts it. The mounts are written down before and after.
_IN_OWN_MOUNTS = """
mounted() {
    while read -r _ path kind _; do
        case $kind in tracefs | debugfs) echo "$path" ;; esac
    done </proc/self/mounts
}
for path in $(mounted); do umount -l "$path" 2>/dev/null; done
before=$1 after=$2
shift 2
trap : TERM  # it waits for the tests, which clean up
cat /proc/self/mountinfo >"$before"
"$@"
code=$?
cat /proc/self/mountinfo >"$after"
exit $code
"""


class Watched:
    """Runs one folder's tests, and tells afterwards what is left of them.

    Args:
        report: where its junit.xml is; its mounts are written down beside it.
        environment: what its processes get besides.
    """

    def __init__(self, report: Path, environment: Mapping[str, str] | None = None) -> None:
        self._before, self._after = (report.with_suffix(f".mounts-{when}") for when in ("before", "after"))
        self._token = secrets.token_hex(8)
        self._given = environment or {}
        self._group = _usable_group()
        self._programs = _programs()

    @property
    def environment(self) -> Mapping[str, str]:
        """Return what marks a process that `run` does not start."""
        return {_VARIABLE: self._token}

    def run(self, command: Sequence[str], cwd: Path) -> int:
        """Run a command to its end; return its exit code."""
        self.start(command, cwd)
        try:
            return self.wait()
        except KeyboardInterrupt:  # from the terminal: it was interrupted too, and takes away what it made
            self.end()
            raise
        except SystemExit:
            self.interrupt()
            self.end()
            raise

    def start(self, command: Sequence[str], cwd: Path, output: int | None = None) -> None:
        """Start a command; what it prints goes to this descriptor, if there is one."""
        for path in (self._before, self._after):
            path.unlink(missing_ok=True)
        if _can_unshare():
            files = [str(self._before), str(self._after)]
            command = ["unshare", "--mount", "sh", "-c", _IN_OWN_MOUNTS, "sh", *files, *command]
        errors = None if output is None else subprocess.STDOUT
        environment = os.environ | self._given | self.environment
        self._process = subprocess.Popen(
            command, cwd=cwd, env=environment, group=self._group, stdout=output, stderr=errors
        )

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        return self._process.wait()

    def end(self) -> None:
        """Wait for the end of a command that was interrupted; kill all its processes if it does not come."""
        try:
            self._process.wait(_CLEANED_UP_WITHIN_S)
        except subprocess.TimeoutExpired:
            _kill((*self._processes(), self._process.pid))
            self._process.wait()

    @property
    def has_ended(self) -> bool:
        """Tell whether it has ended."""
        return self._process.poll() is not None

    def interrupt(self) -> None:
        """Interrupt pytest, which may be the shell's child."""
        pid = self._process.pid
        with contextlib.suppress(OSError):  # it has ended
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if _can_unshare() else [pid]
            for child in map(int, children):
                os.kill(child, signal.SIGINT)

    def left(self) -> list[str]:
        """Return what is still there, each by its kind and name, once what is ending has had its time.

        Processes are killed then: the next folder must not meet them.
        """
        deadline = time.monotonic() + _ENDS_WITHIN_S
        while True:
            processes = self._processes()
            found = [*processes.values(), *self._cgroups(), *self._files()]
            if not found or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        _kill(processes)
        return [*found, *self._mounts(), *self._bpf()]

    def _processes(self) -> dict[int, str]:
        found = {}
        mark = f"{_VARIABLE}={self._token}".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                status = (entry / "status").read_text()
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                is_ours = self._group is not None and f"\nGid:\t{self._group}\t" in status
                if words and (is_ours or mark in (entry / "environ").read_bytes().split(b"\0")):
                    found[int(entry.name)] = f"process {entry.name}: {words[:120]}"
        return found

    def _cgroups(self) -> Iterator[str]:
        for line in Path("/proc/self/mounts").read_text().splitlines() if self._group else ():
            _, path, kind, *_ = line.split(" ")
            if kind in ("cgroup", "cgroup2"):
                yield from (f"cgroup {directory}" for directory in self._ours_below(path, only_directories=True))

    def _files(self) -> Iterator[str]:
        if self._group is None:
            return
        for folder in _FOR_FILES:
            with contextlib.suppress(OSError):
                for entry in os.scandir(folder):
                    if self._is_ours(entry.path) and not _PYTESTS.fullmatch(entry.name):
                        yield f"file {entry.path}"
        yield from (f"file {path}" for path in self._ours_below("/run") if path not in _OF_OTHERS)

    # The topmost ones, without entering another file system. Not os.walk, which fails where others nest deeply.
    def _ours_below(self, top: str, *, only_directories: bool = False) -> Iterator[str]:
        folders, device = [top], os.lstat(top).st_dev
        while folders:
            with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
                for entry in entries:
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if only_directories and not is_directory:
                        continue
                    if self._is_ours(entry.path):
                        yield entry.path
                    elif is_directory and os.lstat(entry.path).st_dev == device and entry.path.count("/") < _DEEPEST:
                        folders.append(entry.path)

    def _is_ours(self, path: str) -> bool:
        try:
            return os.lstat(path).st_gid == self._group
        except OSError:  # it is gone
            return False

    def _mounts(self) -> list[str]:
        try:
            before, after = (path.read_text().splitlines() for path in (self._before, self._after))
        except FileNotFoundError:  # no namespace of its own, or it was killed
            return []
        known = {_mount(line) for line in before}
        return [f"mount {mount}" for line in after if (mount := _mount(line)) not in known]

    def _bpf(self) -> list[str]:
        if self._programs is None:
            return []
        from tests.support import bpf_ids

        # Others load programs too: theirs they hold, or have names that no source of ours has.
        deadline = time.monotonic() + _FREED_WITHIN_S
        while True:
            new = bpf_ids.existing().prog - self._programs
            names = bpf_ids.names_of(new - bpf_ids.programs_held()) if new else {}
            left = {number: name for number, name in names.items() if name in _names_of_ours()}
            if not left or time.monotonic() > deadline:
                return [f"BPF program {number}: {name}" for number, name in sorted(left.items())]
            time.sleep(0.5)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _usable_group() -> int | None:
    if os.geteuid() != 0:
        return None
    group = _GROUPS + secrets.randbelow(_GROUPS)
    try:
        subprocess.run(["true"], group=group, check=True)
    except (OSError, subprocess.SubprocessError):  # a user namespace that does not know it
        return None
    return group


def _can_unshare() -> bool:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


# proc_pid_mountinfo(5): where, and what after the separator.
def _mount(line: str) -> str:
    fields, _, kind = line.partition(" - ")
    return f"{fields.split(' ')[4]} ({kind.split(' ')[0]})"


def _programs() -> frozenset[int] | None:
    if os.geteuid() != 0:
        return None
    try:
        from tests.support import bpf_ids

        return bpf_ids.existing().prog
    except Exception:  # no libbpf, no BPF: no test can have left a program either
        return None


@functools.cache
def _names_of_ours() -> frozenset[str]:
    root = Path(__file__).parents[1]
    sources = [*root.glob("bpf/*.bpf.c"), *root.glob("tests/workloads/bpf/*.c")]
    words = {word for path in sources for word in re.findall(r"\w+", path.read_text())}
    return frozenset(word[:_NAME_CHARACTERS] for word in words)
