"""Fakes of the kernel's files, mounted for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import OTHER_MACHINE
from tests.support.kernel_files import KernelFiles, KernelFolder


def mounted(mount_point: Path, root: KernelFolder) -> Iterator[Path]:
    """Make the folder, and yield it while it holds these files; skip on a machine without FUSE."""
    mount_point.mkdir(parents=True)
    try:
        with KernelFiles(mount_point, root):
            yield mount_point
    except OSError as error:
        pytest.skip(f"{OTHER_MACHINE}{error}")
