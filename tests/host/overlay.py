"""A copy of the machine's own root that is thrown away: what a script changes there is to be seen, and nowhere else."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.conftest import OTHER_MACHINE

ROOT = Path(__file__).parents[2]
# In a mount namespace of its own, which lasts as long as the copy: the kernel names a file that is swapped to by the
# mounts that it was reached through. /run is empty: without systemd there, no script reaches the machine's services.
_HOLD = """
set -e
folder=$1 checkout=$2 root=$1/root
mount --make-rprivate /
mount -t overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" overlay "$root"
for tree in proc sys dev var/tmp; do mount --rbind "/$tree" "$root/$tree"; done
# Only the root file system is below: a checkout that is mounted is brought along.
[ -e "$root$checkout/.venv/bin/python" ] || mount --rbind "$checkout" "$root$checkout"
mount -t tmpfs none "$root/run"
mkdir "$root/run/lock"
exec chroot "$root" sh -c 'echo ready; exec sleep infinity'
"""
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}


class RootCopy:
    """An overlay on the machine's root; `changes()` is what differs from it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("root", "upper", "work"):
            (folder / name).mkdir()
        # setpriv: it ends with the tests, however these end.
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "sh", "-c", _HOLD, "sh", folder, ROOT]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self._holder.stdout is not None
        said = self._holder.stdout.readline()
        assert said == "ready\n", said + self._holder.communicate()[0]

    def run(self, *command: str | Path, environment: Mapping[str, str] | None = None) -> str:
        """Run a command in it; return what it said. Raises AssertionError: it ended with anything but 0."""
        enter = ("nsenter", f"--target={self._holder.pid}", "--mount", "--root", "--wd")
        done = subprocess.run(
            [*enter, *command], env={**_ENVIRONMENT, **(environment or {})},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def read(self, path: str) -> str:
        """Return a file that was changed."""
        return (self._folder / "upper" / path.lstrip("/")).read_text()

    def changes(self) -> dict[str, tuple[int, int, str]]:
        """Return mode, time of change and content of everything that is not as the machine has it."""
        found = {}
        for path in sorted((self._folder / "upper").rglob("*")):
            stat = path.lstat()
            if path.is_symlink():
                content = str(path.readlink())
            else:
                content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            # A file that was created and removed leaves its directory with another mtime.
            changed_ns = 0 if path.is_dir() else stat.st_mtime_ns
            found[str(path.relative_to(self._folder / "upper"))] = (stat.st_mode, changed_ns, content)
        return found

    def swaps(self) -> list[str]:
        """Return what the machine swaps to, by the paths that it has in here."""
        return [line.split()[0] for line in self.run("cat", "/proc/swaps").splitlines()[1:]]

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@pytest.fixture
def root_copy(tmp_path: Path) -> Iterator[RootCopy]:
    """Give a copy of the machine's root."""
    with RootCopy(tmp_path) as copy:
        yield copy


@pytest.fixture
def own_swap(root_copy: RootCopy) -> Iterator[str]:
    """Let a test give this machine swap, and take it away again: only a machine that was booted for tests.

    Gives the file to swap to.
    """
    if "KOORDEBPF_OWN_MACHINE" not in os.environ:
        pytest.skip(f"{OTHER_MACHINE}its swap is not the tests' to change")
    root_copy.run("swapoff", "-a")  # what it was booted with
    assert root_copy.swaps() == []
    # The tests run in a chroot that has the host's modules.
    subprocess.run(["chroot", "/proc/1/root", "modprobe", "zram"], check=True)
    file = "/var/tmp/swapfile"
    yield file
    root_copy.run("swapoff", "-a")
    Path(file).unlink(missing_ok=True)
