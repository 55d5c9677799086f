"""What hooks are set by, what they set, what they are decided by, and the node as they see it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Generic, TypeVar

import msgspec

from koordebpf.kube.cache.objects import Node, NodeResourceTopology
from koordebpf.policy.cpu_normalization import CPU_NORMALIZATION
from koordebpf.slo.pods.cpu_placement import SharePool
from koordebpf.slo.pods.resource_status import NodePools, node_pools
from koordebpf.slo.strategies.resource_qos import ResourceQOSStrategy
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.pods.hook_pods import HookPod, HooksMeasured, KnownHookPods

BATCH_RESOURCE, CPUSET_ALLOCATOR, GROUP_IDENTITY = "BatchResource", "CPUSetAllocator", "GroupIdentity"
CORE_SCHED, OOM_SCORE_ADJ = "CoreSched", "OOMScoreAdj"
HOOKS = (BATCH_RESOURCE, CPUSET_ALLOCATOR, GROUP_IDENTITY, CPU_NORMALIZATION, CORE_SCHED, OOM_SCORE_ADJ)
# Records of what processes had, beside the journal of the writer.
SCORES: Final = "oom-scores.json"
COOKIES: Final = "core-cookies.json"
UNLIMITED: Final = -1  # no limit, as v1 files and container runtimes write it
PERIOD_US: Final = 100_000  # kubelet's --cpu-cfs-quota-period, and koordlet's base period
MIN_QUOTA_US: Final = 1000  # kernel/sched/core.c, min_cfs_quota_period
V = TypeVar("V")
_LIVE = frozenset({"Pending", "Running"})
_PODS = KnownHookPods()


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


class Setting(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """One value, the hook that sets it, and in words the field that it comes from."""

    value: V
    hook: str
    source: str


class Adjustment(msgspec.Struct, frozen=True, gc=False):
    """What a pod's or a container's cgroup is to have. None: the hooks leave it alone.

    Units:   shares as on v1; microseconds a period of 100 ms; bytes. `UNLIMITED`: no limit. `cpuset_cpus` empty: no
             CPUs of its own, all that the directory above has; it is for a runtime, a file is left alone.
             `core_sched_group`: containers with the same name share a cookie, "" has none.
    `problems`: sentences on what cannot be read or is not there; it changes nothing.
    """

    cpu_shares: Setting[int] | None = None
    cfs_quota_us: Setting[int] | None = None
    memory_limit_bytes: Setting[int] | None = None
    cpuset_cpus: Setting[frozenset[int]] | None = None
    bvt_warp_ns: Setting[int] | None = None
    cpu_idle: Setting[int] | None = None
    oom_score_adj: Setting[int] | None = None
    core_sched_group: Setting[str] | None = None
    problems: tuple[str, ...] = ()


NOTHING = Adjustment()


class HookRules(msgspec.Struct, frozen=True):
    """What is decided by, beside the pod.

    `hooks`               those whose feature gate is on.
    `is_quota_off`        NodeSLO suppresses best-effort pods by cfsQuota: their own quotas are lifted.
    `normalization_ratio` by how much faster the node's CPUs are than those that requests are written for; None: not
                          known, or not more than 1.
    `shared_pools`        CPUs that pods share, by NUMA node; None: nothing is known of them.
    `be_pools`            the same of best-effort pods.
    `system_cpus`         of the system QoS class.
    `kubelet_policy`      of its CPU manager: none, static, "" where it is not known.
    `online`              CPUs that are online; None: not known, all count as online.
    `qos`                 resourceQOSStrategy of the NodeSLO in force; None: there is no NodeSLO.
    `places_best_effort`  gate BECPUManager: best-effort pods are placed on share pools.
    `unsets_quota`        pods with CPUs of their own have no quota.
    `idles_best_effort`   best-effort pods run when no other pod wants to (cpu.idle).
    `least_oom_score_adj` what a pod's annotation may ask for at least.
    `has_bvt`, `has_idle` this kernel has cpu.bvt_warp_ns, and cpu.idle.
    """

    hooks: frozenset[str] = frozenset()
    is_quota_off: bool = False
    normalization_ratio: float | None = None
    shared_pools: tuple[SharePool, ...] | None = None
    be_pools: tuple[SharePool, ...] | None = None
    system_cpus: frozenset[int] = frozenset()
    kubelet_policy: str = ""
    online: frozenset[int] | None = None
    qos: ResourceQOSStrategy | None = None
    places_best_effort: bool = False
    unsets_quota: bool = True
    idles_best_effort: bool = False
    least_oom_score_adj: int = 0
    has_bvt: bool = True
    has_idle: bool = True


class HookView(msgspec.Struct, frozen=True):
    """The node for hooks. `pods` are those that are pending or running and have a directory.

    `pools`        what NodeResourceTopology says of CPUs.
    `annotations`  of the Node.
    `bound`        CPUs that the scheduler bound pods to; `bound_lse`: those of LSE pods. The object above may not have
                   heard of them yet.
    """

    measured: HooksMeasured
    pods: tuple[HookPod, ...]
    pools: NodePools = NodePools()
    annotations: Mapping[str, str] = {}
    bound: frozenset[int] = frozenset()
    bound_lse: frozenset[int] = frozenset()


def hook_view(
    measured: HooksMeasured, pods: Iterable[PodFacts], node: Node | None, topology: NodeResourceTopology | None
) -> HookView:
    """Return the node as hooks see it. The same arguments give an equal view."""
    known = tuple(pods)
    bound = [each for each in known if each.cpus.cpus and each.phase in _LIVE]
    return HookView(
        measured=measured,
        pods=_PODS.of({each.uid: each.path for each in measured.pods}, known),
        pools=node_pools(topology.metadata.annotations) if topology is not None else NodePools(),
        annotations=(node.metadata.annotations if node is not None else None) or {},
        bound=frozenset(cpu for each in bound for cpu in each.cpus.cpus),
        bound_lse=frozenset(cpu for each in bound if each.koord_qos == "LSE" for cpu in each.cpus.cpus),
    )
