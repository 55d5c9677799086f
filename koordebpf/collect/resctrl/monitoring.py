"""Reads what resctrl's monitoring says of the groups of QoS classes.

Source:  Documentation/filesystems/resctrl.rst, "Resource alloc and monitor groups"; koordinator
         pkg/koordlet/metricsadvisor/collectors/resctrl.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from koordebpf.errors import CgroupGone, KernelFileError
from koordebpf.kernel.io.text_file import read_kernel_file
from koordebpf.state.resctrl.measured import CLASSES, MonitoredDomain

_PREFIX = "mon_L3_"
_MOST_DOMAINS = 64  # Why: L3 caches of the largest machines


def read_monitoring(root: Path) -> tuple[MonitoredDomain, ...]:
    """Return what each cache says of each class that has a group; nothing where there is no monitoring.

    Cost:    50 µs a value: the kernel asks a CPU beside that cache.
    """
    found = []
    for group in CLASSES:
        try:
            names = sorted(each.name for each in (root / group / "mon_data").iterdir())
        except OSError:
            continue
        for name in [name for name in names if name.startswith(_PREFIX)][:_MOST_DOMAINS]:
            domain = name.removeprefix(_PREFIX)
            if domain.isdecimal():
                here = root / group / "mon_data" / name
                kinds = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")
                found.append(MonitoredDomain(group, int(domain), *(_bytes(here / kind) for kind in kinds)))
    return tuple(found)


# Unavailable, Unassigned and Error are no numbers: there is no counter for the group now.
def _bytes(path: Path) -> int | None:
    with contextlib.suppress(CgroupGone, OSError, KernelFileError, ValueError):
        return int(read_kernel_file(path).text)
    return None
