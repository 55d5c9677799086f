"""The monitors of a pod's containers: `conmon`, which CRI-O may keep in a cgroup of its own beside each of them.

A monitor is its container's parent. It writes down how that ended, and only then does CRI-O, and through it the
kubelet, know that it has: where the monitor dies first, the pod is taken to run until its object is deleted.
"""

from __future__ import annotations

import os
import re
from itertools import islice

from koordebpf.kernel.cgroup.freezer import write_state
from koordebpf.kernel.cgroup.subtree import read_file

MONITOR = re.compile(r"(?:crio|libpod)-conmon-.*")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def killed_beside_monitors(pod_fd: int, most: int) -> bool:
    """Write cgroup.kill of every cgroup in the pod's but those of monitors, where it has at most so many.

    False: there is no monitor, or something else is as no runtime makes it; the pod is to be killed whole.
    Cost:    30 µs, and 20 µs for each cgroup.
    """
    try:
        with os.scandir(pod_fd) as entries:
            names = [entry.name for entry in islice((e for e in entries if e.is_dir(follow_symlinks=False)), most + 1)]
        others = [name for name in names if not MONITOR.fullmatch(name)]
        if len(others) == len(names) or len(names) > most or read_file(pod_fd, "cgroup.procs"):
            return False
        refused = [name for name in others if not _killed(pod_fd, name)]
        return not refused
    except OSError:
        return False


def _killed(pod_fd: int, name: str) -> bool:
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=pod_fd)
        try:
            if write_state("cgroup.kill", b"1", fd):
                return True
        finally:
            os.close(fd)
        os.stat(name, dir_fd=pod_fd)
    except FileNotFoundError:
        return True  # an emptied cgroup may be removed at any moment
    return False
