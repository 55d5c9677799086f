"""The programs to compare with, as Debian ships them.

What is not installed is fetched and unpacked under build/: installing it would start its service, which kills.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.bench.report import CannotMeasure

_UNPACKED = Path(__file__).parents[2] / "build" / "alternatives"


def find_program(name: str) -> Path:
    """Return the program of the Debian package `name`.

    Raises:  CannotMeasure: it is not here and apt cannot get it.
    """
    for found in (shutil.which(name), *(_UNPACKED / name).glob(f"usr/*bin/{name}")):
        if found:
            return Path(found)
    folder = _UNPACKED / name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["apt-get", "download", name], cwd=folder, check=True, capture_output=True)
        (package,) = folder.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True, capture_output=True)
        (program,) = folder.glob(f"usr/*bin/{name}")
    except (OSError, ValueError, subprocess.CalledProcessError):
        shutil.rmtree(folder)
        raise CannotMeasure(f"{name}: not installed, and apt-get download {name} does not get it") from None
    return program


def nohang_conf(program: Path) -> Path:
    """Return the configuration that came with `program`, which is …/usr/sbin/nohang."""
    root = program.parents[2]
    for path in (root / "etc/nohang/nohang.conf", root / "usr/share/nohang/nohang.conf"):
        if path.exists():
            return path
    raise CannotMeasure("nohang: its configuration file is not where its package has it")
