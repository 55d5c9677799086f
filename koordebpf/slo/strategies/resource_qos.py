"""spec.resourceQOSStrategy of a NodeSLO: what each QoS class gets of every resource.

Source: apis/slo/v1alpha1 ResourceQOSStrategy; defaults of pkg/util/sloconfig/nodeslo_config.go; what a class that is
not enabled gets, of pkg/koordlet/statesinformer/impl/states_nodeslo.go.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from koordebpf.quantity import MOST_AMOUNT

Percent = Annotated[int, Meta(ge=0, le=100)]
Switch = Annotated[int, Meta(ge=0, le=1)]
# Why the upper end: the kernel cuts a number to 64 bits, and what is left may be any limit.
Positive = Annotated[int, Meta(ge=1, le=MOST_AMOUNT)]
NotNegative = Annotated[int, Meta(ge=0, le=MOST_AMOUNT)]


class _Part(msgspec.Struct, frozen=True, omit_defaults=True):
    enable: bool | None = None


class CPUQOS(_Part, frozen=True, omit_defaults=True):
    """Group identity and the like; Anolis kernels."""

    groupIdentity: Annotated[int, Meta(ge=-1, le=2)] | None = None
    schedIdle: Switch | None = None
    coreExpeller: bool | None = None


class MemoryQOS(_Part, frozen=True, omit_defaults=True):
    """memory.min, low and high by percents of the request; the wmark fields are of Anolis kernels."""

    minLimitPercent: Percent | None = None
    lowLimitPercent: Percent | None = None
    throttlingPercent: Percent | None = None  # 0: memory.high is max
    wmarkRatio: Percent | None = None
    wmarkScalePermill: Annotated[int, Meta(ge=1, le=1000)] | None = None
    wmarkMinAdj: Annotated[int, Meta(ge=-25, le=50)] | None = None
    priorityEnable: Switch | None = None
    priority: Annotated[int, Meta(ge=0, le=12)] | None = None
    oomKillGroup: Switch | None = None
    pageCacheEnable: bool | None = None
    pageCacheLimitPercent: Percent | None = None
    pageCacheLimitSize: Annotated[str, Meta(max_length=64)] | int | None = None  # quantity
    pageCacheReclaimSync: bool | None = None
    pageCacheLimitEnable: Switch | None = None
    pageCacheLimitSync: Switch | None = None


class ResctrlQOS(_Part, frozen=True, omit_defaults=True):
    """Shares of L3 cache and memory bandwidth."""

    catRangeStartPercent: Percent | None = None
    catRangeEndPercent: Percent | None = None
    mbaPercent: Percent | None = None


class IOConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits and weights of one block device for one class; 0 is no limit."""

    readIOPS: NotNegative | None = None
    writeIOPS: NotNegative | None = None
    readBPS: NotNegative | None = None
    writeBPS: NotNegative | None = None
    ioWeightPercent: Annotated[int, Meta(ge=1, le=100)] | None = None
    readLatency: Positive | None = None
    writeLatency: Positive | None = None
    readLatencyPercent: Percent | None = None
    writeLatencyPercent: Percent | None = None
    enableUserModel: bool | None = None
    modelReadBPS: Positive | None = None
    modelWriteBPS: Positive | None = None
    modelReadSeqIOPS: Positive | None = None
    modelWriteSeqIOPS: Positive | None = None
    modelReadRandIOPS: Positive | None = None
    modelWriteRandIOPS: Positive | None = None


