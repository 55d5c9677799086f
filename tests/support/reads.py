"""Which measured fields a decision reads, by watching it: nothing is declared, so nothing can be forgotten."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from koordebpf.decision.decide_tick import TickFrame, tick_view
from koordebpf.decision.strategies import PARTS, STRATEGIES, settings_of
from koordebpf.state.measured import Measured
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.pods.requests import PodTerms
from koordebpf.state.view import NodeView, PodView
from koordebpf.strategies.block_io.decide import BLOCK_IO
from koordebpf.strategies.block_io.values import BlockIOView, block_io_view
from koordebpf.strategies.cpu_burst.decide import CPU_BURST
from koordebpf.strategies.cpu_burst.values import BurstView, burst_view
from koordebpf.strategies.hooks.decide import HOOKS_PART
from koordebpf.strategies.hooks.values import HookView, hook_view
from koordebpf.strategies.katalyst.decide import KATALYST_EVICTION
from koordebpf.strategies.katalyst.inner import INNER, choose_inside, judge_inside
from koordebpf.strategies.katalyst.plugin import Seen, candidates, katalyst_pods
from koordebpf.strategies.katalyst.values import KatalystMeasured, PluginAnswer
from koordebpf.strategies.memory_qos.decide import MEMORY_QOS
from koordebpf.strategies.memory_qos.values import MemoryQosView, memory_qos_view

_NOT_MEASURED = (PodFacts, PodTerms, PluginAnswer)  # what pods ask for, and what a decision makes
_OF_MEASUREMENTS = ("koordebpf.state.", "koordebpf.strategies.")
_OF_OBJECTS = frozenset({"annotations", "labels", "own", "problems"})  # as a pod or NodeSLO has them


class Reads:
    """The fields that were read, as Type.field; `filled` are those of them that had a value at least once."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.filled: set[str] = set()

    def part(self, name: str, measured: object) -> None:
        """Note that a strategy's part was read."""
        self.read.add(f"Measured.parts.{name}")
        if measured is not None:
            self.filled.add(f"Measured.parts.{name}")


def measured_types() -> list[type[msgspec.Struct]]:
    """Return every type of what is measured, and of what a decision sees of it."""
    found: dict[type[msgspec.Struct], None] = {}
    _collect(NodeView, found)
    _collect(PodView, found)
    _collect(Measured, found)
    for each in (*PARTS.values(), BlockIOView, BurstView, HookView, MemoryQosView):
        _collect(each, found)
    return list(found)


def may_be_absent(field: msgspec.structs.FieldInfo) -> bool:
    """Tell whether a field is there without a value: None, or no entry."""
    if field.name in _OF_OBJECTS:
        return False
    return type(None) in typing.get_args(field.type) or field.default in ((), None) or field.default_factory is dict


@contextlib.contextmanager
def watched_reads() -> Iterator[Reads]:
    """Note which fields that may be absent are read until the end, by anything in this process."""
    reads, before = Reads(), []
    for each in measured_types():
        for field in msgspec.structs.fields(each):
            if field.name in each.__dict__ and may_be_absent(field):
                descriptor = each.__dict__[field.name]
                before.append((each, field.name, descriptor))
                setattr(each, field.name, _Watched(f"{each.__name__}.{field.name}", descriptor, reads))
    try:
        yield reads
    finally:
        for owner, name, descriptor in before:
            setattr(owner, name, descriptor)


def filled_in(value: object) -> set[str]:
    """Return the fields, as Type.field, that have a value anywhere in a struct of structs, tuples and dicts."""
    found: set[str] = set()
    _fill(value, found, set())
    return found


def _fill(value: object, found: set[str], seen: set[int]) -> None:
    if isinstance(value, msgspec.Struct):
        if id(value) in seen:
            return
        seen.add(id(value))
        for name in value.__struct_fields__:
            if _has_value(inner := getattr(value, name)):
                found.add(f"{type(value).__name__}.{name}")
                _fill(inner, found, seen)
    elif isinstance(value, tuple | list):
        for inner in value:
            _fill(inner, found, seen)
    elif isinstance(value, Mapping):
        for inner in value.values():
            _fill(inner, found, seen)


