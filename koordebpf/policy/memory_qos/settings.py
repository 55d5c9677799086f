"""What an operator may set of memory QoS: section `strategies.memoryQos`."""

from __future__ import annotations

from typing import Annotated

import msgspec


class MemoryQosSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of feature gate CgroupReconcile.

    `soft_limits`  on cgroup v1 pods get memory.soft_limit_in_bytes in place of memory.low, which is not there. Why off:
                   a pod without protection is then reclaimed from before any other cgroup, and the kernel calls the
                   file deprecated.
    `most_priority`  a pod's annotation may not ask for more memory.priority (Anolis) than this, or its class has. Why
                   0: the kernel kills pods of lower priority in place of those that asked for more; koordlet takes 12.
    `weaker_annotations`  a pod's annotation may limit it less than its class does, with policy none not at all, and
                   protect more of its batch and mid memory. Why off: the limits of a class are there for other pods;
                   koordlet takes any value.
    """

    soft_limits: bool = False
    most_priority: Annotated[int, msgspec.Meta(ge=0, le=12)] = 0
    weaker_annotations: bool = False
