"""What is recorded of pods and PodDisruptionBudgets: what decisions read, within a budget of each namespace. Pure.

Tenants change annotations, labels, owners, requests and status of each of their pods as often as they like. Each change
is a record, at each pace, so it takes from how far back the recording of all pods reaches.
"""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from koordebpf.decision.frames import CONDITIONS, LABELS
from koordebpf.kube.cache.objects import OwnerReference, Pod, PodCondition, PodDisruptionBudget
from koordebpf.store.write_budget import Bucket
from koordebpf.units import KIB, NS_PER_S

_MAX_VALUE = 4 * KIB  # characters of an annotation. Why: people's have some hundred
_MAX_POD = 16 * KIB  # of all annotations of a pod, and of all its labels
_MAX_NAME = 253  # of an owner, as of every object
# Encoded, of all pods of a namespace. Why: 100 pods with 1.3 KiB each above the usual; each shard has them again.
_MAX_NAMESPACE = 128 * KIB
_USUAL = 2 * KIB  # of these each pod has so much. Why: three containers with all that is recorded of them
_SHORT_VALUE = 64  # as long as a label's value may be
_SHORT_LABELS = KIB
_SHORT_LIST = 16  # containers, volumes …
# What changes may take. Why: 6 MiB a day, as much as 110 pods leave of the pace `day` (tests/bench/recorder.py).
_BURST = 64 * KIB
_PER_S = 64
_CHANGE = 2 * KIB  # of a round with changes, beside these: its record, and a part of the next one that needs no other
# Changes of the status of an object that its namespace does not pay for. Why: a pod's start has five.
_STATUS_AT_ONCE = 8
_STATUS_EACH_NS = 300 * NS_PER_S
_MAX_STATUS = 4 * KIB

T = TypeVar("T", Pod, PodDisruptionBudget)


class RecordedObjects:
    """Remembers what was recorded of each object, and what each namespace has left.

    One that changes while its namespace has nothing left is recorded as it was before, until there is enough again. The
    phase of a pod, that it is being deleted, and some changes of its status are recorded all the same. A new pod is
    recorded then without its long annotations and uncommon labels, and with the first of its containers; a
    PodDisruptionBudget is left out.
    """

    def __init__(self) -> None:
        budgets = _Budgets()
        self._pods = _Pods(budgets)
        self._pdbs = _Pdbs(budgets)

    def pods(self, pods: Sequence[Pod], keys: frozenset[str], now_ns: int) -> tuple[Pod, ...]:
        """Return what is recorded of the pods; the same tuple as long as nothing of it changes.

        Args:
            pods: the first ones have what their namespace may have.
            keys: of annotations that decisions read; other annotations are not recorded.
            now_ns: CLOCK_MONOTONIC.
        """
        self._pods.use(keys)
        return self._pods.recorded(pods, now_ns)

    def pdbs(self, pdbs: Sequence[PodDisruptionBudget], now_ns: int) -> tuple[PodDisruptionBudget, ...]:
        """Return what is recorded of the PodDisruptionBudgets, as `pods`."""
        return self._pdbs.recorded(pdbs, now_ns)


class _Budgets:
    def __init__(self) -> None:
        self._left: dict[str, tuple[float, int]] = {}  # bytes, and when that was so

    def spend(self, namespace: str, n_bytes: int, now_ns: int) -> bool:
        left, at_ns = self._left.get(namespace, (float(_BURST), now_ns))
        left = min(left + max(now_ns - at_ns, 0) * _PER_S / NS_PER_S, _BURST)
        is_enough = n_bytes <= left
        self._left[namespace] = (left - n_bytes if is_enough else left, now_ns)
        return is_enough

    # One that is full again is as one that was never seen.
    def forget(self, namespaces: Iterable[str], now_ns: int) -> None:
        kept = set(namespaces)
        for name, (_, at_ns) in list(self._left.items()):
            if name not in kept and (now_ns - at_ns) * _PER_S >= _BURST * NS_PER_S:
                del self._left[name]


class _Known(NamedTuple, Generic[T]):
    given: T | None  # None: something of it is not recorded yet
    recorded: T
    size: int


