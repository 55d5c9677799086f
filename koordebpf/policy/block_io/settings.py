"""What an operator may set of block IO: section `strategies.blockIO`."""

from __future__ import annotations

from typing import Literal

import msgspec

Share = Literal["divide", "each", "directory"]


class BlockIOSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of BlkIOReconcile.

    `v1_share`    how a limit of a directory is kept on cgroup v1, whose kernel knows no limit of a tree: divide gives
                  each container of it an equal part, each gives every container the whole limit, directory writes the
                  directory alone, as koordlet. Why divide: all together stay below the limit; directory has no effect
                  on a mainline kernel.
    `kubelet_dir` kubelet's --root-dir, below which the volumes of pods are mounted. Why: kubelet's default.
    """

    v1_share: Share = "divide"
    kubelet_dir: str = "/var/lib/kubelet"
