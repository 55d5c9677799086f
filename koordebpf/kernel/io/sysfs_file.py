"""Read one small file of sysfs that a machine, or a device that is unplugged, may not have."""

from __future__ import annotations

import errno
from pathlib import Path

from koordebpf.kernel.cgroup.files import parse_cpu_list
from koordebpf.kernel.io.table import field

_ABSENT = frozenset({errno.ENOENT, errno.ENODEV})  # ENODEV: it went offline while the file was open


def text_or_none(path: Path, *absent: int) -> str | None:
    """Return the file's text without blanks around it; None: there is none.

    `absent` are errnos besides ENOENT and ENODEV that mean the same.

    Raises:  OSError: any other.
    """
    try:
        return field(path.read_bytes().strip())
    except OSError as error:
        if error.errno in _ABSENT or error.errno in absent:
            return None
        raise


def cpus_or_none(path: Path, *absent: int) -> frozenset[int] | None:
    """Return the CPUs that the file lists; None: there is none.

    Raises:  KernelFileError: no list of CPUs. OSError: as `text_or_none`.
    """
    return None if (text := text_or_none(path, *absent)) is None else parse_cpu_list(text, str(path))