class _Kind(abc.ABC, Generic[T]):
    # Of each object what came, and what is recorded of it.
    def __init__(self, budgets: _Budgets) -> None:
        self._budgets = budgets
        self._statuses: dict[str, Bucket] = {}  # of each object: changes of it without its namespace's budget
        self._given: Sequence[T] | None = None  # None: something of it is not recorded yet, or nothing came yet
        self._found: tuple[T, ...] = ()
        self._known: dict[str, _Known[T]] = {}
        self._paid: set[str] = set()  # namespaces that have a change in this round
        self._is_first = True

    @abc.abstractmethod
    def whole(self, each: T) -> T:
        """Return what is recorded of an object where its namespace has enough left."""

    @abc.abstractmethod
    def short(self, whole: T) -> T | None:
        """Return what is recorded of it in any case; None: nothing."""

    @abc.abstractmethod
    def as_before(self, last: T, now: T) -> T:
        """Return it as it was, with what is recorded of it as it is now in any case."""

    @abc.abstractmethod
    def with_status(self, last: T, now: T) -> T:
        """Return it as it was, with the status that it has now."""

    def size(self, each: T) -> int:
        """Return how many bytes it is encoded."""
        return len(msgspec.json.encode(each))

    def begin(self) -> None:
        """Start again with what all objects of a namespace may have together."""

    def count(self, each: T, size: int) -> None:
        """Note what is recorded of one."""

    def recorded(self, given: Sequence[T], now_ns: int) -> tuple[T, ...]:
        if given is self._given:
            return self._found
        known: dict[str, _Known[T]] = {}
        is_held = False
        self._paid.clear()
        self.begin()
        for each in given:
            name = each.metadata.uid or each.key
            now = self._known.get(name)
            if now is None or now.given is not each:
                now = self._changed(name, each, now, now_ns)
            is_held |= now is None or now.given is None
            if now is not None:
                known[name] = now
                self.count(now.recorded, now.size)
        self._known, self._is_first = known, False
        self._given = None if is_held else given
        found = tuple(each.recorded for each in known.values())
        if found != self._found:
            self._found = found
        self._budgets.forget((each.metadata.namespace for each in found), now_ns)
        self._statuses = {name: bucket for name, bucket in self._statuses.items() if name in known}
        return self._found

    def _changed(self, name: str, each: T, before: _Known[T] | None, now_ns: int) -> _Known[T] | None:
        whole = self.whole(each)
        last = None if before is None else before.recorded
        same = self.short(whole) if last is None else self.as_before(last, whole)
        if self._is_first or same == whole:
            return self._recorded(each, whole, before)
        fresh = None if same is None else self.with_status(same, whole)
        has_status = fresh is not None and fresh != same and self._may_change_status(name, now_ns)
        if (has_status and fresh == whole) or self._pays(whole, now_ns):
            return self._recorded(each, whole, before)
        kept = fresh if has_status else same
        return None if kept is None else self._recorded(None, kept, before)

    def _may_change_status(self, name: str, now_ns: int) -> bool:
        return self._statuses.setdefault(name, Bucket(_STATUS_EACH_NS, _STATUS_AT_ONCE)).spend(now_ns)

    def _pays(self, whole: T, now_ns: int) -> bool:
        namespace = whole.metadata.namespace
        is_paid = self._budgets.spend(namespace, self.size(whole) + (0 if namespace in self._paid else _CHANGE), now_ns)
        if is_paid:
            self._paid.add(namespace)
        return is_paid

    def _recorded(self, given: T | None, recorded: T, before: _Known[T] | None) -> _Known[T]:
        if before is not None and recorded == before.recorded:
            return _Known(given, before.recorded, before.size)
        return _Known(given, recorded, self.size(recorded))


class _Pods(_Kind[Pod]):
    def __init__(self, budgets: _Budgets) -> None:
        super().__init__(budgets)
        self._keys: frozenset[str] = frozenset()
        self._sizes: dict[str, int] = {}  # by namespace

    def use(self, keys: frozenset[str]) -> None:
        if keys != self._keys:  # other settings read others: all is recorded again
            self._keys, self._given, self._known, self._is_first = keys, None, {}, True

    def begin(self) -> None:
        self._sizes = {}

    def count(self, each: Pod, size: int) -> None:
        namespace = each.metadata.namespace
        self._sizes[namespace] = self._sizes.get(namespace, 0) + max(size - _USUAL, 0)

    def whole(self, each: Pod) -> Pod:
        meta = each.metadata
        annotations = _annotations(meta.annotations, self._keys, _MAX_VALUE)
        found = _with(each, annotations, _labels(meta.labels, _MAX_POD), _owners(meta.ownerReferences))
        if (conditions := _conditions(each.status.conditions)) is not each.status.conditions:
            found = replace(found, status=replace(found.status, conditions=conditions))
        if self._sizes.get(meta.namespace, 0) + self.size(found) > _MAX_NAMESPACE:
            return self.short(found)
        return found

    def short(self, whole: Pod) -> Pod:
        meta, spec, status = whole.metadata, whole.spec, whole.status
        annotations = _annotations(meta.annotations, self._keys, _SHORT_VALUE)
        found = _with(whole, annotations, _labels(meta.labels, _SHORT_LABELS), meta.ownerReferences)
        lists = (spec.containers, spec.initContainers, spec.volumes, status.containerStatuses)
        others = (status.initContainerStatuses, status.ephemeralContainerStatuses)
        if all(len(each or ()) <= _SHORT_LIST for each in (*lists, *others)):
            return found
        return replace(
            found,
            spec=replace(
                spec,
                containers=spec.containers[:_SHORT_LIST],
                initContainers=_first(spec.initContainers),
                volumes=_first(spec.volumes),
            ),
            status=replace(
                status,
                containerStatuses=_first(status.containerStatuses),
                initContainerStatuses=_first(status.initContainerStatuses),
                ephemeralContainerStatuses=_first(status.ephemeralContainerStatuses),
            ),
            notKept=f"of each list all but {_SHORT_LIST}",
        )

    def as_before(self, last: Pod, now: Pod) -> Pod:
        meta, status = last.metadata, last.status
        if meta.deletionTimestamp is None and now.metadata.deletionTimestamp is not None:
            left_s = now.metadata.deletionGracePeriodSeconds
            meta = replace(meta, deletionTimestamp=now.metadata.deletionTimestamp, deletionGracePeriodSeconds=left_s)
        if status.phase != now.status.phase:
            status = replace(status, phase=now.status.phase)
        is_same = meta is last.metadata and status is last.status
        return last if is_same else replace(last, metadata=meta, status=status)

    def with_status(self, last: Pod, now: Pod) -> Pod:
        is_small = len(msgspec.json.encode(now.status)) <= _MAX_STATUS
        return replace(last, status=now.status) if is_small else last


