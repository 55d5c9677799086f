"""What is recorded of pods and PodDisruptionBudgets: what decisions read, within a budget of each namespace. Pure.

Tenants change a quarter of a megabyte of each of their pods as often as they like. Each change is a record, at each
pace, so it takes from how far back the recording of all pods reaches.
"""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from koordebpf.kube.cache.objects import Pod, PodDisruptionBudget
from koordebpf.policy.pod_keys import LABELS
from koordebpf.units import KIB, NS_PER_S

_MAX_VALUE = 4 * KIB  # characters of an annotation. Why: people's have some hundred
_MAX_POD = 16 * KIB  # of all annotations of a pod, and of all its labels
_MAX_NAMESPACE = 128 * KIB  # of all pods of a namespace. Why: 100 pods with 1.3 KiB each; each shard has them again
_SHORT_VALUE = 64  # as long as a label's value may be
_SHORT_LABELS = KIB
# What changes may take. Why: 6 MiB a day, as much as 110 pods leave of the pace `day` (tests/bench/recorder.py).
_BURST = 64 * KIB
_PER_S = 64
_CHANGE = 2 * KIB  # of a round with changes, beside these: its record, and a part of the next one that needs no other

T = TypeVar("T", Pod, PodDisruptionBudget)


class RecordedObjects:
    """Remembers what was recorded of each object, and what each namespace has left.

    One that changes while its namespace has nothing left is recorded as it was before, until there is enough again. A
    new pod is recorded then without its long annotations and uncommon labels; a PodDisruptionBudget is left out.
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


class _Kind(abc.ABC, Generic[T]):
    # Of each object what came, and what is recorded of it. The text of an object is what its tenant writes into it.
    def __init__(self, budgets: _Budgets) -> None:
        self._budgets = budgets
        self._given: Sequence[T] | None = None  # None: something of it is held back, or nothing came yet
        self._found: tuple[T, ...] = ()
        self._known: dict[str, tuple[T | None, T]] = {}  # None: it is held back
        self._paid: set[str] = set()  # namespaces that have a change in this round
        self._is_first = True

    @abc.abstractmethod
    def whole(self, each: T) -> T:
        """Return what is recorded of an object where its namespace has enough left."""

    @abc.abstractmethod
    def short(self, whole: T) -> T | None:
        """Return what is recorded of it in any case; None: nothing."""

    @abc.abstractmethod
    def size(self, each: T) -> int:
        """Return the characters of its text."""

    @abc.abstractmethod
    def with_text_of(self, last: T, now: T) -> T:
        """Return it as it is now, with the text that it had."""

    def begin(self) -> None:
        """Start again with what all objects of a namespace may have together."""

    def count(self, each: T) -> None:
        """Note what is recorded of one."""

    def recorded(self, given: Sequence[T], now_ns: int) -> tuple[T, ...]:
        if given is self._given:
            return self._found
        known: dict[str, tuple[T | None, T]] = {}
        is_held = False
        self._paid.clear()
        self.begin()
        for each in given:
            name = each.metadata.uid or each.key
            before = self._known.get(name)
            now = before if before is not None and before[0] is each else self._changed(each, before, now_ns)
            is_held |= now is None or now[0] is None
            if now is not None:
                known[name] = now
                self.count(now[1])
        self._known, self._is_first = known, False
        self._given = None if is_held else given
        found = tuple(each for _, each in known.values())
        if found != self._found:
            self._found = found
        self._budgets.forget((each.metadata.namespace for each in found), now_ns)
        return self._found

    def _changed(self, each: T, before: tuple[T | None, T] | None, now_ns: int) -> tuple[T | None, T] | None:
        whole = self.whole(each)
        same = self.short(whole) if before is None else self.with_text_of(before[1], whole)
        if self._is_first or same == whole:
            return each, whole
        namespace = each.metadata.namespace
        if self._budgets.spend(namespace, self.size(whole) + (0 if namespace in self._paid else _CHANGE), now_ns):
            self._paid.add(namespace)
            return each, whole
        return None if same is None else (None, same)


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

    def count(self, each: Pod) -> None:
        namespace = each.metadata.namespace
        self._sizes[namespace] = self._sizes.get(namespace, 0) + self.size(each)

    def whole(self, each: Pod) -> Pod:
        meta = each.metadata
        annotations = _annotations(meta.annotations, self._keys, _MAX_VALUE)
        found = _with(each, annotations, _labels(meta.labels, _MAX_POD))
        if self._sizes.get(meta.namespace, 0) + self.size(found) > _MAX_NAMESPACE:
            return self.short(found)
        return found

    def short(self, whole: Pod) -> Pod:
        meta = whole.metadata
        annotations = _annotations(meta.annotations, self._keys, _SHORT_VALUE)
        return _with(whole, annotations, _labels(meta.labels, _SHORT_LABELS))

    def size(self, each: Pod) -> int:
        return _length(each.metadata.annotations) + _length(each.metadata.labels)

    def with_text_of(self, last: Pod, now: Pod) -> Pod:
        return _with(now, last.metadata.annotations, last.metadata.labels)


class _Pdbs(_Kind[PodDisruptionBudget]):
    def whole(self, each: PodDisruptionBudget) -> PodDisruptionBudget:
        return each  # the source keeps them in a bounded form

    def short(self, whole: PodDisruptionBudget) -> PodDisruptionBudget | None:
        return whole if self.size(whole) <= _SHORT_LABELS else None

    def size(self, each: PodDisruptionBudget) -> int:
        return len(msgspec.json.encode(each.spec))

    def with_text_of(self, last: PodDisruptionBudget, now: PodDisruptionBudget) -> PodDisruptionBudget:
        return replace(now, spec=last.spec)


def _with(pod: Pod, annotations: Mapping[str, str] | None, labels: Mapping[str, str] | None) -> Pod:
    meta = pod.metadata
    if annotations is meta.annotations and labels is meta.labels:
        return pod
    return replace(pod, metadata=replace(meta, annotations=annotations, labels=labels))


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
