"""Recordings simulated under other settings, also several of one (`--set SETTING=FROM..TO:STEP`), or held against one.

The latter compares a simulation with a recording of those settings.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from koordebpf.configuration.variant import checked_variant
from koordebpf.decision.decide_tick import TickFrame
from koordebpf.decision.what_if.observed import Lifetimes
from koordebpf.decision.what_if.simulation import Outcome, Recorded, Simulation
from koordebpf.decision.what_if.variant import Variant
from koordebpf.decision.what_if.world import HELD_NS, RELEASE_NS
from koordebpf.errors import ConfigError
from koordebpf.slo.strategies.resource_threshold import memory_evict_problem
from koordebpf.state.build import strategy_of_frame
from koordebpf.store.recorder.read import Recording, shards_of
from koordebpf.tools.recorder.rounds import open_recording, time_text, without_collector

MOST = 64  # configurations. Why: each costs as much as a replay, and no page shows more
_RANGE = re.compile(r"(?P<first>-?[0-9.]+?)\.\.(?P<last>-?[0-9.]+?)(?::(?P<step>[0-9.]+))?")
_RULE = "must be SETTING=VALUE, SETTING=A,B,C or SETTING=FROM..TO:STEP"
AS_RECORDED = "as recorded"
GOOD_PERCENT = 20  # evictions within that of what happened
Progress = Callable[[], None]  # called after each round


class Sweep(msgspec.Struct, frozen=True):
    """One setting and its values, as they are written in a file."""

    name: str
    values: tuple[Any, ...]


def parse_sweep(entry: str) -> Sweep:
    """Return what one --set names; the values are JSON, or plain text.

    Raises:  ConfigError: it has no value, or its range no end.
    """
    name, has_value, text = entry.partition("=")
    name, text = name.strip(), text.strip()
    if not has_value or not name or not text:
        raise ConfigError("--set", entry, _RULE)
    if found := _RANGE.fullmatch(text):
        return Sweep(name, _numbers(entry, found["first"], found["last"], found["step"] or "1"))
    if text[0] in '[{"':
        return Sweep(name, (_value(text),))
    return Sweep(name, tuple(_value(each.strip()) for each in text.split(",")))


def combinations(sweeps: Sequence[Sweep]) -> list[dict[str, Any]]:
    """Return every combination of the values, the last setting's values first.

    Raises:  ConfigError: a setting is there twice, or there are too many.
    """
    names = [each.name for each in sweeps]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("--set", name, "must be there once: SETTING=A,B,C has several values")
    count = 1
    for each in sweeps:
        count *= len(each.values)
    if count > MOST:
        raise ConfigError("--set", f"{count} combinations", f"must be {MOST} or fewer")
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*(each.values for each in sweeps))]


def _numbers(entry: str, first: str, last: str, step: str) -> tuple[Any, ...]:
    try:
        low, high, by = Decimal(first), Decimal(last), Decimal(step)
    except InvalidOperation:
        raise ConfigError("--set", entry, _RULE) from None
    if by <= 0 or high < low:
        raise ConfigError("--set", entry, "must go up, by a step above 0")
    if (high - low) / by >= MOST:
        raise ConfigError("--set", entry, f"must be {MOST} values or fewer")
    values = [low + by * number for number in range(int((high - low) / by) + 1)]
    return tuple(int(each) if each == each.to_integral_value() else float(each) for each in values)


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration. `settings` differ from the recorded ones; `problem`: why no memory threshold is effective."""

    settings: dict[str, Any]
    outcome: Outcome
    problem: str | None = None


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, as `koordebpf simulate --json` has it. The first configuration is the recorded one."""

    schema: Literal["koordebpf.simulation/v1"] = "koordebpf.simulation/v1"
    recordings: tuple[str, ...]
    first: str
    last: str
    recorded: Recorded
    configurations: tuple[Simulated, ...]
    release_ns: int
    held_ns: int
    problems: tuple[str, ...] = ()


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a simulation beside what happened. `off_percent` None: nothing happened, and something here."""

    figure: str
    simulated: float
    happened: float
    off_percent: float | None


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """A recording simulated under another one's settings, and what happened there.

    The figures of the other one are scaled to the simulated one's length. `is_good`: evictions within 20 %.
    """

    schema: Literal["koordebpf.validation/v1"] = "koordebpf.validation/v1"
    recording: str
    other: str
    minutes: float
    other_minutes: float
    settings: dict[str, tuple[Any, Any]]  # of the NodeSLO that differ: here, and there
    sections: tuple[str, ...]  # of the agents' own settings that differ
    figures: tuple[Compared, ...]
    apart_percent: float
    is_good: bool


