"""Memory that nothing touched for a while, where the kernel has kidled: kernels of Alibaba's and Anolis, on cgroup v1.

Source:  Anolis cloud-kernel Documentation/vm/kidled.rst; koordinator pkg/koordlet/util/system/kidled_util.go.
"""

from __future__ import annotations

from pathlib import Path

from koordebpf.errors import CgroupGone, SupportError
from koordebpf.kernel.io.table import field, is_number, nested, odd_row, report_odd

KIDLED = Path("/sys/kernel/mm/kidled")
FILE = "memory.idle_page_stats"
# Clean and dirty pages of files, evictable and not, that were idle at each scan since.
_ROWS = frozenset({b"cfei", b"dfei", b"cfui", b"dfui"})
_BUCKETS = 8
_FIRST_COLD = 5  # Why: koordlet's; the bucket that begins at 60 scans


def require_kidled(root: Path = KIDLED) -> None:
    """Return where the kernel looks for idle pages.

    Raises:  SupportError: it does not, or not of whole subtrees.
    """
    for name, why in (("scan_period_in_seconds", "5"), ("use_hierarchy", "1")):
        path = root / name
        try:
            text = field(path.read_bytes().strip())
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
        data = path.read_bytes()
    except OSError:
        raise CgroupGone(str(path)) from None
    found: dict[bytes, int] = {}
    odd: dict[bytes, bytes] = {}
    for name, numbers in nested(data):
        if name not in _ROWS:
            continue
        if name in found or len(numbers) != _BUCKETS or not all(map(is_number, numbers)):
            odd[name] = b" ".join((name, *numbers))
            report_odd(path, odd[name])
        else:
            found[name] = sum(map(int, numbers[_FIRST_COLD:]))
    for name in sorted(_ROWS - found.keys()):
        raise odd_row(
            path, odd.get(name, b""), f"must have a row {field(name)}: a name and {_BUCKETS} numbers of bytes"
        )
    return sum(found.values())
