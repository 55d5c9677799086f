"""How a pod that a plugin asks for is evicted, by its QoS level. Pure.

Source: katalyst-core pkg/agent/evictionmanager/podkiller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from koordebpf.policy.evict.candidates.disruption import Disruptions
from koordebpf.policy.evict.candidates.protection import Reason
from koordebpf.policy.evict.round import Round
from koordebpf.policy.katalyst.pods import KatalystPod
from koordebpf.policy.katalyst.requests import Wanted
from koordebpf.state.view import ExecutorName, KillerName

Killer = Literal["eviction-api-killer", "deletion-api-killer", "container-killer", "cgroup-killer"]

EXECUTORS: Mapping[Killer, KillerName] = {
    "eviction-api-killer": "api",
    "deletion-api-killer": "delete",
    "container-killer": "cri",
    "cgroup-killer": "cgroup",
}

LONGEST_STOP_S = 60  # Why: ten stops side by side, and ten evictions a minute, so that no pod keeps others waiting


class KillerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How pods that plugins ask for are evicted: Katalyst's names, and cgroup-killer.

    `default`   of levels without one, and of pods whose level cannot be read. Why null: as executor.type, whose default
                is Katalyst's eviction-api-killer. All but that one pass over PodDisruptionBudgets. deletion-api-killer
                needs the right to delete pods: deploy/components/pod-deletion.
    `shared`    of shared_cores. Why null: as default.
    `reclaimed` of reclaimed_cores. Why null: as default.
    `dedicated` of dedicated_cores. Why null: as default.
    """

    default: Killer | None = None
    shared: Killer | None = None
    reclaimed: Killer | None = None
    dedicated: Killer | None = None

    def named(self) -> dict[str, Killer]:
        """Return the killers that are named, by setting."""
        return {name: each for name in self.__struct_fields__ if (each := getattr(self, name)) is not None}

    def of(self, each: KatalystPod) -> KillerName | None:
        """Return the executor of a pod; None: as executor.type says."""
        of_level: Mapping[str | None, Killer | None] = {
            "shared_cores": self.shared,
            "reclaimed_cores": self.reclaimed,
            "dedicated_cores": self.dedicated,
        }
        killer = of_level.get(each.level) or self.default
        return EXECUTORS[killer] if killer is not None else None


def grace_s(
    wanted: Wanted, each: KatalystPod, by: KillerName | ExecutorName, hurried_s: int | None = None
) -> int | None:
    """Return the grace period to ask for; None: the executor gives the pod its own, or knows none.

    The API server knows a pod's own, the container runtime does not. A container is stopped within `LONGEST_STOP_S`,
    whatever the pod or the plugin says. `hurried_s`: what a pod that is being deleted and late has at most.
    """
    if by != "cri":
        return min((each for each in (wanted.grace_s, hurried_s) if each is not None), default=None)
    return min(each.pod.terms.grace_s if wanted.grace_s is None else wanted.grace_s, LONGEST_STOP_S)


def kept_now(
    current: Round, pods: Iterable[KatalystPod], killers: KillerSettings, *, is_soft: bool
) -> dict[str, Reason]:
    """Return why each of these pods is not evicted now, by UID; of one that may be, nothing.

    What was refused is not sent again before its time. A soft eviction honours PodDisruptionBudgets: where the API
    server is not asked, they are judged by here.

    Args:
        current: the round.
        pods: that plugins ask for, or choose from.
        killers: as set.
        is_soft: these are soft evictions.
    """
    view = current.view
    disruptions = Disruptions(view.frame.podDisruptionBudgets if is_soft else ())

    def why(each: KatalystPod) -> Reason | None:
        pod = each.pod
        by = killers.of(each) or view.frame.executor
        if (found := current.barred.get(pod.uid) or current.refused.get(pod.uid)) is not None:
            return found
        if each.level == "system_cores":
            return "system_cores", "its QoS level is system_cores"
        if pod.uid in view.killed:
            return "killed", "it was killed and has had no process since"
        if by == "cgroup" and pod.cgroup_id is None:
            return "no_cgroup", "no cgroup of it is known"
        if by != "api" and (answer := disruptions.predict(pod)) is not None and not answer.is_allowed:
            return "pdb", answer.text
        return current.allowance.over(pod.namespace, pod.terms.workload)

    return {each.pod.uid: found for each in pods if (found := why(each)) is not None}
