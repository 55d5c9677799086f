"""What an agent that was killed has left in force, for one that only watches: it tells, and touches nothing."""

from __future__ import annotations

from pathlib import Path

from koordebpf.act.begun_kill import frozen_by
from koordebpf.act.ladder import LADDER_JOURNAL_PATH
from koordebpf.act.writer.journal import read_journal
from koordebpf.agent.sole_agent import is_held
from koordebpf.errors import ActuationError
from koordebpf.report.in_flight import IN_FLIGHT_PATH, read_left


def left_behind(folder: Path) -> str | None:
    """Return the sentence that says what is left and what ends it; None: nothing, or an agent acts there now."""
    journal, in_flight = folder / LADDER_JOURNAL_PATH.name, folder / IN_FLIGHT_PATH.name
    try:
        written = len(read_journal(journal)[0]) if journal.exists() else 0
        kills = read_left(in_flight.read_bytes()).kills if in_flight.exists() else ()
    except (ActuationError, OSError) as error:
        return f"what an agent before this one may have left in force cannot be read: {error}"
    frozen = sum(frozen_by(kill) is not None for kill in kills)
    if not (written or frozen) or is_held(folder):
        return None
    return (
        f"an agent that was killed has left {written} files of its ladder written and {frozen} pods frozen; one with"
        f" --enforce ends that, or: koordebpf restore --journal {journal} --in-flight {in_flight}"
    )
