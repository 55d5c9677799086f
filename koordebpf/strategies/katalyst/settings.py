"""What an operator may set of Katalyst's eviction manager: section `eviction.katalyst`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec

from koordebpf.policy.evict.disruption import Disruptions
from koordebpf.policy.evict.exemptions import Reason
from koordebpf.policy.evict.round import Round
from koordebpf.slo.katalyst_access import AccessSettings
from koordebpf.state.view import ExecutorName, KillerName
from koordebpf.strategies.katalyst.inner import InnerSettings
from koordebpf.strategies.katalyst.plugin import KatalystPod, QosSelectors, SkipSettings
from koordebpf.strategies.katalyst.requests import Wanted
from koordebpf.units import NS_PER_MS, NS_PER_S

Killer = Literal["eviction-api-killer", "deletion-api-killer", "container-killer", "cgroup-killer"]
EXECUTORS: Mapping[Killer, KillerName] = {
    "eviction-api-killer": "api",
    "deletion-api-killer": "delete",
    "container-killer": "cri",
    "cgroup-killer": "cgroup",
}
LONGEST_STOP_S = 60  # Why: ten stops side by side, and ten evictions a minute, so that no pod keeps others waiting
LabelKey = Annotated[str, msgspec.Meta(min_length=1, max_length=317)]  # a prefix of 253, a slash, a name of 63


# How a pod that a plugin asks for is evicted, by its QoS level.
#
# Source: katalyst-core pkg/agent/evictionmanager/podkiller.


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


# The whole section.


class KatalystMetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Metrics under the names that Katalyst's agent gives them.

    `katalyst_names` they are there, beside koordebpf_katalyst_…. Why on: dashboards that were made for Katalyst's agent
                     work; where both run, their jobs tell them apart.
    `pod_labels`     labels of a victim that victims_cnt and dryrun_victims_cnt have too, as pod_<label>. Why none:
                     Katalyst's eviction-pod-metric-labels.
    """

    katalyst_names: bool = True
    pod_labels: Annotated[tuple[LabelKey, ...], msgspec.Meta(max_length=16)] = ()


class KatalystSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How plugins are asked and what is done about their answers.

    `plugins`       of the plugins inside, those that run: names, `-name` for all but that one, `*` for all. Why *:
                    Katalyst's default is none, and every deployment sets *.
    `dry_run`       plugins whose victims are counted and not evicted, in the same words. Why none: Katalyst's.
    `sync_ns`       from the end of one round to the next. Why 5 s: Katalyst's. Pressure does not wait for it.
    `deadline_ns`   of one call of a plugin outside. Why 0.8 s: with one that hangs, the answers of the others count
                    within two seconds; Katalyst gives each call 10 s, which is the most here.
    `transition_ns` for how long a condition stays after it was met last. Why 5 min: Katalyst's. 0: none is reported.
    `burst`         at most so many pods are evicted in a round, forced ones first; 0: none, below 0: all. Why 3:
                    Katalyst's.
    `taints`        conditions become taints, of the Node and of the CustomNodeResource. Why on: as in Katalyst. Needs
                    enforcement, source api or kubelet, and the rights of deploy/components/katalyst.
    `notices`       a directory of the node where pods that want it find the notice of a soft eviction; empty for none.
                    Why /opt/katalyst: Katalyst's.
    `sockets`       the directory where plugins outside the agent put their sockets; empty for none. Why
                    /var/lib/katalyst/plugin-socks: Katalyst's.
    `killers`       how pods of a QoS level are evicted.
    `records`       plugins outside get, of each pod that they choose from, its PodDisruptionBudget and the evictions of
                    its workload in the last two hours. Why on: both are known here; Katalyst has records only where
                    eviction-record-manager names a component of one's own.
    `skip`          pods that no plugin is asked about.
    `qos`           annotations that give a pod its QoS level.
    `metrics`       Katalyst's own names.
    `access`        which plugins outside may register.
    `inner`         of the plugins inside.
    """

    plugins: tuple[str, ...] = ("*",)
    dry_run: tuple[str, ...] = ()
    sync_ns: Annotated[int, msgspec.Meta(ge=NS_PER_MS)] = 5 * NS_PER_S
    deadline_ns: Annotated[int, msgspec.Meta(ge=10 * NS_PER_MS, le=10 * NS_PER_S)] = 800 * NS_PER_MS
    transition_ns: int = 300 * NS_PER_S
    burst: int = 3
    taints: bool = True
    notices: str = "/opt/katalyst"
    sockets: str = "/var/lib/katalyst/plugin-socks"
    killers: KillerSettings = KillerSettings()
    records: bool = True
    skip: SkipSettings = SkipSettings()
    qos: QosSelectors = QosSelectors()
    metrics: KatalystMetricsSettings = KatalystMetricsSettings()
    access: AccessSettings = AccessSettings()
    inner: InnerSettings = InnerSettings()


def is_listed(name: str, names: tuple[str, ...]) -> bool:
    """Tell whether a list names something: the first of `name` and `-name` decides, else whether there is a `*`.

    Source: katalyst-core pkg/util/general, IsNameEnabled.

    >>> is_listed("a", ("*", "-a")), is_listed("b", ("*", "-a")), is_listed("a", ("a", "-a")), is_listed("a", ())
    (False, True, True, False)
    """
    for each in names:
        if each in (name, f"-{name}"):
            return each == name
    return "*" in names
