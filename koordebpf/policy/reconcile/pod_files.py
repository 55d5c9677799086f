"""What strategies want of a pod's files and processes, with the field that each value comes from. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koordebpf.policy.reconcile.values import CgroupWrite


class HookWrite(msgspec.Struct, frozen=True, gc=False):
    """One file, the hook that wants it so, and in words the field that the value comes from."""

    write: CgroupWrite
    hook: str
    source: str


def paths_of(writes: Iterable[CgroupWrite]) -> int:
    """Return how many cgroups are written."""
    return len({each.path for each in writes})


class TaskSetting(msgspec.Struct, frozen=True, gc=False):
    """What the processes of a container are to have: oom_score_adj, or a core scheduling group ("" none)."""

    path: str
    pod: str
    container: str
    value: int | str
    hook: str
    source: str
