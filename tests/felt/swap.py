"""Swap for the time of a run: in compressed memory, or in a file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from koordebpf.units import MIB
from tests.bench.report import CannotMeasure

SWAPS = ("none", "zram", "file")
_MIB = 2048  # as much as the node has memory
_ZRAM = Path("/sys/class/zram-control")


@contextmanager
def swap(kind: str) -> Iterator[None]:
    """Have 2 GiB of swap on the machine: none, in compressed memory (zram), or in a file of /var/tmp.

    Raises:  CannotMeasure: the kernel has no zram or no swap, or refuses it.
    """
    if kind == "none":
        yield
        return
    with _compressed() if kind == "zram" else _file() as place:
        _run("mkswap", place)
        _run("swapon", place)
        try:
            yield
        finally:
            _run("swapoff", place)


@contextmanager
def _compressed() -> Iterator[str]:
    # The kernel of a guest finds no modules where the tests run in a chroot.
    subprocess.run(["chroot", "/proc/1/root", "modprobe", "zram"], capture_output=True, check=False)
    try:
        number = (_ZRAM / "hot_add").read_text().strip()
    except OSError as error:
        raise CannotMeasure(f"needs zram: {error}") from None
    try:
        Path(f"/sys/block/zram{number}/disksize").write_text(str(_MIB * MIB))
        yield f"/dev/zram{number}"
    finally:
        (_ZRAM / "hot_remove").write_text(number)


@contextmanager
def _file() -> Iterator[str]:
    path = Path(f"/var/tmp/koordebpf-felt-{os.getpid()}.swap")
    try:
        path.touch(0o600)
        _run("fallocate", "--length", f"{_MIB}MiB", str(path))
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


def _run(*command: str) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise CannotMeasure(f"needs {command[0]}") from None
    except subprocess.CalledProcessError as error:
        raise CannotMeasure(f"{' '.join(command)}: {error.stderr.strip()}") from None
