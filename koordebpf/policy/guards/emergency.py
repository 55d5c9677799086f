"""What the node does when it has lost the API server and memory runs out. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from koordebpf.policy.guards.closed import ClosedGuard
from koordebpf.units import NS_PER_S

STALE = "pods_stale"  # the guard that an emergency opens; no other one


class EmergencySettings(msgspec.Struct, frozen=True):
    """Whether to act without the API server. One that answers 401 or 403 is there: then nothing is done.

    Before, decisions continue from the last list of pods as long as that is fresh; then guards are closed.

    `action`     with nothing, guards stay closed once the list of pods is stale; with kill-be, best-effort pods that
                 are on the last list, and whose cgroup is still the same one, are killed by cgroup, in BEMemoryEvict's
                 order and within the same budgets, and no other pod is touched. The last list outlives the agent, in
                 its run directory. Needs source api and enforcement.
                 Why nothing: a kill passes over grace periods and PodDisruptionBudgets, and no API object shows it.
    `after_ns`   from this age of the list on. Why 2 min: an API server that is upgraded or changes its leader is back
                 within one, and a healthy watch proves itself each 75 s.
    `max_age_ns` up to this age of the list. Why 10 min: each pod is compared with its cgroup, so that no other one can
                 be hit, but what its owner wants by now is unknown; later a person should look.
    """

    action: Literal["nothing", "kill-be"] = "nothing"
    after_ns: int = 120 * NS_PER_S
    max_age_ns: int = 600 * NS_PER_S


def emergency(pods_age_ns: int, settings: EmergencySettings) -> str | None:
    """Return the sentence that says why best-effort pods may be killed by cgroup now; None: they may not."""
    if settings.action == "nothing" or not settings.after_ns < pods_age_ns <= settings.max_age_ns:
        return None
    return (
        f"emergency: the API server has not been heard of for {pods_age_ns / NS_PER_S:.0f} s"
        f" > {settings.after_ns / NS_PER_S:.0f} s, best-effort pods are killed by cgroup"
    )


def without_stale(guards: Iterable[ClosedGuard]) -> tuple[ClosedGuard, ...]:
    """Return the guards that stay closed in an emergency: all but the one that asks for a fresh list."""
    return tuple(guard for guard in guards if guard.code != STALE)
