"""What CPU burst is set by, what an annotation asks for, what is measured, and the node as it is decided from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.files import MIN_QUOTA_US
from koordebpf.kube.cache.objects import Node, Pod
from koordebpf.slo.convert import decode_object, overlaid
from koordebpf.slo.strategies.cpu_burst import CPUBurstStrategy
from koordebpf.state.pods.effective import possible_limits
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.pods.hook_pods import HookPod, KnownHookPods
from koordebpf.state.pods.requests import NATIVE_CPU

CPU_BURST_ANNOTATION = "koordinator.sh/cpuBurst"
_PLACE = f"annotation {CPU_BURST_ANNOTATION}"
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
APART = frozenset({"LSE", "LSR"})  # with CPUs of their own: they never burst, and their CPUs are not of the share pool
_LIVE = frozenset({"Pending", "Running"})
_PODS = KnownHookPods()
_STEP_MILLICPU = 10  # systemd has quotas in whole percents of a CPU: runc rounds up


class BurstSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast quotas change, and which pods may ask for what.

    `raise_percent`      a throttled container's quota becomes this share of what it has, once in each of its periods.
                         Why 120: as in koordlet, which does it once a second.
    `lower_percent`      the same each second where the node has no room. Why 80: as in koordlet.
    `starved_percent`    a container that was throttled in at least this share of its periods of the last second is
                         raised even where the share pool has no room; 0: never. Why 0: as in koordlet; the other pods
                         of a full node pay for it.
    `return_after_s`     a container that was not throttled for so long is lowered again; 0: not before the node has no
                         room. Why 0: as in koordlet.
    `pod_annotations`    a pod's annotation koordinator.sh/cpuBurst counts. Why on: as in koordlet.
    """

    raise_percent: Annotated[int, msgspec.Meta(ge=101, le=400)] = 120
    lower_percent: Annotated[int, msgspec.Meta(ge=1, le=99)] = 80
    starved_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    return_after_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 0
    pod_annotations: bool = True


# Annotation cpuBurst: what a pod asks for in place of the node's CPU burst strategy.
#
# Source: koordinator apis/slo/v1alpha1/pod.go, GetPodCPUBurstConfig.


def pod_cpu_burst(
    node: CPUBurstStrategy, annotations: Mapping[str, str]
) -> tuple[CPUBurstStrategy, ConfigError | None]:
    """Return the strategy of a pod: the node's with what its annotation names, and what is wrong with that.

    An annotation that cannot be read changes nothing. sharePoolThresholdPercent is always the node's.
    """
    written = annotations.get(CPU_BURST_ANNOTATION)
    if not written:
        return node, None
    try:
        asked = decode_object(written, _PLACE)
        asked.pop("sharePoolThresholdPercent", None)
        return overlaid(node, asked, _PLACE), None
    except ConfigError as error:
        return node, error


class BurstContainer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One container with a CPU quota; `path` is below the mount of the cpu controller.

    Units:   microseconds; `used_millicpu` over the last second, None: not measured yet.
    `burst_us` None: this kernel has no such file. `is_throttled`: since the round before. `throttled_ratio`: share of
    its periods of the last second in which it was; None: it had none.
    """

    id: str
    path: str
    quota_us: int
    period_us: int
    burst_us: NotNegative | None = None
    used_millicpu: NotNegative | None = None
    is_throttled: bool = False
    throttled_ratio: float | None = None


class BurstPod(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The pod's own level, and those of its containers that have a quota. `quota_us` None: no limit."""

    uid: str
    path: str
    quota_us: int | None = None
    period_us: int = 100_000
    burst_us: NotNegative | None = None
    containers: tuple[BurstContainer, ...] = ()


class BurstMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What CPU burst is decided from, of one moment.

    `strategy`            cpuBurstStrategy in force; None: there is no NodeSLO.
    `cpus`                CPUs that are online; `isolated`: of these, how many ordinary tasks do not run on.
    `node_used_millicpu`  of the node, over some seconds; None: not measured yet.
    `apart_used_millicpu` of it by LSE, LSR and best-effort pods.
    `pods`                with at least one container that has a quota, but for LSE, LSR and BE ones.
    """

    strategy: CPUBurstStrategy | None = None
    cpus: NotNegative = 0
    node_used_millicpu: NotNegative | None = None
    apart_used_millicpu: NotNegative = 0
    pods: tuple[BurstPod, ...] = ()
    isolated: NotNegative = 0

    @property
    def ordinary_cpus(self) -> int:
        """On how many CPUs a container without CPUs of its own runs."""
        return max(self.cpus - self.isolated, 0)


class BurstView(msgspec.Struct, frozen=True):
    """The node for CPU burst. `pods` by UID: what the objects say. `apart_millicpu`: requests of LSE and LSR pods.

    `annotations` are the Node's.
    """

    measured: BurstMeasured
    pods: dict[str, HookPod]
    apart_millicpu: int = 0
    annotations: Mapping[str, str] = {}


def may_burst(pod: PodFacts) -> bool:
    """Tell whether a pod is one that CPU burst is for: pending or running, not LSE, LSR or BE by its label.

    Nor is it for one that the scheduler bound to CPUs: CPUSetAllocator takes its quota away.

    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpuburst, by the raw class.
    """
    is_live = pod.phase in _LIVE and not pod.is_terminating
    return is_live and pod.koord_qos not in (*APART, "BE") and not pod.cpus.cpus


def burst_view(measured: BurstMeasured, pods: Iterable[PodFacts], node: Node | None) -> BurstView:
    """Return the node as CPU burst sees it. The same arguments give an equal view."""
    known = tuple(pods)
    found = _PODS.of({each.uid: each.path for each in measured.pods}, known)
    apart = (each.terms for each in known if each.koord_qos in APART and each.phase in _LIVE)
    return BurstView(
        measured=measured,
        pods={each.uid: each for each in found},
        apart_millicpu=sum(each.cpu_request_millicpu for each in apart if each.cpu_resource == NATIVE_CPU),
        annotations=(node.metadata.annotations if node is not None else None) or {},
    )


class WrittenLimit(msgspec.Struct, frozen=True, gc=False):
    """The largest CPU limit of which kubelet may have written the quota, and whose it is."""

    container_id: str
    name: str  # of the pod and the container, for people
    millicpu: int


def is_above_limit(quota_us: int, period_us: int, limit_millicpu: int) -> bool:
    """Return whether it is above the quota of that limit, as kubelet, runc and systemd round it.

    >>> [is_above_limit(each, 100_000, 123) for each in (12_300, 13_000, 13_001)]
    [False, False, True]
    """
    rounded_millicpu = -(-limit_millicpu // _STEP_MILLICPU) * _STEP_MILLICPU
    return quota_us > max(rounded_millicpu * period_us // 1000, MIN_QUOTA_US)


def written_limits(pod: Pod) -> Iterator[WrittenLimit]:
    """Yield the CPU limits of the containers that run; not of those without one, or whose limit nothing tells."""
    status = pod.status
    limits = possible_limits(pod, NATIVE_CPU)
    for each in (*(status.containerStatuses or ()), *(status.initContainerStatuses or ())):
        container_id, limit = each.containerID.partition("://")[2], limits.get(each.name)
        if container_id and limit is not None:
            yield WrittenLimit(container_id, f"{pod.key} {each.name}", limit.milli_value())
