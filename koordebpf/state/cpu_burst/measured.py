"""What is read of a node for CPU burst: CPU use of the node, quotas and throttling of containers. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from koordebpf.slo.strategies.cpu_burst import CPUBurstStrategy
from koordebpf.state.hooks.pods import HookPod

NotNegative = Annotated[int, msgspec.Meta(ge=0)]


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
    `cpus`                CPUs that are online.
    `node_used_millicpu`  of the node, over some seconds; None: not measured yet.
    `apart_used_millicpu` of it by LSE, LSR and best-effort pods.
    `pods`                with at least one container that has a quota, but for LSE, LSR and BE ones.
    """

    strategy: CPUBurstStrategy | None = None
    cpus: NotNegative = 0
    node_used_millicpu: NotNegative | None = None
    apart_used_millicpu: NotNegative = 0
    pods: tuple[BurstPod, ...] = ()


class BurstView(msgspec.Struct, frozen=True):
    """The node for CPU burst. `pods` by UID: what the objects say. `apart_millicpu`: requests of LSE and LSR pods.

    `annotations` are the Node's.
    """

    measured: BurstMeasured
    pods: dict[str, HookPod]
    apart_millicpu: int = 0
    annotations: Mapping[str, str] = {}
