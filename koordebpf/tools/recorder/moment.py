"""One moment out of whatever file a person names: a frame, lines of an agent's --frames, or a recording."""

from __future__ import annotations

import sys
from pathlib import Path

from koordebpf.decision.tick_frame import TickFrame
from koordebpf.errors import ConfigError, unreadable
from koordebpf.store.frames import is_recorded_tick, read_ticks
from koordebpf.store.recorder.magic import is_recording_path
from koordebpf.tools.plan import Case, case_of_tick, read_case


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
    return read_case(_read(path), path)


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


def _read(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
