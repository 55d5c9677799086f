"""What an operator may set of the runtime hooks: section `strategies.hooks`."""

from __future__ import annotations

import msgspec


class HookSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of all hooks together; each has its own feature gate.

    `unset_quota`      a pod with CPUs of its own has no CPU quota. Why on: as in koordlet, unless it runs with
                       disable-unset-cpu-quota; a quota as well would throttle the pod on its own CPUs.
    `idle_best_effort` GroupIdentity makes best-effort pods idle (cpu.idle, since Linux 5.15): they run when no other
                       pod wants to, and have no weight of their own. Why off: koordlet has cpu.bvt_warp_ns for it, and
                       a pod that never runs keeps its locks.
    """

    unset_quota: bool = True
    idle_best_effort: bool = False
