"""Which filesystem a path is on, by a table of mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koordebpf.kernel.proc.mounts import filesystem_of


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("36 35 {device} / /run rw,nosuid shared:12 - tmpfs tmpfs rw,size=1g", "tmpfs"),
        ("36 35 {device} / /run rw - ext4 /dev/vda rw", "ext4"),
        ("36 35 999:1 / /run rw - ext4 /dev/vda rw", None),
        ("36 35", None),
        ("36 35 {device} / /run rw -", None),
        ("", None),
    ],
)
def test_the_type_stands_behind_the_device(tmp_path: Path, line: str, expected: str | None) -> None:
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(line.format(device=f"{os.major(device)}:{os.minor(device)}") + "\n")
    assert filesystem_of(tmp_path, mounts) == expected


def test_what_is_not_there_is_not_known(tmp_path: Path) -> None:
    assert filesystem_of(tmp_path / "nothing") is None
    assert filesystem_of(tmp_path, tmp_path / "nothing") is None


def test_proc_is_proc() -> None:
    assert filesystem_of(Path("/proc")) == "proc"
