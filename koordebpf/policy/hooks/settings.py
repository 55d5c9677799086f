"""What an operator may set of the runtime hooks: section `strategies.hooks`."""

from __future__ import annotations

from typing import Annotated

import msgspec


class HookSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of all hooks together; each has its own feature gate.

    `unset_quota`      a pod with CPUs of its own has no CPU quota. Why on: as in koordlet, unless it runs with
                       disable-unset-cpu-quota; a quota as well would throttle the pod on its own CPUs.
    `idle_best_effort` GroupIdentity makes best-effort pods idle (cpu.idle, since Linux 5.15): they run when no other
                       pod wants to, and have no weight of their own. Why off: koordlet has cpu.bvt_warp_ns for it, and
                       a pod that never runs keeps its locks.
    `least_oom_score_adj` OOMScoreAdj refuses an annotation that asks for less. Why 0: the kernel kills processes of
                       other pods in place of those that asked for less; koordlet takes -1000.
    """

    unset_quota: bool = True
    idle_best_effort: bool = False
    least_oom_score_adj: Annotated[int, msgspec.Meta(ge=-1000, le=1000)] = 0