def recordings_of(path: str) -> list[Recording]:
    """Return the recordings below a path: rounds of two nodes are never mixed.

    Raises:  ConfigError: it cannot be read, or nothing of it is a recording.
    """
    place = Path(path)
    try:
        folders = sorted({each.parent for each in shards_of(place)}) if place.is_dir() else []
    except OSError as error:
        raise ConfigError(path, error.strerror, "must be a readable recording") from error
    return [open_recording(str(each)) for each in folders] or [open_recording(path)]


def simulated(
    recordings: Sequence[Recording],
    combinations: Sequence[Mapping[str, Any]],
    *,
    release_ns: int | None = None,
    held_ns: int = HELD_NS,
    progress: Progress = lambda: None,
) -> SimulationResult:
    """Return what each combination of settings would have come to, and the recorded settings first.

    Args:
        recordings: each of one node; their results are added up.
        combinations: settings by name, as `checked_variant` takes them.
        release_ns: from an eviction until its memory is back; None: the median of what was recorded, else 1 s.
        held_ns: how long a pod that is not evicted here counts with its last known usage at most.
        progress: called after each round.

    Raises:  ConfigError: no such setting, not its type, or a recording has no round.
    """
    settings = [{}, *map(dict, combinations)]
    names = [AS_RECORDED, *(_name(each) for each in settings[1:])]
    released_ns = release_ns if release_ns is not None else released_after_ns(recordings)
    outcomes, recorded = [Outcome(name=name) for name in names], Recorded()
    problems: list[str | None] = [None] * len(names)
    for recording in recordings:
        variants = [checked_variant(name, each, "--set") for name, each in zip(names, settings, strict=True)]
        run = Simulation(variants, released_ns, held_ns, lifetimes_in(recording))
        last = _run(recording, run, progress)
        recorded = added(recorded, run.recorded)
        outcomes = [added(was, now) for was, now in zip(outcomes, run.results, strict=True)]
        problems = [was or _problem(each, last) for was, each in zip(problems, variants, strict=True)]
    times = [time for each in recordings for time in (each.times_ns[0], each.times_ns[-1])]
    return SimulationResult(
        recordings=tuple(str(each.path) for each in recordings),
        first=time_text(min(times)),
        last=time_text(max(times)),
        recorded=recorded,
        configurations=tuple(
            Simulated(settings=each, outcome=outcome, problem=problem)
            for each, outcome, problem in zip(settings, outcomes, problems, strict=True)
        ),
        release_ns=released_ns,
        held_ns=held_ns,
        problems=tuple(problem for each in recordings for problem in each.problems),
    )