class _Pdbs(_Kind[PodDisruptionBudget]):
    def whole(self, each: PodDisruptionBudget) -> PodDisruptionBudget:
        return each  # the source keeps them in a bounded form

    def short(self, whole: PodDisruptionBudget) -> PodDisruptionBudget | None:
        return whole if self.size(whole) <= _SHORT_LABELS else None

    def as_before(self, last: PodDisruptionBudget, now: PodDisruptionBudget) -> PodDisruptionBudget:
        return last

    def with_status(self, last: PodDisruptionBudget, now: PodDisruptionBudget) -> PodDisruptionBudget:
        return replace(last, metadata=now.metadata, status=now.status)


def _with(
    pod: Pod,
    annotations: Mapping[str, str] | None,
    labels: Mapping[str, str] | None,
    owners: list[OwnerReference] | None,
) -> Pod:
    meta = pod.metadata
    if annotations is meta.annotations and labels is meta.labels and owners is meta.ownerReferences:
        return pod
    return replace(pod, metadata=replace(meta, annotations=annotations, labels=labels, ownerReferences=owners))


def _first(given: list[T] | None) -> list[T] | None:
    return None if given is None else given[:_SHORT_LIST]


# A pod has one that controls it; a static pod has its Node besides.
def _owners(written: list[OwnerReference] | None) -> list[OwnerReference] | None:
    if written is None or (len(written) == 1 and written[0].controller and _is_named(written[0])):
        return written
    kept = [each for each in written if each.controller][:1]
    kept += [each for each in written if not each.controller and each.kind == "Node"][:1]
    return [each if _is_named(each) else replace(each, **_names(each)) for each in kept] or None


def _is_named(owner: OwnerReference) -> bool:
    return max(len(owner.kind), len(owner.name), len(owner.uid)) <= _MAX_NAME


def _names(owner: OwnerReference) -> dict[str, str]:
    names = {"kind": owner.kind, "name": owner.name, "uid": owner.uid}
    return {field: name if len(name) <= _MAX_NAME else _hash(name) for field, name in names.items()}


def _conditions(written: list[PodCondition] | None) -> list[PodCondition] | None:
    if written is None or all(each.type in CONDITIONS for each in written):
        return written
    return [each for each in written if each.type in CONDITIONS] or None


# Those of these keys; of one that is too long its hash, so that it is seen that there was one, and whether it changed.
def _annotations(written: dict[str, str] | None, keys: frozenset[str], most: int) -> dict[str, str] | None:
    if written is None or (
        written.keys() <= keys and _length(written) <= _MAX_POD and all(len(each) <= most for each in written.values())
    ):
        return written
    kept: dict[str, str] = {}
    left = _MAX_POD
    for key, value in sorted(written.items(), key=lambda each: len(each[1])):
        if key in keys:
            kept[key] = value if len(value) <= min(most, left) else _hash(value)
            left -= len(kept[key])
    return kept or None


# Those that decisions read by their own names first, then the short ones.
def _labels(written: dict[str, str] | None, most: int) -> dict[str, str] | None:
    if written is None or _length(written) <= most:
        return written
    kept: dict[str, str] = {}
    for key, value in sorted(written.items(), key=lambda each: (each[0] not in LABELS, len(each[0]) + len(each[1]))):
        most -= len(key) + len(value)
        if most < 0:
            break
        kept[key] = value
    return kept or None


def _length(texts: Mapping[str, str] | None) -> int:
    return sum(len(key) + len(value) for key, value in texts.items()) if texts else 0


# Shorter than `_SHORT_VALUE`.
def _hash(value: str) -> str:
    return f"sha256:{hashlib.sha256(value.encode(errors='surrogatepass')).hexdigest()[:16]} of {len(value)} characters"
