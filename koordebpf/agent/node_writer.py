"""The one writer of cgroup files on a node, with its journal: every strategy writes through it under its own name.

Decisions of strategies that have no runner are carried out here.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from koordebpf.act.writer.change import FileChange
from koordebpf.act.writer.journal import JOURNAL_PATH, OLD_LADDER_JOURNAL, Journal
from koordebpf.act.writer.overwritten import Overwritten
from koordebpf.act.writer.owners import LADDER
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.restore import WAIT_S, restore_journal
from koordebpf.act.writer.settings import WriterSettings
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.collect.cpu.collector import CpuCollector
from koordebpf.decision.strategies import OWN_STRATEGIES, STRATEGIES, taken_over
from koordebpf.errors import ActuationError
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.io.degraded import Degraded
from koordebpf.kernel.io.loop import Loop
from koordebpf.policy.reconcile import DesiredState
from koordebpf.policy.strategy import GATE_OFF, Decision
from koordebpf.runner.runner import Runner
from koordebpf.state.view import NodeView
from koordebpf.store.node_lock import is_awaited
from koordebpf.units import NS_PER_MS

log = logging.getLogger(__name__)
_RESETS_REST_NS = 100 * NS_PER_MS  # Why: several resets come with a pod that starts
# Who has a file that can have one value only: an emergency measure first, then strategies in their order.
PRECEDENCE = (LADDER, *(each.name for each in STRATEGIES))


class OwnStrategies(Runner):
    """Remembers their states, writes their files, and restores what they want no more. Each owns its journal lines."""

    def __init__(self, writer: CgroupWriter, folder: Path | None = None) -> None:
        super().__init__("strategies")
        self._strategies = OWN_STRATEGIES
        self._wakes: dict[str, int] = {}  # by name: when the next round is due
        self._writer = writer
        self._folder = folder
        self._wanted: dict[str, Any] = {}  # by name: what was written last
        self._idle: set[str] = set()  # those whose gate is off and of which nothing is written

    def leave(self, names: Collection[str]) -> None:
        """Leave those strategies to their own runners."""
        self._strategies = tuple(each for each in self._strategies if each.name not in names)

    def due_ns(self, now_ns: int) -> int | None:
        """Return when the next round is due; None: no strategy has asked for one."""
        return min(self._wakes.values(), default=None)

    def poll_due(self, now_ns: int) -> bool:
        """Tell whether a strategy has asked for a round by now, and set whether one of those needs the CPUs measured.

        Where they cannot be, it asks again when they are measured by their own pace.
        """
        due = {name for name, at_ns in self._wakes.items() if now_ns >= at_ns}
        need_cpu = [each.name for each in self._strategies if each.needs_cpu and each.name in due] if due else []
        self._wakes |= dict.fromkeys(need_cpu, now_ns + CpuCollector.period_ns)
        self.needs_cpu = bool(need_cpu)
        return bool(due)

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Write what is wanted now, and restore what is wanted no more; where a round was skipped all stays.

        So does the wake of a strategy that was not asked.
        """
        now_ns = view.now_ns
        for each in self._strategies:
            made = decisions.get(each.name)
            if made is None:
                continue
            self.states[each.name] = made.state
            self._wakes.pop(each.name, None)
            if made.wake_at_ns is not None:
                self._wakes[each.name] = made.wake_at_ns
            if made.skipped == GATE_OFF and each.name in self._idle:
                continue
            if made.skipped in (None, GATE_OFF):
                wanted = made.writes, made.sysctls
                self._writer.apply(DesiredState(made.reason, *wanted), now_ns, each.name)
                is_new = self._wanted.get(each.name) != wanted or made.skipped == GATE_OFF
                if is_new and not each.undoes_itself:
                    self._writer.restore(now_ns, owner=each.name, unwanted=True)
                    self._wanted[each.name] = wanted
                (self._idle.add if made.skipped else self._idle.discard)(each.name)

    def close(self) -> None:
        """Restore everything, but what an agent that stands by continues from."""
        is_succeeded = self._folder is not None and is_awaited(self._folder)
        for each in self._strategies:
            if is_succeeded and each.is_taken_over:
                continue
            with contextlib.suppress(OSError):  # it is done; from the journal it would be done once more
                self._writer.restore(time.monotonic_ns(), owner=each.name, wait_s=WAIT_S)


def open_node_writer(
    settings: WriterSettings,
    folder: Path | None,
    tell: Callable[[FileChange], None],
    loop: Loop,
    stack: contextlib.ExitStack,
    feature_gates: Mapping[str, bool] = {},
) -> CgroupWriter:
    """Return the writer, after what an agent that was killed has left behind is restored.

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
