"""The one writer of cgroup files on a node, and its journal: every strategy writes through it under its own name."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from koordebpf.act.writer.change import FileChange
from koordebpf.act.writer.journal import JOURNAL_PATH, OLD_LADDER_JOURNAL, Journal
from koordebpf.act.writer.overwritten import Overwritten
from koordebpf.act.writer.owners import LADDER
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.restore import restore_journal
from koordebpf.act.writer.settings import WriterSettings
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.decision.strategies import STRATEGIES, taken_over
from koordebpf.errors import ActuationError
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.io.degraded import Degraded
from koordebpf.kernel.io.loop import Loop
from koordebpf.units import NS_PER_MS

log = logging.getLogger(__name__)

_RESETS_REST_NS = 100 * NS_PER_MS  # Why: several resets come with a pod that starts

# Who has a file that can have one value only: an emergency measure first, then strategies in their order.
PRECEDENCE = (LADDER, *(each.name for each in STRATEGIES))


def open_node_writer(
    settings: WriterSettings,
    folder: Path | None,
    tell: Callable[[FileChange], None],
    loop: Loop,
    stack: contextlib.ExitStack,
    feature_gates: Mapping[str, bool] = {},
) -> CgroupWriter:
    """Return the writer, after what an agent that was killed has left in force is restored.

    What strategies wrote stays that are on and are taken over.

    Args:
        settings: how it writes.
        folder: of the one agent that acts on the node, for the journal. None: dry run.
        tell: gets each change of a file, done or not.
        loop: is woken when systemd has reset a slice.
        stack: closes the journal.
        feature_gates: of the agent.
    Without a journal it writes nothing, until there is one.

    Raises:  SupportError: there is no cgroup hierarchy.
    """
    places = Places(find_controllers())
    if folder is None:
        return CgroupWriter(places, None, settings, audit=tell, precedence=PRECEDENCE)
    now_ns = time.monotonic_ns()
    _restore_ladder(folder / OLD_LADDER_JOURNAL, places, now_ns, tell, stack)
    journal = stack.enter_context(Journal(folder / JOURNAL_PATH.name, may_lack=True))
    writer = CgroupWriter(places, journal, settings, enforce=True, audit=tell, precedence=PRECEDENCE)
    writer.overwritten = _watch_resets(loop, stack)
    owners = {owner for original in journal.originals.values() for owner in original.owners}
    try:
        for owner in sorted(owners - taken_over(feature_gates)):
            writer.restore(now_ns, owner=owner)
    except OSError as error:
        log.warning("%s: %s: what was written is restored, and would be once more", journal.path, error.strerror)
    return writer


def _restore_ladder(
    path: Path, places: Places, now_ns: int, tell: Callable[[FileChange], None], stack: contextlib.ExitStack
) -> None:
    degraded = Degraded(path, "what an old agent's ladder wrote stays as it is")
    stack.callback(degraded.end)  # it is shown for as long as the agent runs
    try:
        changes = restore_journal(path, places, now_ns).changes
    except (ActuationError, OSError) as error:
        degraded.report(str(error).removeprefix(f"{path}: "))
        return
    for change in changes:
        tell(change)


def _watch_resets(loop: Loop, stack: contextlib.ExitStack) -> Overwritten | None:
    try:
        overwritten = stack.enter_context(Overwritten())
    except OSError as error:
        log.warning("what systemd resets is seen late: inotify: %s", error.strerror)
        return None
    loop.watch(overwritten.fileno(), overwritten.see, rest_ns=_RESETS_REST_NS)
    stack.callback(loop.unwatch, overwritten.fileno())
    return overwritten
