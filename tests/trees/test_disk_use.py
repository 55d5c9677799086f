"""What a directory occupies: real files, hostile ones among them, and the bounds of the walk."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.host.disk_use import DiskUse, disk_use
from koordebpf.units import MIB

ALL = 1_000_000


def use(path: Path, entries: int = ALL, pause: Callable[[], bool] = lambda: True) -> DiskUse:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    open_before = descriptors()
    try:
        return disk_use(fd, entries, pause)
    finally:
        assert descriptors() == open_before  # none is left open
        os.close(fd)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def du(path: Path) -> tuple[int, int]:
    """Return what du(1) says: allocated bytes and inodes."""
    said = [subprocess.check_output(["du", "-s", each, path], text=True) for each in ("--block-size=1", "--inodes")]
    return int(said[0].split()[0]), int(said[1].split()[0])


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    for name in ("etc", "var/log", "a\nname", "\udcff"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_bytes(b"x" * 5000)
    (tmp_path / "large").write_bytes(b"x" * MIB)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    os.link(tmp_path / "large", tmp_path / "etc/again")
    os.link(tmp_path / "large", tmp_path / "var/again")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "outside").symlink_to("/usr")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    return tmp_path


def test_it_counts_as_du_does(layer: Path) -> None:
    found = use(layer)
    assert (found.used_bytes, found.inodes) == du(layer)
    assert not found.is_cut


def test_a_file_with_several_names_counts_once_and_a_hole_not_at_all(layer: Path) -> None:
    assert MIB <= use(layer).used_bytes < 2 * MIB


def test_an_empty_directory_is_one_inode(tmp_path: Path) -> None:
    assert use(tmp_path) == DiskUse(tmp_path.stat().st_blocks * 512, 1)


def test_links_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "up").symlink_to("/")
    (tmp_path / "proc").symlink_to("/proc/self/root")
    assert use(tmp_path).inodes == 3


def test_no_more_entries_are_looked_at_than_allowed(tmp_path: Path) -> None:
    for number in range(500):
        (tmp_path / f"f{number}").touch()
    assert use(tmp_path, 100) == DiskUse(tmp_path.stat().st_blocks * 512, 101, is_cut=True)
    assert use(tmp_path, 500).is_cut is False


def test_it_ends_where_the_pause_says_so(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"f{number}").touch()
    pauses = []
    found = use(tmp_path, pause=lambda: len(pauses) < 2 or bool(pauses.append(0)))
    assert found.is_cut is False
    found = use(tmp_path, pause=lambda: False)
    assert (found.is_cut, found.inodes) == (True, 256)


def test_a_deep_tree_is_cut_off_and_holds_few_descriptors(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(2000):  # deeper than any path may be long
        os.mkdir("a" * 20, dir_fd=fd)
        below = os.open("a" * 20, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    most = [0]

    def pause() -> bool:
        most[0] = max(most[0], descriptors())
        return True

    try:
        found = use(tmp_path, pause=pause)
        assert (found.is_cut, found.inodes) == (True, 65)
        assert most[0] < 200
    finally:
        subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes another user, as root reads everything")
def test_what_may_not_be_read_is_counted_as_far_as_it_may(tmp_path: Path) -> None:
    (tmp_path / "shut/below").mkdir(parents=True)
    (tmp_path / "shut").chmod(0)
    tmp_path.chmod(0o755)
    directory = os.open(tmp_path, os.O_RDONLY)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        found = disk_use(directory, 9, lambda: True)
        os.write(writing, f"{found.inodes} {found.is_cut}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reading, 100)
    for fd in (directory, reading, writing):
        os.close(fd)
    assert said == b"2 True"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a filesystem")
    (tmp_path / "mnt").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path / "mnt"], check=True)
    (tmp_path / "mnt/large").write_bytes(b"x" * MIB)
    yield tmp_path
    subprocess.run(["umount", tmp_path / "mnt"], check=True)


def test_it_never_leaves_its_filesystem(mounted: Path) -> None:
    found = use(mounted)
    assert (found.inodes, found.is_cut) == (1, False)
    assert found.used_bytes < MIB


_CHANGES = """
import pathlib, sys
root, number = pathlib.Path(sys.argv[1]), 0
print("ready", flush=True)
while True:
    number += 1
    here, there = root / f"d{number % 40}", root / f"moved{number % 40}"
    here.rename(there)
    here.symlink_to("/usr")
    here.unlink()
    there.rename(here)
    (here / f"e/new{number % 50}").touch()
    (here / f"e/new{(number + 7) % 50}").unlink(missing_ok=True)
"""


def test_names_that_change_meanwhile_end_nothing(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"d{number}/e").mkdir(parents=True)
        (tmp_path / f"d{number}/e/file").touch()
    with subprocess.Popen([sys.executable, "-c", _CHANGES, tmp_path], stdout=subprocess.PIPE, text=True) as changes:
        try:
            assert changes.stdout is not None
            assert changes.stdout.readline() == "ready\n"
            ends = time.monotonic() + 1
            while time.monotonic() < ends:
                assert 1 <= use(tmp_path, 20_000).inodes <= 20_001
            assert changes.poll() is None
        finally:
            changes.kill()
