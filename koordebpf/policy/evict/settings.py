"""What an operator may set about eviction rounds, and the grace period of an eviction through the API server."""

from __future__ import annotations

from typing import Annotated

import msgspec

from koordebpf.policy.ladder_settings import LadderSettings
from koordebpf.state.pods.namespaces import ExemptionSettings, is_honoured
from koordebpf.state.view import NodeView, PodView
from koordebpf.units import NS_PER_MS, NS_PER_S

_HARD_S = 1  # k8s.io/kubernetes pkg/kubelet/eviction, immediateEvictionGracePeriodSeconds


def capped_grace_s(pod: PodView, view: NodeView, settings: EvictSettings) -> int | None:
    """Return the grace period to ask for in place of the pod's own; None: its own is not longer, or nothing caps it.

    Only the API server knows grace periods: the other executors give none.
    """
    cap_s = settings.max_grace_seconds
    if not is_honoured(settings.exemptions.grace_periods, pod.namespace, view):
        cap_s = _HARD_S
    if cap_s is None or view.frame.executor != "api":
        return None
    return cap_s if own_grace_s(pod) > cap_s else None


def own_grace_s(pod: PodView) -> int:
    """Return the pod's own grace period: of its deletion, where that has started."""
    terms = pod.terms
    return terms.grace_s if terms.deletion_grace_s is None else terms.deletion_grace_s


def may_be_hurried(pod: PodView, view: NodeView, settings: EvictSettings) -> bool:
    """Tell whether a pod that is being deleted could end sooner, and nothing more is expected of it as it is.

    The user who deletes a pod chooses its grace period, a day if need be; an Eviction of it shortens that.

    Source: k8s.io/apiserver pkg/registry/rest/delete.go, BeforeDelete: a running period can be shortened only.
    """
    is_late = any(
        entry.uid == pod.uid and entry.failed_ns is None and view.now_ns - entry.since_ns > settings.pending_max_ns
        for entry in view.frame.pending
    )
    return is_late and capped_grace_s(pod, view, settings) is not None


class StallSettings(msgspec.Struct, frozen=True):
    """When feature gate StallEvict acts: a latency-sensitive pod stalls for the node's memory below every threshold.

    `full_percent`     share of the time, smoothed over 10 s, in which all tasks of a latency-sensitive pod wait for the
                       node's memory; above it the pod counts as stalled. Why 60: systemd-oomd's
                       DefaultMemoryPressureLimit.
    `seconds`          for so long without a break, before the first step and again after each. Why 30: systemd-oomd's
                       DefaultMemoryPressureDurationSec.
    """

    full_percent: Annotated[int, msgspec.Meta(ge=1, le=99)] = 60
    seconds: Annotated[int, msgspec.Meta(ge=1, le=120)] = 30


class EvictSettings(msgspec.Struct, frozen=True):
    """Times, order and protections of eviction rounds.

    `cool_time_ns`   no new round so soon after an eviction while what was evicted has not released its memory.
                     Why: koordlet's memory-evict-cool-time-seconds is 4. It waits in any case, because it cannot see
                     memory come back; here the wait ends with the last pending release.
    `cpu_cool_time_ns` the same for features that judge CPU, to its end. Why: koordlet's cpu-evict-cool-time-seconds.
    `pending_max_ns` a release that takes longer is no longer counted on, so that a pod which cannot die does not keep
                     others from going; a pod whose eviction brought nothing is passed over for so long. Why: koordlet
                     forgets an eviction after 2 minutes.
    `max_grace_seconds` executor api: a pod evicted for memory that it holds has at most so long to end, never longer
                     than its own terminationGracePeriodSeconds. Why 30: Kubernetes' own default, so that only who asked
                     for more is cut; a node short of memory cannot wait for a pod that asked for a day. None, as under
                     compat: strict: the pod's own. As kubelet's eviction-max-pod-grace-period.
    `prefer_aggressor` among pods of the same class and priority, first the one whose growth made latency-sensitive
                     pods stall. Why on: it changes only what Koordinator leaves to size, and helps whom it is for.
    `aggressor_min_ns` what a pod must have made them stall within the ledger's window to be first. Why: a healthy node
                     stalls for less in a minute, and what is charged of it is chance.
    `across_priorities` `prefer_aggressor` comes before priority and class. Why off: it breaks what they promise.
    `spread_owners`  among the same, each further pod of one owner counts as half as large. Why on: two replicas less
                     hurt a workload more than one, and no much smaller pod is evicted instead.
    `act_ahead_ns`   evict for use before the threshold is crossed, when it will be within this time even if it grows as
                     slowly as lately. Why 0, off: Koordinator waits for the threshold.
    `min_age_ns`     no pod is evicted that started less than this ago. Why 0, off: a new hog is a hog.
    `protected_namespaces` no evictions from these. Why none: kube-system always is one and no setting takes it out.
    `protected_priority_classes` no evictions of these priorityClassNames. Why none: system-critical pods always
                     are protected and no setting takes them out.
    `evictions_per_workload` at most so many pods of one controller in a minute. Why None, without limit: that is what a
                     PodDisruptionBudget is for, and only this node is counted.
    `evictions_per_namespace` the same of one namespace. Why None: one team's pods may be the whole shortage.
    `obey_pdbs`      with executor api, pass over pods that a PodDisruptionBudget blocks while others cover the need.
                     Why on: the API server refuses them, and the round would have waited for its answer.
    `exemptions`     whose wish to be spared counts.
    `ladder`         what is tried before an eviction.
    `stall`          when the stall safety net acts, feature gate StallEvict.
    `strict_compat`  count, rank and choose as Koordinator does where that is safe: deploy/koordinator.md. Why: off,
                     because each of those choices is one that its users complain of.
    """

    cool_time_ns: int = 4 * NS_PER_S
    cpu_cool_time_ns: int = 20 * NS_PER_S
    pending_max_ns: int = 120 * NS_PER_S
    # Not 0: the API server would forget the pod at once, while its processes run.
    max_grace_seconds: Annotated[int, msgspec.Meta(ge=1)] | None = 30
    prefer_aggressor: bool = True
    aggressor_min_ns: int = 10 * NS_PER_MS
    across_priorities: bool = False
    spread_owners: bool = True
    act_ahead_ns: int = 0
    min_age_ns: int = 0
    protected_namespaces: frozenset[str] = frozenset()
    protected_priority_classes: frozenset[str] = frozenset()
    evictions_per_workload: int | None = None
    evictions_per_namespace: int | None = None
    obey_pdbs: bool = True
    exemptions: ExemptionSettings = ExemptionSettings()
    ladder: LadderSettings = LadderSettings()
    stall: StallSettings = StallSettings()
    strict_compat: bool = False
