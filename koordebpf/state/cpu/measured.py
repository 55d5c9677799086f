"""What suppression and CPU eviction may look at: the machine's CPUs, who may use which, and who used how much.

CPU time is counted in millicpu, a thousandth of one CPU, as Kubernetes does.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from koordebpf.kernel.proc.cpu_topology import Cpu, CpuTopology

__all__ = [
    "BeCgroup",
    "BeQuota",
    "Cpu",
    "CpuManager",
    "CpuMeasured",
    "CpuOwner",
    "CpuPlacement",
    "CpuTopology",
    "CpuUsage",
    "CpuView",
    "CpuWindow",
    "HostApplicationCpu",
    "MissingDirectory",
    "OtherPodsCpu",
    "PodCpu",
]

NotNegative = Annotated[int, msgspec.Meta(ge=0)]


class PodCpu(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What one pod-level cgroup used; `is_best_effort`: it lies below the best-effort directory.

    `uid` is what the cgroup's path says, so that a pod which no source knows is counted too. `burst_millicpu`: over a
    window much shorter than that of the usage; None: not measured, or best-effort.
    """

    uid: str
    used_millicpu: NotNegative
    is_best_effort: bool
    burst_millicpu: NotNegative | None = None

    @property
    def claimed_millicpu(self) -> int:
        """What it needs left to it: a burst counts at once, its end when the longer window has forgotten it."""
        return max(self.used_millicpu, self.burst_millicpu or 0)


class OtherPodsCpu(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What all pods outside the best-effort directory used together, as `PodCpu`."""

    used_millicpu: NotNegative
    burst_millicpu: NotNegative | None = None

    @property
    def claimed_millicpu(self) -> int:
        """As of a pod."""
        return max(self.used_millicpu, self.burst_millicpu or 0)


class HostApplicationCpu(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What one host application used, as `PodCpu`."""

    name: str
    used_millicpu: NotNegative
    is_best_effort: bool = False
    burst_millicpu: NotNegative | None = None

    @property
    def claimed_millicpu(self) -> int:
        """As of a pod."""
        return max(self.used_millicpu, self.burst_millicpu or 0)


class CpuUsage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was used over `window_ns` up to the sampling.

    `node_used_millicpu`: user, nice, system, irq and softirq of /proc/stat, or of the node's cgroup where that is the
    node. `be_used_millicpu`: of the best-effort directory with everything in it; None: there is none, or it was seen
    for the first time. `other_pods`: where pods are not read one by one; none of `pods` is one of them.
    `isolated_used_millicpu`: what was used of CPUs that ordinary tasks do not run on; UNSET: there are none, or the
    node is a cgroup.
    """

    window_ns: NotNegative
    node_used_millicpu: NotNegative
    be_used_millicpu: NotNegative | None = None
    pods: tuple[PodCpu, ...] = ()
    other_pods: OtherPodsCpu | None = None
    host_applications: tuple[HostApplicationCpu, ...] = ()
    isolated_used_millicpu: NotNegative | msgspec.UnsetType = msgspec.UNSET


class CpuWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Averages over the window that CPU eviction judges. None: less than a third of it has samples with the value.

    `covered_ns` is from the first sample's begin to the last one's end, at most `window_ns`.
    """

    window_ns: NotNegative
    covered_ns: NotNegative
    node_used_millicpu: NotNegative | None = None
    be_used_millicpu: NotNegative | None = None
    be_request_millicpu: NotNegative | None = None
    be_limit_millicpu: NotNegative | None = None


class BeCgroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One directory of the best-effort tree and the CPUs it has now; `path` is relative to the hierarchy's root.

    `cpus` is cpuset.cpus, on v2 cpuset.cpus.effective. None: it was not read, or there is no cpuset controller.
    """

    path: str
    level: Literal["root", "pod", "container"]
    uid: str | None = None  # of the pod
    cpus: tuple[int, ...] | None = None


class MissingDirectory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A directory that a cgroup v1 hierarchy has not, and another one has; `path` is where it would be."""

    controller: str
    path: str


class BeQuota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The CFS bandwidth of the best-effort directory. `quota_us` None: no limit."""

    quota_us: int | None
    period_us: int = 100_000


class CpuManager(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What kubelet's CPU manager says itself: its policy, and uid → CPUs of pods that have some for themselves.

    `shared`: with policy static those of all other pods, without what kubelet keeps back (strict-cpu-reservation).
    """

    policy: str
    pinned: dict[str, tuple[int, ...]] = {}
    shared: tuple[int, ...] = ()


class CpuMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was read of the node's CPUs in one sampling.

    `usage` None: this is the first sampling, rates need two. `be_cgroups`: parents first, on v2 without what lies below
    a container; `be_parent_cpus` are those of the directory above the best-effort one: no child may have others.
    `be_missing`: of the hierarchies that suppression reads, those without the best-effort directory that others have.
    """

    topology: CpuTopology
    usage: CpuUsage | None = None
    be_cgroups: tuple[BeCgroup, ...] = ()
    be_parent_cpus: tuple[int, ...] | None = None
    # The key is of the first release: recordings have it.
    be_missing: tuple[MissingDirectory, ...] = msgspec.field(name="be_lacking", default=())
    be_quota: BeQuota | None = None
    be_idle: NotNegative | None = 0  # cpu.idle of the best-effort directory; None: no such file, before Linux 5.15
    window: CpuWindow | None = None
    manager: CpuManager | None = None  # None: its file cannot be reached; NodeResourceTopology may tell


class CpuOwner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CPUs that Koordinator's scheduler, or kubelet's static policy, bound a pod to; `koord_qos` as in `PodView`."""

    uid: str
    koord_qos: str
    cpus: tuple[int, ...]
    has_numa: bool = False  # bound to NUMA nodes beside or in place of CPUs
    by_kubelet: bool = False


class CpuPlacement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who may use which CPUs, by what the objects of Kubernetes say.

    `reserved_cpus`: of the reservation on Node or NodeResourceTopology. `system_cpus`: of the system QoS class where it
    has them for itself. `problems`: annotations that could not be read; they say nothing then, as in koordlet.
    """

    owners: tuple[CpuOwner, ...] = ()
    reserved_cpus: tuple[int, ...] = ()
    system_cpus: tuple[int, ...] = ()
    manager_policy: Literal["none", "static"] = "none"  # kubelet's --cpu-manager-policy
    problems: tuple[str, ...] = ()


class CpuView(msgspec.Struct, frozen=True):
    """The node's CPUs as a decision sees them.

    `capacity_millicpu` is node.status.capacity.cpu, or the online CPUs while that is not known. `reserved_millicpu` is
    the larger of capacity − allocatable and the reservation annotation. `allocatable`: cpu, batch-cpu and mid-cpu in
    millicpu; None: no Node is known.
    """

    measured: CpuMeasured
    capacity_millicpu: int
    reserved_millicpu: int = 0
    allocatable: dict[str, int] | None = None
    placement: CpuPlacement = CpuPlacement()
