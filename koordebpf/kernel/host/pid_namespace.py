"""Which processes this one can see: those of its own pid namespace and of the ones below it."""

from __future__ import annotations

from pathlib import Path

_PROC_PID_INIT_INO = 0xEFFFFFFC  # include/linux/proc_ns.h
_PROC = Path("/proc")


def is_initial(proc: Path = _PROC) -> bool:
    """Tell whether this is the machine's own pid namespace; also where that cannot be read."""
    try:
        return (proc / "self/ns/pid").stat().st_ino == _PROC_PID_INIT_INO
    except OSError:
        return True


def is_of_a_pod(proc: Path = _PROC) -> bool:
    """Tell whether the namespace's first process is a container of Kubernetes, which sees no other pod's processes.

    A nested node, as kind's, has a namespace of its own too, and its pods' are below that one.
    """
    try:
        return "kubepods" in (proc / "1/cgroup").read_text()
    except OSError:
        return True
