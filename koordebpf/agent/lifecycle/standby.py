"""Standby: take the node lock, and the state that its last holder left, at once or when another agent ends."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from koordebpf.act.evict.cgroup import finish_kill, frozen_by, thaw_left
from koordebpf.act.writer.journal import JOURNAL_PATH, OLD_LADDER_JOURNAL, read_journal
from koordebpf.act.writer.owners import LADDER, SUPPRESS, has_owner
from koordebpf.act.writer.places import Original
from koordebpf.collect.scope import NodeScope, folder_of
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import stays_at_exit
from koordebpf.errors import ActuationError, ConfigError
from koordebpf.kernel.io.loop import Loop
from koordebpf.kernel.proc.mounts import filesystem_of
from koordebpf.report.sentences import outcome_sentence
from koordebpf.store.handover import is_kept, settle
from koordebpf.store.node_lock import LockHeld, NodeLock, StandBy, is_held
from koordebpf.store.wal import IN_FLIGHT_PATH, InFlight, read_in_flight

log = logging.getLogger("koordebpf")
_HAND_OVER_S = 5.0  # Why: half of what a pod is given for its end
_LOOK_EVERY_S = 0.05
_IN_MEMORY = (None, "tmpfs", "ramfs")  # None: not known


# Report state left by a previous agent (frozen pods, written files), and thaw what it froze.
#
# For an agent that only watches. A pod that was frozen in the middle of a kill neither runs nor dies: it is thawed, by
# the write-ahead log of the previous agent. That evicts no pod. All else is left to an agent that may write.


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


class Acting(NamedTuple):
    """What only the agent that acts has: its folder, and its record of what it is carrying out."""

    folder: Path
    in_flight: InFlight


def acquire_node_lock(config: AgentConfig, scope: NodeScope, stack: contextlib.ExitStack) -> Acting | None:
    """Take the node lock, released by the stack; None: this agent only watches, or is to stand by.

    Raises:  ConfigError: another agent acts here and this one is not to stand by, or the folder cannot be written.
    """
    if not config.enforce:
        for sentence in left_behind(folder_of(config.run_dir, scope)):
            log.warning("%s", sentence)
        return None
    try:
        return _acting(NodeLock(config.run_dir, scope), config, stack)
    except LockHeld:
        if not config.stand_by:
            raise
    return None


def stand_by(
    config: AgentConfig,
    scope: NodeScope,
    loop: Loop,
    watch_until: Callable[[Callable[[], bool]], None],
    stack: contextlib.ExitStack,
) -> Acting | None:
    """Watch the node until the agent that acts on it ends, and take its lock; None: this agent is stopped first.

    Args:
        config: of the agent that acts then.
        scope: the node.
        loop: woken when it is this agent's turn; stopped when it is to end.
        watch_until: watches until what it is given says so, or the loop is stopped.
        stack: releases the lock.
    """
    acting = None
    waiting = StandBy(config.run_dir, scope, loop.wake)
    log.info("another agent acts on this node: this one watches until that one ends, and acts then")
    try:
        watch_until(lambda: waiting.sole is not None)
    finally:
        waiting.close()
        if sole := waiting.sole or _handed_over(config, scope, waiting.folder):
            acting = _acting(sole, config, stack)
    if acting is None:
        return None
    if loop.stopping:
        if not acting.in_flight.left:  # else the next agent reports it
            acting.in_flight.close()
        return None
    log.info("the agent before this one has ended: this one acts now")
    return acting


# What was kept for this agent is for no other: if it ends while it stands by it must restore that.
def _handed_over(config: AgentConfig, scope: NodeScope, folder: Path) -> NodeLock | None:
    deadline = time.monotonic() + _HAND_OVER_S
    while is_kept(folder) and time.monotonic() < deadline:
        with contextlib.suppress(LockHeld):
            return NodeLock(config.run_dir, scope)
        time.sleep(_LOOK_EVERY_S)
    return None


# Kills in flight are finished first: their pods may be frozen.
def _acting(sole: NodeLock, config: AgentConfig, stack: contextlib.ExitStack) -> Acting:
    stack.enter_context(sole)
    if (kind := filesystem_of(sole.folder)) not in _IN_MEMORY:
        log.warning("--run-dir %s is on %s: a slow disk delays evictions. Name a folder on a tmpfs", sole.folder, kind)
    stack.callback(settle, sole.folder, waits=stays_at_exit(config))
    in_flight = InFlight(sole.folder / IN_FLIGHT_PATH.name)
    for outcome in in_flight.finish(finish_kill):
        log.warning("%s", outcome_sentence(outcome))
    return Acting(sole.folder, in_flight)
