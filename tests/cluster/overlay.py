"""Overlay file systems: whether images can be mounted here, or have to be copied."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path


def can_overlay(folder: Path) -> bool:
    """Tell whether an overlay can keep its changes in a folder: not in one that is on an overlay itself."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        lower, upper, work, merged = (Path(name, each) for each in ("lower", "upper", "work", "merged"))
        for each in (lower, upper, work, merged):
            each.mkdir()
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        command = ["unshare", "--mount", "mount", "-t", "overlay", "-o", options, "overlay", str(merged)]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
