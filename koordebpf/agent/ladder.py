"""Run the escalation ladder (brake, reclaim, freeze, evict, kill) and guarantee thaw."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable

from koordebpf.act.evict.actuator import Actuator
from koordebpf.act.ladder import LadderExecutor, PodDirectories
from koordebpf.act.reclaimer import Reclaimer
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.scope import NodeScope
from koordebpf.configuration.settings import AgentConfig
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.policy.ladder.climb import LadderStep
from koordebpf.policy.ladder.escalation import ENDS, LadderMemory
from koordebpf.policy.ladder_settings import LadderSettings, Rung

log = logging.getLogger("koordebpf")


class Ladder:
    """Carries out the rungs of one node, and remembers where the ladder is.

    Args:
        settings: which rungs, and when one has done enough.
        executor: carries out the rungs below `evict`.
        kill: carries out the rung `kill`.
    """

    def __init__(self, settings: LadderSettings, executor: LadderExecutor, *, kill: Actuator) -> None:
        self.kill = kill
        self.memory = LadderMemory()
        self.last_rung_ns: int | None = None  # now_ns of the view on which the last rung was started
        self._settings = settings
        self._executor = executor
        self._said = ""

    @property
    def reclaims(self) -> Counter[tuple[str, WriteResult]]:
        """Writes of memory.reclaim since the start, which are none of the writer, by file and result."""
        return self._executor.reclaims

    def due_ns(self, now_ns: int) -> int | None:
        """Return when the last rung is judged, or a freeze is at its end; None: neither is awaited."""
        state, times = self.memory.state, [self._thaw_ns()]
        if state.rung is not None and state.rung not in ENDS:
            times.append(state.since_ns + self._settings.settle_ns)
        return min((each for each in times if each is not None and each > now_ns), default=None)

    def thaw_overdue(self, now_ns: int) -> None:
        """End a freeze that has lasted as long as it may, whatever else the agent is kept from."""
        thaw_ns = self._thaw_ns()
        if thaw_ns is not None and now_ns >= thaw_ns:
            self.memory = self.memory.thawed()
            self._executor.undo(Rung.FREEZE, now_ns)
            log.info("ladder: thawed, since no pod may be frozen for longer")

    def hold(self, now_ns: int) -> None:
        """Keep what the rungs hold as it was written, and report what reclaim has brought."""
        self._executor.hold(now_ns)

    def carry_out(self, step: LadderStep, after: LadderMemory, now_ns: int) -> bool:
        """Carry a step out; tell whether that was possible. `after` is the memory then.

        Where it was not, the memory says so, and another step is to be decided on.
        """
        self._report(step.sentence, is_news=step.kind not in ("ground", "wait"))
        for each in step.undo:
            self._executor.undo(each.plan.rung, now_ns)
        started = step.begin
        if started is not None:
            self._executor.call_off()
        if started is not None and started.rung not in ENDS and not self._executor.begin(started, now_ns):
            self.memory = self.memory.without(started.rung)
            self._report(f"{started.rung.value} is not possible here", is_news=True)
            return False
        self.memory = after
        if started is not None:
            self.last_rung_ns = now_ns
        return True

    def _thaw_ns(self) -> int | None:
        since_ns = self._executor.frozen_ns
        return None if since_ns is None else since_ns + self._settings.freeze_max_ns

    def _report(self, sentence: str, *, is_news: bool) -> None:
        if is_news and sentence != self._said:
            self._said = sentence
            log.info("ladder: %s", sentence)


def open_ladder(
    config: AgentConfig,
    scope: NodeScope,
    index: CgroupIndex,
    writer: CgroupWriter,
    stack: contextlib.ExitStack,
    *,
    kill: Actuator,
    tell: Callable[[FileChange], None],
    wake: Callable[[], None],
) -> Ladder | None:
    """Return the ladder, None where none is configured.

    Args:
        config: the agent's.
        scope: the node.
        index: finds the path of a cgroup id.
        writer: of the node.
        stack: on its end everything is undone.
        kill: carries out the rung `kill`.
        tell: gets each change of a file, done or not.
        wake: called from another thread when a reclaim has ended.
    """
    settings = config.eviction.ladder
    if not settings.rungs - {Rung.EVICT}:
        return None
    names = ", ".join(rung.value for rung in Rung if rung in settings.rungs)
    log.info("ladder: its rungs are %s%s", names, " (dry run)" if writer.is_dry_run else "")
    places = Places(find_controllers())
    reclaimer = Reclaimer(wake) if not writer.is_dry_run and Rung.RECLAIM in settings.rungs else None
    directories = PodDirectories(scope.hierarchy, index.path, index.names_to_act_on)
    executor = LadderExecutor(directories, places, writer, reclaimer, tell)
    stack.callback(lambda: executor.close(time.monotonic_ns()))
    return Ladder(settings, executor, kill=kill)
