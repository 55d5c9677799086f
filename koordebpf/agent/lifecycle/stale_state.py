"""Report state left by a previous agent (frozen pods, written files), and thaw what it froze.

For an agent that only watches. A pod that was frozen in the middle of a kill neither runs nor dies: it is thawed, by
the write-ahead log of the previous agent. That evicts no pod. All else is left to an agent that may write.
"""

from __future__ import annotations

from pathlib import Path

from koordebpf.act.evict.unfinished_kill import frozen_by, thaw_left
from koordebpf.act.writer.journal import JOURNAL_PATH, OLD_LADDER_JOURNAL, read_journal
from koordebpf.act.writer.owners import LADDER, SUPPRESS, has_owner
from koordebpf.act.writer.places import Original
from koordebpf.agent.lifecycle.node_lock import is_held
from koordebpf.errors import ActuationError, ConfigError
from koordebpf.store.wal import IN_FLIGHT_PATH, read_in_flight


def left_behind(folder: Path) -> tuple[str, ...]:
    """Thaw who was left frozen by a kill; return sentences that say what is left and what ends it.

    None where nothing is, or where an agent acts now.
    """
    journal, old = folder / JOURNAL_PATH.name, folder / OLD_LADDER_JOURNAL
    in_flight = folder / IN_FLIGHT_PATH.name
    try:
        written = _written(journal)
        climbed = sum(has_owner(each, LADDER) for each in written) + len(_written(old))
        held = sum(has_owner(each, SUPPRESS) for each in written)
        kills = read_in_flight(in_flight).kills
    except (ActuationError, ConfigError, OSError) as error:
        return (f"what an agent before this one may have left in force cannot be read: {error}",)
    if is_held(folder):
        return ()
    sentences = [
        f"an agent that was killed has left pod {kill.namespace}/{kill.name} frozen in the middle of a kill:"
        " it is thawed"
        for kill in kills
        if thaw_left(kill)
    ]
    frozen = sum(frozen_by(kill) is not None for kill in kills)
    if climbed or frozen:
        sentences.append(
            f"an agent that was killed has left {climbed} files of its ladder written and {frozen} pods frozen; one"
            f" with --enforce ends that, or: koordebpf restore --journal {old if old.exists() else journal} --in-flight"
            f" {in_flight}"
        )
    if held:
        sentences.append(
            f"an agent that ended has left {held} files as suppression wrote them; one with --enforce continues from"
            f" there, or: koordebpf restore --journal {journal}"
        )
    return tuple(sentences)


def _written(journal: Path) -> list[Original]:
    return list(read_journal(journal)[0].values()) if journal.exists() else []