def validated(
    recording: Recording,
    other: Recording,
    *,
    release_ns: int | None = None,
    held_ns: int = HELD_NS,
    progress: Progress = lambda: None,
) -> Validation:
    """Return how far a simulation of `recording` under the settings of `other` is from what happened in `other`.

    Raises:  ConfigError: one has no round, or settings that cannot be used.
    """
    there, here = _first(other), _first(recording)
    variant = _settings_of(there)
    released_ns = release_ns if release_ns is not None else released_after_ns([recording])
    run, real = Simulation([variant], released_ns, held_ns, lifetimes_in(recording)), Simulation([])
    _run(recording, run, progress)
    _run(other, real, progress)
    outcome, happened = run.results[0], real.recorded
    scale = run.recorded.passed_ns / happened.passed_ns if happened.passed_ns else 0.0
    names = ("evictions", "freed_bytes", "above_ns", "stall_ns")
    pairs = [(name, getattr(outcome, name), getattr(happened, name)) for name in names]
    figures = tuple(_compared(name, mine, was * scale) for name, mine, was in pairs if None not in (mine, was))
    off = figures[0].off_percent
    return Validation(
        recording=str(recording.path),
        other=str(other.path),
        minutes=run.recorded.passed_ns / 60e9,
        other_minutes=happened.passed_ns / 60e9,
        settings=_differing(here, there),
        sections=tuple(
            each
            for each in here.settings.__struct_fields__
            if getattr(here.settings, each) != getattr(there.settings, each)
        ),
        figures=figures,
        apart_percent=100 * outcome.apart_ns / max(run.recorded.passed_ns, 1),
        is_good=off is not None and abs(off) <= GOOD_PERCENT,
    )


def released_after_ns(recordings: Sequence[Recording]) -> int:
    """Return how long evicted pods took to release their memory: the median; 1 s where none did."""
    taken = [
        event.data["now_ns"] - event.data["entry"]["since_ns"]
        for recording in recordings
        for event in recording.events()
        if event.kind == "MemoryReleased"
    ]
    return round(statistics.median(taken)) if taken else RELEASE_NS


def lifetimes_in(recording: Recording) -> Lifetimes:
    """Return how long pods lived that ended by themselves in a recording."""
    found = Lifetimes()
    with without_collector():
        for each in recording.rounds():
            frame = each.tick.frame
            uids = {pod.uid for pod in frame.pods}
            found.observe(frame.measured.now_ns, uids, {sent.uid for sent in frame.evictions})
    return found


def added(was: Any, now: Any) -> Any:
    """Return two outcomes, or what was recorded of two nodes, as one: numbers are added, None counts as nothing."""
    changes: dict[str, Any] = {}
    for name in now.__struct_fields__:
        first, second = getattr(was, name), getattr(now, name)
        if isinstance(second, bool):
            changes[name] = first or second
        elif first is None or second is None:
            changes[name] = second if first is None else first
        elif not isinstance(second, str):
            changes[name] = first + second
    return replace(now, **changes)


def _run(recording: Recording, run: Simulation, progress: Progress) -> TickFrame:
    last = None
    with without_collector():
        for each in recording.rounds():
            run.observe(each.tick)
            last = each.tick
            progress()
    if last is None:
        raise ConfigError(str(recording.path), "no round", "must have rounds that can be read")
    return last


def _first(recording: Recording) -> TickFrame:
    found = next(recording.rounds(), None)
    if found is None:
        raise ConfigError(str(recording.path), "no round", "must have rounds that can be read")
    return found.tick


def _settings_of(tick: TickFrame) -> Variant:
    strategy = strategy_of_frame(tick.frame)
    fields = msgspec.structs.asdict(strategy) if strategy is not None else {}
    return Variant("the other one's", fields, tick.frame.featureGates, lambda _: tick.settings)


def _differing(here: TickFrame, there: TickFrame) -> dict[str, tuple[Any, Any]]:
    first, second = (msgspec.to_builtins(strategy_of_frame(each.frame)) or {} for each in (here, there))
    found = {name: (first.get(name), second.get(name)) for name in {**first, **second}}
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def _compared(figure: str, mine: float, happened: float) -> Compared:
    off = 0.0 if mine == happened else None if not happened else 100 * (mine - happened) / happened
    return Compared(figure=figure, simulated=mine, happened=happened, off_percent=off)


def _problem(variant: Variant, tick: TickFrame) -> str | None:
    strategy = strategy_of_frame(variant.applied(tick).frame)
    return "no strategy is known" if strategy is None else memory_evict_problem(strategy)


def _name(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())
