"""Disks, partitions, LVM and mounts by small trees; and this machine's, beside what lsblk(8) and findmnt(8) say."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordebpf.errors import SupportError
from koordebpf.kernel.host.block_devices import split_mapped, whole_disks

Make = Callable[[Any], Path]


def machine(tree: Make, mounts: str = "") -> Path:
    root = tree(
        {
            "devices": {
                "sda": {"dev": "8:0\n", "sda1": {"dev": "8:1\n", "partition": "1\n"}},
                "nvme0n1": {"dev": "259:0\n", "nvme0n1p2": {"dev": "259:2\n", "partition": "2\n"}},
                "loop0/dev": "7:0\n",
                "cciss!c0d0/dev": "104:0\n",
                "dm-0": {"dev": "253:0\n", "dm/name": "vg--data-home\n", "dm/uuid": "LVM-abc\n"},
                "dm-1": {"dev": "253:1\n", "dm/name": "wide-a\n", "dm/uuid": "LVM-def\n"},
                "dm-2": {"dev": "253:2\n", "dm/name": "secret\n", "dm/uuid": "CRYPT-LUKS2-x\n"},
                "dm-3": {"dev": "253:3\n", "dm/name": "paths", "dm/uuid": "mpath-360\n"},
                "dm-4": {"dev": "253:4\n", "dm/name": "paths1", "dm/uuid": "part1-mpath-360\n"},
                "md0": {"dev": "9:0\n"},
                "gone": {},
            },
            "mountinfo": mounts,
        }
    )
    slaves = {"dm-0": ("sda1",), "dm-1": ("sda1", "nvme0n1p2"), "dm-2": ("sda1",), "dm-3": ("sda",), "dm-4": ("dm-3",)}
    slaves["md0"] = ("dm-2", "nvme0n1")
    for name, below in slaves.items():
        for each in below:
            (root / "devices" / name / "slaves" / each).mkdir(parents=True)
    block = root / "class/block"
    block.mkdir(parents=True)
    for path in [*(root / "devices").iterdir(), root / "devices/sda/sda1", root / "devices/nvme0n1/nvme0n1p2"]:
        (block / path.name).symlink_to(path)
    return root


def test_mounts_are_found_by_number_or_by_source_and_the_topmost_counts(tree: Make) -> None:
    mounts = (
        "1 0 253:0 / / rw - ext4 /dev/root rw\n"
        "2 1 0:40 / /data\\040two rw shared:1 - btrfs /dev/sda1 rw\n"
        "3 1 0:5 / /proc rw - proc proc rw\n"
        "4 1 8:1 / /over rw - ext4 /dev/sda1 rw\n"
        "5 4 0:50 / /over rw - tmpfs tmpfs rw\n"
        "garbage\n"
    )
    root = machine(tree, mounts)
    found = whole_disks(root, [root / "mountinfo"]).mounts
    assert found == {"/": ("8:0",), "/data two": ("8:0",)}


@pytest.mark.parametrize(
    ("path", "disks"),
    [
        ("/dev/sda", ("8:0",)),
        ("/dev/sda1", ("8:0",)),
        ("/dev/loop0", ("7:0",)),  # a queue of its own
        ("/dev/mapper/vg--data-home", ("8:0",)),
        ("/dev/vg-data/home", ("8:0",)),
        ("/dev/mapper/wide-a", ("259:0", "8:0")),
        ("/dev/mapper/secret", ("8:0",)),  # dm-crypt
        ("/dev/md0", ("259:0", "8:0")),  # of a crypted partition and a disk
        ("/dev/mapper/paths", ("253:3",)),  # requests pass to the paths below: none of them limits a bio
        ("/dev/mapper/paths1", ("253:3",)),
    ],
)
def test_the_whole_disks_that_a_device_lies_on(tree: Make, path: str, disks: tuple[str, ...]) -> None:
    root = machine(tree)
    assert whole_disks(root, [root / "mountinfo"]).devices[path] == disks


def test_the_disks_of_volume_groups_and_of_mounts_below_a_directory(tree: Make) -> None:
    mounts = (
        "1 0 253:0 / / rw - ext4 /dev/root rw\n"
        "2 1 253:2 / /pods/u/volumes/csi/pvc-1/mount rw - ext4 /dev/mapper/secret rw\n"
        "3 1 7:0 / /pods/u/volumes/csi/pvc-2/mount rw - ext4 /dev/loop0 rw\n"
        "4 1 0:33 / /pods/u/volumes/nfs/pvc-3 rw - nfs server:/x rw\n"
        "5 1 8:0 / /podsother/x rw - ext4 /dev/sda rw\n"
    )
    root = machine(tree, mounts)
    found = whole_disks(root, [root / "mountinfo"], "/pods/")
    assert found.groups == {"vg-data": ("8:0",), "wide": ("259:0", "8:0")}
    volumes = "/pods/u/volumes/csi"
    assert found.mounts == {f"{volumes}/pvc-1/mount": ("8:0",), f"{volumes}/pvc-2/mount": ("7:0",)}


def test_devices_that_lie_on_each_other_end(tree: Make) -> None:
    root = machine(tree)
    (root / "devices/sda/slaves/dm-0").mkdir(parents=True)
    assert whole_disks(root, [root / "mountinfo"]).devices["/dev/mapper/vg--data-home"] == ()


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("vg-lv", ("vg", "lv")),
        ("v--g-l--v", ("v-g", "l-v")),
        ("a----b-c", ("a--b", "c")),
        ("vg-lv-real", ("vg", "lv-real")),
        ("alone", ("alone", "")),
    ],
)
def test_a_dash_within_a_name_is_doubled(name: str, parts: tuple[str, str]) -> None:
    assert split_mapped(name) == parts


def test_without_sysfs_or_procfs_it_says_so(tree: Make, tmp_path: Path) -> None:
    with pytest.raises(SupportError, match="Mount sysfs"):
        whole_disks(tmp_path / "none", [tmp_path / "none"])
    with pytest.raises(SupportError, match="Mount procfs"):
        whole_disks(machine(tree), [tmp_path / "none"])


def printed(*command: str) -> list[list[str]]:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_this_machines_whole_disks_are_those_of_lsblk() -> None:
    found = whole_disks().devices
    rows = printed("lsblk", "-rn", "-o", "PATH,TYPE,MAJ:MIN,PKNAME")
    disks = {path.rpartition("/")[2]: number for path, kind, number, *_ in rows if kind in ("disk", "loop")}
    parts = {path: (disks[below[0]],) for path, kind, _, *below in rows if kind == "part"}
    assert disks
    assert {path: found[path] for path in parts} == parts
    assert all(found[f"/dev/{name}"] == (number,) for name, number in disks.items())


def test_this_machines_mounts_are_those_of_findmnt() -> None:
    disks = {number for kind, number in printed("lsblk", "-rn", "-o", "TYPE,MAJ:MIN") if kind == "disk"}
    devices = dict(printed("findmnt", "-rn", "-o", "TARGET,MAJ:MIN"))
    expected = {target: (number,) for target, number in devices.items() if number in disks}
    # What lies on a partition or on several disks has another number than these.
    others = {target for target, number in devices.items() if number not in disks}
    assert {target: on for target, on in whole_disks().mounts.items() if target not in others} == expected
