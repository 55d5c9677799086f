"""Writable layers of containers on real overlays, on a disk of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordebpf.strategies.katalyst.rootfs import Container, Pods, RootfsCollector, WalkLimits
from koordebpf.strategies.katalyst.values import ImageFs, RootfsMeasured
from koordebpf.units import MIB, NS_PER_S
from tests.contract.apiserver import until
from tests.support.image_disk import ImageDisk

ROOT = Path(__file__).parents[2]
SIZE_MIB = 64
# A test does not wait a minute for the next pass.
QUICK = WalkLimits(rest_ns=NS_PER_S // 10, first_rest_ns=0, urgent_rest_ns=NS_PER_S // 10, share=0.5)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ImageDisk]:
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a disk")
    with ImageDisk(tmp_path, SIZE_MIB) as disk:
        yield disk


def collector(disk: ImageDisk, pods: Pods, limits: WalkLimits = QUICK, **more: Callable[[ImageFs], bool]):
    return RootfsCollector(lambda: pods, disk.root, more.get("is_short", lambda _: False), limits=limits)


def found_by(made: RootfsCollector, since_ns: int = 0) -> tuple[ImageFs, RootfsMeasured]:
    """Wait for what a pass found that began later."""

    def find() -> tuple[ImageFs, RootfsMeasured] | None:
        image_fs, rootfs = made.measure()
        return (image_fs, rootfs) if image_fs and rootfs and rootfs.began_ns >= since_ns else None

    found = until(find, "a pass over the layers", 20)
    assert found is not None
    return found


def test_a_pod_uses_what_its_containers_have_written_and_not_their_images(disk: ImageDisk) -> None:
    first, second, other = (disk.layer(name) for name in ("c1", "c2", "c3"))
    first.write("large", 8)
    second.write("var/small", 2)
    (other.merged / "etc/hostname").unlink(missing_ok=True)
    (other.merged / "dir").mkdir()
    pods = {"pod": (Container("c1", ()), Container("c2", ())), "other": (Container("c3", ()),)}
    with collector(disk, pods) as made:
        image_fs, rootfs = found_by(made)
    use = rootfs.pods["pod"]
    assert 10 * MIB <= use.used_bytes < 11 * MIB
    assert not use.is_cut
    assert rootfs.pods["other"].used_bytes < MIB
    seen = os.statvfs(disk.root)
    assert (image_fs.path, image_fs.capacity_bytes) == (str(disk.root), seen.f_blocks * seen.f_frsize)
    assert (image_fs.inodes, image_fs.inodes_free) == (seen.f_files, seen.f_ffree)
    assert abs(image_fs.available_bytes - seen.f_bavail * seen.f_frsize) < MIB


def test_where_the_mount_has_no_container_id_the_root_of_its_process_has_the_layer(
    disk: ImageDisk, memory_cgroup: Path
) -> None:
    layer = disk.layer("c1", is_named=False)
    layer.write("large", 4)
    process = layer.start("exec sleep 600", memory_cgroup)
    try:
        until(lambda: Path(f"/proc/{process.pid}/root").readlink() == layer.merged, "it has its root", 10)
        with collector(disk, {"pod": (Container("c1", (str(memory_cgroup),)),)}) as made:
            assert found_by(made)[1].pods["pod"].used_bytes >= 4 * MIB
    finally:
        process.kill()
        process.wait()


def test_a_container_cannot_pass_another_ones_layer_off_as_its_own(
    disk: ImageDisk, memory_cgroup: Path, tmp_path: Path
) -> None:
    victim = disk.layer("victim")
    victim.write("large", 8)
    lies = tmp_path / "lies"
    lies.mkdir()
    # It mounts an overlay of its own, says that the victim's directory is its writable layer, and lives there.
    script = f"""
    echo $$ > {memory_cgroup}/cgroup.procs
    mount --make-rprivate /
    mount -t tmpfs none {lies}
    mkdir -p {lies}{victim.upper} {lies}{victim.upper.parent}/w {lies}/lower {lies}/merged
    mount --bind {lies}{victim.upper.parent} {victim.upper.parent}
    mount -t overlay -o lowerdir=/usr,upperdir={victim.upper},workdir={victim.upper.parent}/w overlay {lies}/merged
    exec chroot {lies}/merged /bin/sleep 600
    """
    process = subprocess.Popen(["unshare", "--mount", "sh", "-ec", script])
    try:
        until(lambda: str(Path(f"/proc/{process.pid}/root").readlink()).endswith("merged"), "it has its root", 10)
        assert str(victim.upper) in Path(f"/proc/{process.pid}/mountinfo").read_text()
        pods = {"liar": (Container("c2", (str(memory_cgroup),)),), "victim": (Container("victim", ()),)}
        with collector(disk, pods) as made:
            rootfs = found_by(made)[1]
        assert set(rootfs.pods) == {"victim"}
        assert rootfs.pods["victim"].used_bytes >= 8 * MIB
    finally:
        process.kill()
        process.wait()


def test_a_pod_that_is_cut_off_uses_at_least_so_much_and_the_others_are_measured(disk: ImageDisk) -> None:
    hostile, other = disk.layer("c1"), disk.layer("c2")
    for number in range(1000):
        (hostile.upper / f"f{number}\n").touch()
    other.write("large", 4)
    limits = WalkLimits(entries=500, rest_ns=0, share=0.5)
    with collector(disk, {"a": (Container("c1", ()),), "b": (Container("c2", ()),)}, limits) as made:
        rootfs = found_by(made)[1]
    assert (rootfs.pods["a"].is_cut, rootfs.pods["a"].inodes) == (True, 501)
    assert rootfs.pods["b"].is_cut is False


def test_the_bound_is_of_a_pod_however_many_containers_it_has(disk: ImageDisk) -> None:
    for name in ("c1", "c2", "c3"):
        layer = disk.layer(name)
        for number in range(300):
            (layer.upper / f"f{number}").touch()
    pods = {"a": (Container("c1", ()), Container("c2", ()), Container("c3", ()))}
    with collector(disk, pods, WalkLimits(entries=400, rest_ns=0, share=0.5)) as made:
        use = found_by(made)[1].pods["a"]
    assert use.is_cut
    assert 400 <= use.inodes <= 403  # with the directories themselves


@pytest.mark.slow
def test_those_that_a_pass_did_not_reach_are_the_first_of_the_next(disk: ImageDisk) -> None:
    for name in ("c1", "c2"):
        layer = disk.layer(name)
        for number in range(600):
            (layer.upper / f"f{number}").touch()
    pods = {"a": (Container("c1", ()),), "b": (Container("c2", ()),)}
    limits = WalkLimits(pass_ns=NS_PER_S // 100, rest_ns=0, share=0.02)
    with collector(disk, pods, limits) as made:
        first = found_by(made)[1]
        second = found_by(made, first.began_ns + 1)[1]
    assert (set(first.pods), set(second.pods)) == ({"a"}, {"b"})


@pytest.mark.slow
def test_a_shortage_begins_a_new_pass_at_once(disk: ImageDisk) -> None:
    layer = disk.layer("c1")
    limits = WalkLimits(first_rest_ns=0, urgent_rest_ns=NS_PER_S // 10)
    is_short: Callable[[ImageFs], bool] = lambda each: each.available_bytes < each.capacity_bytes // 2  # noqa: E731
    with collector(disk, {"a": (Container("c1", ()),)}, limits, is_short=is_short) as made:
        first = found_by(made)[1]
        assert first.pods["a"].used_bytes < MIB
        layer.write("large", SIZE_MIB * 6 // 10)
        written_ns = time.monotonic_ns()
        # A pass may start while the file is written.
        second = found_by(made, first.ended_ns)[1]
        while second.pods["a"].used_bytes < SIZE_MIB * 6 // 10 * MIB:
            second = found_by(made, second.ended_ns)[1]
        assert second.began_ns - written_ns < 5 * NS_PER_S


def test_a_disk_that_is_not_there_is_not_known(tmp_path: Path) -> None:
    with RootfsCollector(lambda: {"a": (Container("c1", ()),)}, tmp_path / "nothing", lambda _: False) as made:
        time.sleep(0.3)
        assert made.measure()[0] is None


@pytest.mark.slow
def test_the_walk_keeps_to_its_share_of_a_core(disk: ImageDisk) -> None:
    layer = disk.layer("c1")
    for folder in range(15):
        (layer.upper / f"d{folder}").mkdir()
        for number in range(400):
            (layer.upper / f"d{folder}/f{number}").touch()
    pods = {"a": (Container("c1", ()),)}
    for share in (0.02, 0.2):
        with collector(disk, pods, WalkLimits(share=share)) as made:
            thread = next(each for each in threading.enumerate() if each.name == "rootfs")
            rootfs = found_by(made)[1]
            cpu_ns = int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0])
            used = cpu_ns / (rootfs.ended_ns - rootfs.began_ns)
        assert rootfs.pods["a"].inodes == 6016
        print(f"share {share}: {used:.3f} of a core, {(rootfs.ended_ns - rootfs.began_ns) / 1e9:.2f} s")
        assert used < 1.5 * share


_ELSEWHERE = """
import sys, time
from pathlib import Path
from koordebpf.strategies.katalyst.rootfs import Container, RootfsCollector
assert not Path(sys.argv[1]).exists()
with RootfsCollector(lambda: {"a": (Container("c1", ()),)}, Path(sys.argv[1]), lambda _: False) as made:
    for _ in range(100):
        image_fs, rootfs = made.measure()
        if rootfs is not None:
            print(image_fs.path, rootfs.pods["a"].used_bytes)
            break
        time.sleep(0.1)
"""


@pytest.mark.slow
def test_an_agent_with_mounts_of_its_own_looks_through_those_of_pid_1(disk: ImageDisk, tmp_path: Path) -> None:
    disk.layer("c1").write("large", 4)
    # Pid 1 of a pid namespace keeps the mounts; below it the disk is hidden.
    hidden = f"mount -t tmpfs none {tmp_path}; exec {sys.executable} -c '{_ELSEWHERE}' {disk.root}"
    script = 'unshare --mount sh -ec "$1"; true'
    command = ["unshare", "--pid", "--fork", "--mount", "--mount-proc", "sh", "-c", script, "sh", hidden]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    path, used = (*done.stdout.split(), "", "")[:2]
    assert path == str(disk.root), done.stderr
    assert int(used) >= 4 * MIB