class Block(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device, volume group or pod volume, and its limits."""

    name: str = ""
    type: str = ""
    ioCfg: IOConfig | None = None


class BlkIOQOS(_Part, frozen=True, omit_defaults=True):
    """Block devices of one class."""

    blocks: tuple[Block, ...] | None = None


class NetworkQOS(_Part, frozen=True, omit_defaults=True):
    """Bandwidth of one class, each as percent of the whole or as a quantity."""

    ingressRequest: str | Percent | None = None
    ingressLimit: str | Percent | None = None
    egressRequest: str | Percent | None = None
    egressLimit: str | Percent | None = None


class QOSClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """One QoS class; LSE pods use `lsrClass`."""

    cpuQOS: CPUQOS | None = None
    memoryQOS: MemoryQOS | None = None
    blkioQOS: BlkIOQOS | None = None
    resctrlQOS: ResctrlQOS | None = None
    networkQOS: NetworkQOS | None = None


class QOSPolicies(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which mechanism stands behind a resource."""

    cpuPolicy: Literal["groupIdentity", "coreSched"] | None = None
    netQOSPolicy: Literal["tc", "terway-qos"] | None = None


class ResourceQOSStrategy(msgspec.Struct, frozen=True, omit_defaults=True):
    """All classes. Every field may be absent."""

    policies: QOSPolicies | None = None
    lsrClass: QOSClass | None = None
    lsClass: QOSClass | None = None
    beClass: QOSClass | None = None
    systemClass: QOSClass | None = None
    cgroupRoot: QOSClass | None = None


def _memory(adjust: int, ratio: int = 95, permill: int = 20) -> MemoryQOS:
    return MemoryQOS(
        enable=False,
        minLimitPercent=0,
        lowLimitPercent=0,
        throttlingPercent=0,
        wmarkRatio=ratio,
        wmarkScalePermill=permill,
        wmarkMinAdj=adjust,
        priorityEnable=0,
        priority=0,
        oomKillGroup=0,
    )


def _class(identity: int, core_expeller: bool, cat_end: int, memory: MemoryQOS) -> QOSClass:
    return QOSClass(
        cpuQOS=CPUQOS(enable=False, groupIdentity=identity, schedIdle=0, coreExpeller=core_expeller),
        memoryQOS=memory,
        blkioQOS=BlkIOQOS(enable=False),
        resctrlQOS=ResctrlQOS(enable=False, catRangeStartPercent=0, catRangeEndPercent=cat_end, mbaPercent=100),
        networkQOS=NetworkQOS(False, 0, 0, 0, 0),
    )


DEFAULT_RESOURCE_QOS = ResourceQOSStrategy(
    policies=QOSPolicies(cpuPolicy="groupIdentity", netQOSPolicy="tc"),
    lsrClass=_class(2, True, 100, _memory(-25)),
    lsClass=_class(2, True, 100, _memory(-25)),
    beClass=_class(-1, False, 30, _memory(50)),
    systemClass=_class(0, False, 100, _memory(0, ratio=0, permill=50)),
    cgroupRoot=QOSClass(blkioQOS=BlkIOQOS(enable=False)),
)

# What koordlet puts in place of the values of a part that is not enabled.
_NONE_CPU = CPUQOS(enable=False, groupIdentity=0, schedIdle=0, coreExpeller=False)
_NONE_MEMORY = _memory(0, ratio=0, permill=50)
_NONE_RESCTRL = ResctrlQOS(enable=False, catRangeStartPercent=0, catRangeEndPercent=100, mbaPercent=100)
_CLASSES_OF_PODS = ("lsrClass", "lsClass", "beClass")


def without_disabled(strategy: ResourceQOSStrategy) -> ResourceQOSStrategy:
    """Return the strategy with each part of LSR, LS and BE that is not enabled set to what changes nothing.

    The classes `systemClass` and `cgroupRoot`, and the parts blkioQOS and networkQOS, stay as they are.
    """
    changes: dict[str, Any] = {}
    for name in _CLASSES_OF_PODS:
        of_class: QOSClass | None = getattr(strategy, name)
        if of_class is None:
            continue
        changes[name] = replace(
            of_class,
            cpuQOS=of_class.cpuQOS if of_class.cpuQOS and of_class.cpuQOS.enable else _NONE_CPU,
            memoryQOS=of_class.memoryQOS if of_class.memoryQOS and of_class.memoryQOS.enable else _NONE_MEMORY,
            resctrlQOS=of_class.resctrlQOS if of_class.resctrlQOS and of_class.resctrlQOS.enable else _NONE_RESCTRL,
        )
    return replace(strategy, **changes)
