"""Pods as they are kept: what a tenant writes into one takes no more memory than `MAX_POD`, and the pod is never lost.

An API server takes 1.5 MB of an object. As many short labels, owners or volumes take seventeen times that in Python,
and the agents of a node with 110 such pods have 256 MiB.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from koordebpf.kube.cache.objects import Pod
from koordebpf.kube.cache.store import Identity, Table, decode_pod, decode_pod_event
from koordebpf.units import KIB

MAX_POD: Final = 192 * KIB  # in memory. Why: 100 containers with all that is read of them, or 150 KiB of annotations
_MOST_TIMES: Final = 17  # as many bytes in memory as in JSON: a label of one character without a value
_ENTRY: Final = 104  # of a dictionary that has just grown, beside key and value
_ITEM: Final = 8  # of a list
_MOST_TRIES: Final = 100  # that do not fit. Why: a tenant may have ten thousand, and change them each second

T = TypeVar("T")


class BoundedPods:
    """Decodes pods and leaves out what is above the bound, which `Pod.notKept` names.

    Args:
        keys: of annotations and labels that decisions read by their own names. They are kept before others, so that
              nothing that is written beside them hides them.
    """

    def __init__(self, keys: frozenset[str] = frozenset()) -> None:
        self._keys = keys

    def table(self, decode: Callable[[Pod], Pod] = lambda pod: pod) -> Table[Pod]:
        """Return a table of pods, each as `decode` makes it of what was read; its problems name what is not kept."""
        return Table("pods", lambda raw: decode(self._bounded(decode_pod(raw), len(memoryview(raw)))), _remark)

    def event(self, line: bytes) -> tuple[str, Identity, Pod] | None:
        """Decode a watch's line on a pod, as `decode_pod_event`."""
        if (found := decode_pod_event(line)) is None:
            return None
        kind, who, pod = found
        return kind, who, self._bounded(pod, len(line))

    def _bounded(self, pod: Pod, json_bytes: int) -> Pod:
        return pod if json_bytes * _MOST_TIMES <= MAX_POD or _size(pod) <= MAX_POD else _cut(pod, self._keys)


def _remark(pod: Pod) -> str:
    return f"pods: {pod.key} has more than {MAX_POD >> 10} KiB: {pod.notKept} are not kept" if pod.notKept else ""


# In memory, counted until it is too much.
def _size(value: object) -> int:
    total, waiting = 0, [value]
    while waiting and total <= MAX_POD:
        each = waiting.pop()
        total += sys.getsizeof(each)
        if isinstance(each, msgspec.Struct):
            waiting += [part for name in each.__struct_fields__ if (part := getattr(each, name)) is not None]
        elif isinstance(each, dict):
            waiting += each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return total


# Half is for what a pod asks for and has, and the rest for text: what decisions read by its name, owners, all others.
def _cut(pod: Pod, keys: frozenset[str]) -> Pod:
    meta, spec, status = pod.metadata, pod.spec, pod.status
    bare = Pod(
        replace(meta, labels=None, annotations=None, ownerReferences=None),
        replace(spec, containers=[], initContainers=None, volumes=None, resources=None),
        replace(
            status,
            conditions=None,
            containerStatuses=None,
            initContainerStatuses=None,
            ephemeralContainerStatuses=None,
            allocatedResources=None,
            resources=None,
        ),
    )
    room = _Room((MAX_POD - _size(bare)) // 2)
    resources = room.of_value(spec.resources, "resources of its own level")
    of_level = status.resources, status.allocatedResources
    containers = room.of_list(spec.containers, "containers") or []
    init = room.of_list(spec.initContainers, "init containers")
    status = replace(
        bare.status,
        # Those of Kubernetes have no prefix.
        conditions=room.of_list(status.conditions, "conditions", lambda each: "/" in each.type),
        containerStatuses=room.of_list(status.containerStatuses, "statuses of containers"),
        initContainerStatuses=room.of_list(status.initContainerStatuses, "statuses of init containers"),
        ephemeralContainerStatuses=room.of_list(status.ephemeralContainerStatuses, "statuses of ephemeral containers"),
        resources=room.of_value(of_level[0], "actual resources of its own level"),
        allocatedResources=room.of_value(of_level[1], "allocated resources of its own level"),
    )
    volumes = room.of_list(spec.volumes, "volumes")
    spec = replace(bare.spec, containers=containers, initContainers=init, volumes=volumes, resources=resources)
    room.grow((MAX_POD - _size(bare)) // 2)
    labels, annotations = room.named(meta.labels, keys), room.named(meta.annotations, keys)
    meta = replace(
        bare.metadata,
        ownerReferences=room.of_list(meta.ownerReferences, "owners", lambda each: not each.controller),
        labels=room.with_others(labels, meta.labels, "labels"),
        annotations=room.with_others(annotations, meta.annotations, "annotations"),
    )
    return replace(bare, metadata=meta, spec=spec, status=status, notKept=", ".join(room.missing))


class _Room:
    # What is left of the bound, and what found no place.
    def __init__(self, size: int) -> None:
        self._left = size
        self.missing: list[str] = []

    def of_value(self, given: T | None, what: str) -> T | None:
        found = None if given is None else self.of_list([given], what)
        return found[0] if found else None

    def of_list(self, given: list[T] | None, what: str, is_last: Callable[[T], bool] | None = None) -> list[T] | None:
        if given is None:
            return None
        kept: list[T] = []
        for at, each in enumerate(sorted(given, key=is_last) if is_last else given):
            if at - len(kept) >= _MOST_TRIES:
                break
            if self._spend(_ITEM + _size(each)):
                kept.append(each)
        self._record(len(given) - len(kept), len(given), what)
        return kept

    def grow(self, size: int) -> None:
        self._left += size

    # Small ones first: one that is large hides no other.
    def named(self, given: dict[str, str] | None, keys: frozenset[str]) -> dict[str, str]:
        found = sorted(keys & given.keys(), key=lambda key: len(given[key])) if given else ()
        return {key: given[key] for key in found if given and self._spend_entry(key, given[key])}

    def with_others(self, kept: dict[str, str], given: dict[str, str] | None, what: str) -> dict[str, str] | None:
        misses = 0
        for key, value in (given or {}).items():
            if key not in kept:
                if self._spend_entry(key, value):
                    kept[key] = value
                elif (misses := misses + 1) >= _MOST_TRIES:
                    break
        self._record(len(given or ()) - len(kept), len(given or ()), what)
        return kept or None

    def _spend_entry(self, key: str, value: str) -> bool:
        return self._spend(_ENTRY + sys.getsizeof(key) + sys.getsizeof(value))

    def _spend(self, size: int) -> bool:
        if size > self._left:
            return False
        self._left -= size
        return True

    def _record(self, count: int, of: int, what: str) -> None:
        if count:
            self.missing.append(f"{count} of {of} {what}")
