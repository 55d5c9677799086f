"""What is measured of a node for Katalyst's plugins inside the agent, beside what every decision has. Values only.

Absent is not zero: a part that is None was not measured, and the plugin that needs it says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from koordebpf.slo.katalyst_access import Validation
from koordebpf.state.cnr import Cnr

Met = Literal["soft", "hard"]
Operator = Literal["less_than", "greater_than"]
ConditionKind = Literal["node", "cnr"]
REPORT_TAINT = "eviction_manager_report_taint"
REPORT_CNR_TAINT = "eviction_manager_report_cnr_taint"
NOTIFY = "pod_notifier"


# What an eviction plugin answers: the messages of evictionplugin.v1alpha1 as values.
#
# A plugin's answer is a measurement: it is in the round's frame, so that a replay decides from the same. The plugins of
# this agent give the same values without a wire.
#
# Source: katalyst-api pkg/protocol/evictionplugin/v1alpha1/api.proto.


class Condition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A condition of the node that is met, and the taint effects it asks for.

    `effects` of kind node: NoSchedule, PreferNoSchedule, NoExecute; of kind cnr: `reclaimed_cores/<effect>`.
    """

    name: str
    kind: ConditionKind
    effects: tuple[str, ...] = ()


class Threshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A threshold that is met. `grace_s` is how long it has to be before a pod is evicted; 0 or less: at once.

    `candidates` are UIDs of the pods that the plugin would choose from; none: of all.
    """

    met: Met
    scope: str
    value: float
    observed: float
    operator: Operator = "less_than"
    grace_s: int = 0
    condition: Condition | None = None
    candidates: tuple[str, ...] = ()


class EvictAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A pod that a plugin wants evicted whatever its threshold says.

    `grace_s` None: the pod's own; 0: at once; negative: the eviction is refused.
    """

    uid: str
    reason: str
    is_forced: bool = False
    grace_s: int | None = None


class TopPods(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The pods that a plugin chose for its threshold; `grace_s` as in `EvictAsked`.

    `waits`: why it chose none yet, in a sentence: what is missing is already coming back.
    """

    uids: tuple[str, ...]
    grace_s: int | None = None
    waits: str | None = None


class PluginAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one plugin answered in one round.

    `threshold` None: not met. `top` None: it was not asked for. `problem`: why there is no answer, or only a part.
    `conditions` are those of pods it wants evicted, beside the threshold's.
    """

    plugin: str
    threshold: Threshold | None = None
    evict: tuple[EvictAsked, ...] = ()
    conditions: tuple[Condition, ...] = ()
    top: TopPods | None = None
    problem: str | None = None


# What a plugin is asked for pods with, and the records of candidates: budgets and past evictions. Values only.
#
# Source: katalyst-api pkg/protocol/evictionplugin/v1alpha1/api.proto, EvictionRecord.


class PastBucket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Evictions of a workload's pods within some time: `time_s` is its start, in seconds since the epoch."""

    time_s: int
    duration_s: int
    count: int


class EvictionRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is known of one candidate. Without a PodDisruptionBudget the numbers of its status are 0.

    `buckets` none: no pod of its workload was evicted, or it has no workload.
    """

    uid: str
    has_pdb: bool = False
    buckets: tuple[PastBucket, ...] = ()
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0


class TopAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """GetTopEvictionPods of one plugin: how many pods, for which scope, of which pods by UID, with their records."""

    plugin: str
    scope: str
    top_n: int
    candidates: tuple[str, ...]
    records: tuple[EvictionRecord, ...] = ()


class NumaMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One NUMA node's memory: its zone Normal in /proc/zoneinfo, in pages, and what its pods hold there, in bytes.

    `total_bytes` is MemTotal of /sys/devices/system/node/node<id>/meminfo.
    """

    node: int
    total_bytes: int
    free_pages: int
    min_pages: int
    low_pages: int
    inactive_file_pages: int
    active_file_pages: int
    pods: Mapping[str, int] = {}  # memory.numa_stat, by UID


class SystemMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The machine's memory. Bytes; `scale_factor` is vm.watermark_scale_factor, in ten-thousandths.

    `pressure` is `some avg10` of the kubelet's burstable level, in percent; None: cgroup v1, or no such file.
    `pods_pressure` is the same of each pod, by UID, with those alone whose file could be read; None: while so little of
    the level waits, nothing asks for it.
    `stolen_pages` are those that kswapd has reclaimed since boot (pgsteal_kswapd); None: nothing asks for them.
    """

    total_bytes: int
    free_bytes: int
    available_bytes: int
    scale_factor: int
    pressure: float | None = None
    stolen_pages: int | None = None
    pods_pressure: Mapping[str, float] | None = None


class RemoteAnswers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What plugins outside the process answered: to which call of the manager, and until when."""

    call: int
    answers: tuple[PluginAnswer, ...]
    ended_ns: int


class ImageFs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The filesystem that has containers' writable layers, at `at_ns`. `inodes` None: it does not count them, as btrfs.

    `available_bytes` is what others than root may still write, as the kubelet counts.
    """

    path: str
    capacity_bytes: int
    available_bytes: int
    at_ns: int
    inodes: int | None = None
    inodes_free: int | None = None


class RootfsUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the writable layers of a pod's containers occupy. `is_cut`: at least so much, as a bound was reached."""

    used_bytes: int
    inodes: int
    is_cut: bool = False


class RootfsMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The writable layers of pods by UID, looked at from `began_ns` to `ended_ns`; others are not known."""

    began_ns: int
    ended_ns: int
    pods: Mapping[str, RootfsUse]


class KatalystMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything that Katalyst's manager and the plugins inside decide from, beside the view.

    `links` say which NICs of the CustomNodeResource have a link, by name; one that is left out was not seen.
    `remote_plugins` are the names of those outside that are registered.
    """

    system: SystemMemory | None = None
    numa: tuple[NumaMemory, ...] | None = None
    cnr: Cnr | None = None
    links: Mapping[str, bool] = {}
    remote_plugins: tuple[str, ...] = ()
    remote: RemoteAnswers | None = None
    image_fs: ImageFs | None = None
    rootfs: RootfsMeasured | None = None


class KatalystFacts(msgspec.Struct, frozen=True):
    """As of one round.

    `reporters`   what carries decisions out, by name, and its problem; None: it works. One that is not there is none.
    `validations` how often plugins were judged so since the start.
    `sockets`     paths by which no plugin is registered, and why.
    """

    reporters: Mapping[str, str | None] = {}
    validations: Mapping[Validation, int] = {}
    sockets: Mapping[str, str] = {}