def _has_value(value: object) -> bool:
    return value is not None and value != () and value != {}


class _Watched:
    def __init__(self, name: str, descriptor: Any, reads: Reads) -> None:
        self._name, self._descriptor, self._reads = name, descriptor, reads

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        if owner is None:
            return self
        value = self._descriptor.__get__(owner, kind)
        self._reads.read.add(self._name)
        if _has_value(value):
            self._reads.filled.add(self._name)
        return value

    def __set__(self, owner: Any, value: Any) -> None:
        self._descriptor.__set__(owner, value)


def _collect(kind: Any, found: dict[type[msgspec.Struct], None]) -> None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind in found or kind in _NOT_MEASURED or not kind.__module__.startswith(_OF_MEASUREMENTS):
            return
        found[kind] = None
        for field in msgspec.structs.fields(kind):
            _collect(field.type, found)
        return
    for inner in typing.get_args(kind):
        _collect(inner, found)


def strategy_views(view: NodeView) -> Iterator[object]:
    """Yield what strategies work out of a view before they decide, of those for which was measured."""
    parts, node = view.measured.parts, view.frame.node
    if (hooks := parts.get(HOOKS_PART)) is not None:
        yield hook_view(hooks, view.facts, node, view.frame.nodeResourceTopology)
    if (burst := CPU_BURST.measured_of(view)) is not None:
        yield burst_view(burst, view.facts, node)
    if (memory := MEMORY_QOS.measured_of(view)) is not None:
        yield memory_qos_view(memory, view.facts, node)
    if (block_io := BLOCK_IO.measured_of(view)) is not None:
        yield block_io_view(block_io, view.facts)


class Inputs:
    """What one strategy or plugin reads of frames, and in which words it says that it cannot judge one.

    `silent`: what was read and had no value in a frame of which it said nothing.
    """

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.filled: set[str] = set()
        self.silent: set[str] = set()
        self.lacks: set[str] = set()

    def take(self, reads: Reads, lacks: Collection[str]) -> None:
        """Take what was read of one frame."""
        self.read |= reads.read
        self.filled |= reads.filled
        self.lacks.update(lacks)
        if not lacks:
            self.silent |= reads.read - reads.filled


def inputs_of(ticks: Sequence[TickFrame]) -> dict[str, Inputs]:
    """Decide each frame once more by each strategy and each plugin inside alone, as by one that has just started."""
    found: dict[str, Inputs] = {}
    for tick in ticks:
        view = tick_view(tick)
        for strategy in STRATEGIES:
            if strategy.needs_cpu and not tick.has_cpu:
                continue
            shared = {"eviction": tick.settings.eviction} if strategy.reads_eviction else {}
            settings = settings_of(strategy, tick.settings)
            with watched_reads() as reads:
                measured = strategy.measured_of(view)
                made = strategy.decide(view, measured, strategy.state(), settings, **shared)
            if strategy.measured is not None:
                reads.part(strategy.part, measured)
            lacks = [*getattr(made, "problems", ())]
            lacks += [made.reason] if made.skipped not in (None, "not_due") else []
            found.setdefault(strategy.name, Inputs()).take(reads, lacks)
        settings = settings_of(KATALYST_EVICTION, tick.settings)
        active = katalyst_pods(view.pods, settings.qos.by_level())
        seen = Seen(
            view, KATALYST_EVICTION.measured_of(view) or KatalystMeasured(), active, candidates(active, settings.skip)
        )
        for plugin in INNER.values():
            with watched_reads() as reads:
                answers, states = judge_inside(seen, {}, settings.inner, plugin.name.__eq__)
                choose_inside(answers, {}, seen, states, settings.inner)
            problems = [each.problem for each in answers if each.problem]
            found.setdefault(plugin.name, Inputs()).take(reads, problems)
    return found
