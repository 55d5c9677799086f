"""What an operator may set about eviction rounds."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from koordebpf.decide.evict.namespaces import Namespaces
from koordebpf.units import NS_PER_MS, NS_PER_S


class Rung(enum.Enum):
    """What can be done about a pod, from the mildest on; in this order, whatever is configured."""

    BRAKE = "brake"  # memory.high at what it uses now; cgroup v1: its cpu.cfs_quota_us
    RECLAIM = "reclaim"  # memory.reclaim
    FREEZE = "freeze"
    EVICT = "evict"
    KILL = "kill"


class LadderSettings(msgspec.Struct, frozen=True):
    """Which rungs are tried before the next one, and when a rung has done enough.

    `rungs`            those that are used. Why none: every one changes what a pod can do, so somebody has to ask for
                       it. With none, victims are evicted at once.
    `settle_ns`        a rung is judged so long after it was begun. Why: memory.high and memory.reclaim work while the
                       pod allocates; a second is what PSI's windows and ours need to show it.
    `enough_ratio`     share of the need that a rung must have given back to be left alone for another `settle_ns`; with
                       less the next one is climbed. Why: at half of it the next judgement finds the need covered.
    `stall_fall_ratio` share by which the stalls of latency-sensitive pods must have fallen for the same. Why: as above.
    `calm_ns`          a rung is undone once the shortage has been over for so long. Why: kubelet waits 5 minutes before
                       it believes in the end of a pressure; a brake that is needed again costs a second, not a pod.
    `kill_wait_ns`     what was evicted and still holds its memory is killed so much later. Why: the default of
                       terminationGracePeriodSeconds.
    `freeze_max_ns`    a pod is thawed after this long in any case. Why: its liveness probes fail three times in 30 s.
    `brake_percent`    memory.high of a braked pod, of what it uses. Why: below 100 its next pages are its own old ones.
    `quota_percent`    cgroup v1, which has no memory.high: the braked pod's share of one CPU. Why: it can still answer
                       a signal, and allocates a tenth as fast as with a whole CPU.
    """

    rungs: frozenset[Rung] = frozenset()
    settle_ns: int = 1 * NS_PER_S
    enough_ratio: float = 0.5
    stall_fall_ratio: float = 0.5
    calm_ns: int = 30 * NS_PER_S
    kill_wait_ns: int = 30 * NS_PER_S
    freeze_max_ns: int = 20 * NS_PER_S
    brake_percent: int = 95
    quota_percent: int = 10


class ExemptionSettings(msgspec.Struct, frozen=True):
    """In which namespaces it counts what the owners of pods wrote to be spared.

    `budgets`        their PodDisruptionBudgets, in these namespaces: names, patterns with * and ?, and selectors of
                     labels as {matchLabels: {tier: gold}}. Those need deploy/components/namespace-labels; where the
                     labels are not known, everything counts. Elsewhere a pod goes in its turn, and where the API server
                     refuses that, executor.killAfter kills it at once. Why everywhere: as in Kubernetes.
    `policies`       annotation koordinator.sh/eviction-policy. Elsewhere it is not read. Why everywhere: as in
                     Koordinator.
    `grace_periods`  terminationGracePeriodSeconds, up to maxGraceSeconds. Elsewhere a pod that goes for the memory it
                     holds has 1 s, as in a hard eviction by the kubelet. Why everywhere: as in Kubernetes.
    `qos_labels`     label koordinator.sh/qosClass. Elsewhere a pod with a spec.priority of the bands koord-batch or
                     koord-free may go as a best-effort one, whatever its label says; with another priority nothing
                     changes. Why everywhere: as in Koordinator.
    """

    budgets: Namespaces = frozenset({"*"})
    policies: Namespaces = frozenset({"*"})
    grace_periods: Namespaces = frozenset({"*"})
    qos_labels: Namespaces = frozenset({"*"})


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

    `cool_time_ns`   no new round so soon after an eviction while what was evicted has not given its memory back.
                     Why: koordlet's memory-evict-cool-time-seconds is 4. It waits in any case, because it cannot see
                     memory come back; here the wait ends with the last pending release.
    `cpu_cool_time_ns` the same for features that judge CPU, to its end. Why: koordlet's cpu-evict-cool-time-seconds.
    `pending_max_ns` a release that takes longer is no longer counted on, so that a pod which cannot die does not keep
                     others from going; a pod whose eviction brought nothing is passed over for so long. Why: koordlet
                     forgets an eviction after 2 minutes.
    `max_grace_seconds` executor api: a pod that goes for the memory it holds has at most so long to end, never longer
                     than its own terminationGracePeriodSeconds. Why 30: Kubernetes' own default, so that only who asked
                     for more is cut; a node short of memory cannot wait for a pod that asked for a day. None, as under
                     compat: strict: the pod's own. As kubelet's eviction-max-pod-grace-period.
    `prefer_aggressor` among pods of the same class and priority the one goes first whose growth made latency-sensitive
                     pods stall. Why on: it changes only what Koordinator leaves to size, and helps whom it is for.
    `aggressor_min_ns` what a pod must have made them stall within the ledger's window to go first. Why: a healthy node
                     stalls for less in a minute, and what is charged of it is chance.
    `across_priorities` `prefer_aggressor` comes before priority and class. Why off: it breaks what they promise.
    `spread_owners`  among the same, each further pod of one owner counts as half as large. Why on: two replicas less
                     hurt a workload more than one, and nobody who is much smaller goes for it.
    `act_ahead_ns`   evict for use before the threshold is crossed, when it will be within this time even if it grows as
                     slowly as lately. Why 0, off: Koordinator waits for the threshold.
    `min_age_ns`     nobody goes who started less than this ago. Why 0, off: a new hog is a hog.
    `protected_namespaces` nobody goes from these. Why none: kube-system always is one and no setting takes it out.
    `protected_priority_classes` nobody goes with one of these priorityClassNames. Why none: system-critical pods always
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
    # Not 0: the API server would forget the pod at once, while its processes go on.
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
