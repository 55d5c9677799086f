"""Memory that nothing touched for a while, where the kernel has kidled: kernels of Alibaba's and Anolis, on cgroup v1.

Source:  Anolis cloud-kernel Documentation/vm/kidled.rst; koordinator pkg/koordlet/util/system/kidled_util.go.
"""

from __future__ import annotations

from pathlib import Path

from koordebpf.errors import CgroupGone, KernelFileError, SupportError

KIDLED = Path("/sys/kernel/mm/kidled")
FILE = "memory.idle_page_stats"
# Clean and dirty pages of files, evictable and not, that were idle at each scan since.
_ROWS = frozenset({"cfei", "dfei", "cfui", "dfui"})
_BUCKETS = 8
_FIRST_COLD = 5  # Why: koordlet's; the bucket that begins at 60 scans


def require_kidled(root: Path = KIDLED) -> None:
    """Return where the kernel looks for idle pages.

    Raises:  SupportError: it does not, or not of whole subtrees.
    """
    for name, why in (("scan_period_in_seconds", "5"), ("use_hierarchy", "1")):
        path = root / name
        try:
            text = path.read_text().strip()
        except OSError as error:
            reason = f"{path}: {error.strerror}"
            raise SupportError("cold memory", reason, "Use a kernel with kidled, as Anolis' or Alibaba's") from None
        if not text.isdecimal() or not int(text):
            raise SupportError("cold memory", f"{path} is {text[:20]!r}", f"echo {why} > {path}")


def cold_bytes(directory: Path) -> int:
    """Return the file pages of a cgroup and its children that were idle for 60 scans and longer.

    Raises:  CgroupGone. KernelFileError: a row is missing or no row of numbers.
    Cost:    10 µs.
    """
    path = directory / FILE
    try:
        text = path.read_bytes().decode(errors="backslashreplace")
    except OSError:
        raise CgroupGone(str(path)) from None
    rows = {}
    for line in text.splitlines():
        name, *numbers = line.split() or [""]
        if name in _ROWS:
            if len(numbers) != _BUCKETS or not all(each.isdecimal() for each in numbers):
                raise KernelFileError(str(path), line, f"must be a name and {_BUCKETS} numbers of bytes")
            rows[name] = sum(map(int, numbers[_FIRST_COLD:]))
    if rows.keys() != _ROWS:
        raise KernelFileError(str(path), text[:80], f"must have the rows {', '.join(sorted(_ROWS))}")
    return sum(rows.values())
