"""Words that tell nothing about who runs what: they stay where names are replaced. Derived from the types. Pure."""

from __future__ import annotations

import contextlib
import enum
import functools
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from koordebpf.decision.pod_keys import ANNOTATIONS, LABELS
from koordebpf.decision.strategies import FEATURE_GATES, PARTS, STRATEGIES
from koordebpf.decision.tick_frame import TickFrame
from koordebpf.jobs.prediction.predict import RAW_ALLOCATABLE_ANNOTATION
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.cpu_normalization import RATIO_ANNOTATION
from koordebpf.slo.manager import keys as configmap
from koordebpf.slo.manager.effective import BANDWIDTH_ANNOTATION
from koordebpf.slo.pods.cpu_placement import (
    MANAGER_POLICY_ANNOTATION,
    POD_ALLOCATIONS_ANNOTATION,
    RESERVATION_ANNOTATION,
    SYSTEM_QOS_ANNOTATION,
)
from koordebpf.slo.pods.resource_status import BE_SHARED_POOLS_ANNOTATION, SHARED_POOLS_ANNOTATION
from koordebpf.slo.spec import NodeSLOSpec
from koordebpf.state.outcome import Outcome
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY, KATALYST_RESOURCES, MID_CPU, MID_MEMORY
from koordebpf.store.recorder.events import ROUNDS_LOST, SIGNALS_SEEN
from koordebpf.store.recorder.values import RecordedEvent, RoundObjects
from koordebpf.store.sink import EVENTS

_ROOTS = (TickFrame, RoundObjects, NodeSLOSpec, Outcome, RecordedEvent, *EVENTS)
KINDS = frozenset({*(each.__name__ for each in EVENTS), ROUNDS_LOST, SIGNALS_SEEN})
RESOURCES = frozenset({"cpu", "memory", BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY, *KATALYST_RESOURCES})
# Of fields without a type of their own: what the API server, the kubelet and the kernel write there.
_OTHERS = frozenset(
    """
    Pending Running Succeeded Failed Unknown True False true false Guaranteed Burstable BestEffort Always Never
    OnFailure Ready Initialized ContainersReady PodScheduled PodReadyToStartContainers DisruptionTarget
    PodResizePending PodResizeInProgress Memory HugePages In NotIn Exists DoesNotExist IfHealthyBudget AlwaysAllow
    Node NodeSLO Pod v1 v1alpha1 LSE LSR LS BE SYSTEM koord-prod koord-mid koord-batch koord-free
    system-node-critical system-cluster-critical none auto policy rbps wbps riops wiops target max default amd64
    arm64 linux api file http evicted dedicated_cores shared_cores reclaimed_cores system_cores containerd cri-o docker
    """.split()  # noqa: SIM905 - sixty lines else
)
# Of Node and NodeResourceTopology, which tenants do not write.
OF_NODES = frozenset(
    {
        BANDWIDTH_ANNOTATION,
        BE_SHARED_POOLS_ANNOTATION,
        MANAGER_POLICY_ANNOTATION,
        POD_ALLOCATIONS_ANNOTATION,
        RATIO_ANNOTATION,
        RAW_ALLOCATABLE_ANNOTATION,
        RESERVATION_ANNOTATION,
        SHARED_POOLS_ANNOTATION,
        SYSTEM_QOS_ANNOTATION,
        "kubernetes.io/arch",
        "kubernetes.io/os",
    }
)
_CONFIGMAP = tuple(value for name, value in vars(configmap).items() if name.endswith("_KEY"))
_SELECTOR = ("matchLabels", "matchExpressions", "operator", "key", "values", "apiVersion", "kind", "spec", "status")
_LOOSE = ("rounds", "quality", "kernel")  # of events that are no type


@functools.cache
def words() -> frozenset[str]:
    """Return the values that a field of a recording may have, as its types say, and those of `_OTHERS`."""
    found = {value for kind in _structs() for each in _fields(kind) for value in _values(each.type)}
    found |= {tag for kind in _structs() if isinstance(tag := kind.__struct_config__.tag, str)}
    names = {*(each.name for each in STRATEGIES), *PARTS}
    return frozenset(
        {*found, *names, *_OTHERS, *KINDS, *RESOURCES, *FEATURE_GATES, *(each.value for each in CgroupFile)}
    )


@functools.cache
def keys() -> frozenset[str]:
    """Return the names of fields, and other keys of objects that are the same everywhere."""
    fields = {name for kind in _structs() for name in (*kind.__struct_fields__, *kind.__struct_encode_fields__)}
    fields |= {name for kind in _structs() if (name := kind.__struct_config__.tag_field) is not None}
    names = {*(each.name for each in STRATEGIES), *PARTS}
    return frozenset(
        {*fields, *names, *FEATURE_GATES, *RESOURCES, *ANNOTATIONS, *LABELS, *_CONFIGMAP, *_SELECTOR, *_LOOSE}
    )


@functools.cache
def _structs() -> tuple[type[msgspec.Struct], ...]:
    found: dict[type[msgspec.Struct], None] = {}
    # Also those of annotations, which no field names: their text is JSON.
    ours = [each for each in msgspec.Struct.__subclasses__() if each.__module__.startswith("koordebpf.")]
    waiting: list[Any] = [*_ROOTS, *ours]
    while waiting:
        each = waiting.pop()
        if isinstance(each, type) and issubclass(each, msgspec.Struct) and each not in found:
            found[each] = None
            waiting += [field.type for field in _fields(each)]
            waiting += each.__subclasses__()
        waiting += [inner for inner in typing.get_args(each) if not isinstance(inner, str | int | bytes)]
    return tuple(found)


def _fields(kind: type[msgspec.Struct]) -> tuple[Any, ...]:
    with contextlib.suppress(NameError):  # a name that is there for the type checker alone
        return msgspec.structs.fields(kind)
    return ()


def _values(kind: Any) -> Iterator[str]:
    if isinstance(kind, type) and issubclass(kind, enum.Enum) and not isinstance(kind, types.GenericAlias):
        yield from (each.value for each in kind if isinstance(each.value, str))
    for inner in typing.get_args(kind):
        if typing.get_origin(kind) is Literal:
            yield from (inner,) if isinstance(inner, str) else ()
        else:
            yield from _values(inner)
