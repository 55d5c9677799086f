"""Rounds of a recording by number or time, and one moment out of whatever file a person names: a frame, --frames."""

from __future__ import annotations

import contextlib
import gc
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from koordebpf.decision.decide_tick import TickDecision, TickFrame, decide_tick, tick_view
from koordebpf.errors import ConfigError, unreadable
from koordebpf.kernel.io.regular_file import open_to_read
from koordebpf.state.pods.facts import PodFacts, facts_of_pods
from koordebpf.store.frames import is_recorded_tick, read_ticks
from koordebpf.store.recorder.magic import is_recording_path
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.rounds import ReadRound
from koordebpf.tools.plan import Case, case_of_tick, read_case
from koordebpf.units import NS_PER_S, format_utc


def case_at(path: str, decision: int | None, at: str | None) -> Case:
    """Return the case in a file; - is standard input. Of a recording by default the last decision, else the last round.

    Raises:  ConfigError: it cannot be read, is none of these, or has no such round.
    """
    if decision is not None and at is not None:
        raise ConfigError("--at", at, "excludes --decision")
    if path != "-" and is_recording_path(path):
        from koordebpf.tools.recorder.rounds import decision_of, open_recording, parse_time, round_at

        recording = open_recording(path)
        if at is not None:
            found = round_at(recording, parse_time("--at", at))
        elif decision is not None or recording.decisions:
            found = decision_of(recording, -1 if decision is None else decision)
        else:
            found = round_at(recording, recording.times_ns[-1])
        return case_of_tick(found.tick, path)
    if at is not None:
        raise ConfigError("--at", at, "needs a recording")
    if decision is not None:
        return case_of_tick(_tick_of_lines(path, decision), path)
    return read_case(_bytes_of(path), path)


def _tick_of_lines(path: str, number: int) -> TickFrame:
    place = Path(path)
    try:
        with place.open("rb") as file:
            if not is_recorded_tick(file.readline()):
                raise ConfigError(path, "--decision", "needs a recording, or a file of an agent's --frames")
        found = [each.tick for each in read_ticks(place) if b'"carried":{' in bytes(each.decision)]
    except OSError as error:
        raise unreadable(path, error) from error
    if not 1 <= abs(number) <= len(found):
        raise ConfigError("--decision", number, f"must be 1 to {len(found)}, or -1 for the last")
    return found[number - 1 if number > 0 else number]


def _bytes_of(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Let the garbage collector rest: rounds have no cycles, and it takes a fifth of the time of a replay."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class DecidesAgain:
    """Decides rounds again; what is read out of Pod objects is read once as long as they are the same."""

    def __init__(self) -> None:
        self._pods: object = None
        self._facts: Sequence[PodFacts] = ()

    def decide(self, tick: TickFrame) -> TickDecision:
        """Return the decision of a round.

        Raises:  ConfigError: a NodeSLO, ConfigMap or quantity in the frame is unusable.
        """
        if tick.frame.pods is not self._pods:
            self._facts, self._pods = facts_of_pods(tick.frame.pods), tick.frame.pods
        return decide_tick(tick, tick_view(tick, self._facts), self._facts)


def open_recording(path: str) -> Recording:
    """Return a recording.

    Raises:  ConfigError: it cannot be read, or is none; the message names the command that reads such a file.
    """
    place = Path(path)
    try:
        if not place.is_dir():
            _refuse_others(place)
        return Recording(place)
    except OSError as error:
        raise unreadable(path, error) from error


def _refuse_others(path: Path) -> None:
    with open_to_read(path, follows=True) as file:
        start = file.read(4096)
    if start.startswith(b"{"):
        raise ConfigError(str(path), "JSON", "is no recording: koordebpf plan reads frames, koordebpf explain an audit")


def decision_of(recording: Recording, number: int) -> ReadRound:
    """Return the round of a decision; the first is 1, the last one also −1.

    Raises:  ConfigError: there are not so many, or it cannot be read.
    """
    places = recording.decisions
    if not places:
        raise ConfigError(str(recording.path), f"{len(recording)} rounds", "has no round of which something was done")
    if not 1 <= abs(number) <= len(places):
        raise ConfigError("--decision", number, f"must be 1 to {len(places)}, or -1 for the last")
    return _read(recording, places[number - 1 if number > 0 else number])


def round_at(recording: Recording, wall_ns: int) -> ReadRound:
    """Return the last round at or before that time.

    Raises:  ConfigError: there is none, or it cannot be read.
    """
    place = place_at(recording, wall_ns)
    if place < 0:
        raise ConfigError("--at", time_text(wall_ns), f"must be {time_text(recording.times_ns[0])} or later")
    return _read(recording, place)


def place_at(recording: Recording, wall_ns: int) -> int:
    """Return the place of the last round at or before that time; −1: there is none."""
    return bisect_right(recording.times_ns, wall_ns) - 1


def _read(recording: Recording, place: int) -> ReadRound:
    found = recording.round(place)
    if found is None:
        raise ConfigError(str(recording.path), f"round {place + 1}", f"cannot be read: {recording.problems[-1]}")
    return found


def parse_time(option: str, text: str) -> int:
    """Return a time as nanoseconds since the epoch: RFC 3339, without a zone UTC, or seconds since the epoch.

    Raises:  ConfigError: it is neither.
    """
    try:
        return int(float(text) * NS_PER_S)
    except (ValueError, OverflowError):
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            option, text, "must be RFC 3339, as 2026-03-01T12:00:00Z, or seconds since the epoch"
        ) from error
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * NS_PER_S)


def time_text(wall_ns: int) -> str:
    """Return a time as RFC 3339 in UTC, with milliseconds."""
    return format_utc(wall_ns / NS_PER_S)
