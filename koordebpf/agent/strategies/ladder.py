"""Run the escalation ladder (brake, reclaim, freeze, evict, kill) and guarantee thaw."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from msgspec.structs import replace

from koordebpf.act.evict.actuator import Actuator
from koordebpf.act.guards.rules import ClosedGuard, victim_guard
from koordebpf.act.ladder.executor import LadderExecutor, PodDirectories
from koordebpf.act.ladder.reclaim import Reclaimer
from koordebpf.act.writer.change import FileChange
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.agent.config.settings import AgentConfig
from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.scope import NodeScope
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.policy.ladder.climb import LadderState, next_rung
from koordebpf.policy.ladder_settings import LadderSettings, Rung
from koordebpf.policy.plan import Plan, RungPlan, Victim
from koordebpf.state.view import NodeView

log = logging.getLogger("koordebpf")

_ENDS = frozenset({Rung.EVICT, Rung.KILL})


class Ladder:
    """Climbs for one node, and remembers where it stands.

    Args:
        settings: which rungs, and when one has done enough.
        executor: carries out the rungs below `evict`.
        kill: carries out the rung `kill`.
        own_pod_uid: this agent's pod, which nothing is done to.
    """

    def __init__(
        self, settings: LadderSettings, executor: LadderExecutor, *, kill: Actuator, own_pod_uid: str | None
    ) -> None:
        self._settings = settings
        self._executor = executor
        self._kill = kill
        self._own_pod_uid = own_pod_uid
        self._state = LadderState()
        self._evicted: dict[str, tuple[str, Victim]] = {}  # feature and victim by uid, of evicted pods
        self._impossible: frozenset[Rung] = frozenset()  # found in this shortage
        self._said = ""
        self.last_rung_ns: int | None = None  # now_ns of the view on which the last rung was started

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Attempts to write since the start, by file and result."""
        return {(file, result.value): count for (file, result), count in self._executor.counts.items()}

    def due_ns(self, now_ns: int) -> int | None:
        """Return when the last rung is judged, or a freeze is at its end; None: neither is awaited."""
        state, times = self._state, [self._thaw_ns()]
        if state.rung is not None and state.rung not in _ENDS:
            times.append(state.since_ns + self._settings.settle_ns)
        return min((each for each in times if each is not None and each > now_ns), default=None)

    def thaw_overdue(self, now_ns: int) -> None:
        """End a freeze that has lasted as long as it may, whatever else the agent is kept from."""
        thaw_ns = self._thaw_ns()
        if thaw_ns is not None and now_ns >= thaw_ns:
            in_force = tuple(each for each in self._state.in_force if each.plan.rung is not Rung.FREEZE)
            self._state = replace(self._state, in_force=in_force)
            self._executor.undo(Rung.FREEZE, now_ns)
            log.info("ladder: thawed, since no pod may be frozen for longer")

    def climb(
        self, view: NodeView, plan: Plan, guards: tuple[ClosedGuard, ...], executor: Actuator
    ) -> tuple[Plan, tuple[ClosedGuard, ...], Actuator]:
        """Take the next step; return what is to be carried out now, what keeps it from being, and by whom.

        The victims of the plan are held back while a milder rung is tried, as by a guard. With a guard closed no rung
        is started, and what is in force stays.
        """
        now_ns = view.now_ns
        self._executor.hold(now_ns)
        is_short = any(feature.verdict.fires for feature in plan.features)
        if guards and is_short:
            return plan, guards, executor
        for _ in Rung:  # each one at most once
            step = next_rung(view, self._possible(plan), self._state, self._settings)
            self._say(step.sentence, is_news=step.kind not in ("ground", "wait"))
            for each in step.undo:
                self._executor.undo(each.plan.rung, now_ns)
            started = step.begin
            if started is not None:
                self._executor.call_off()
            if started is not None and started.rung not in _ENDS and not self._executor.begin(started, now_ns):
                self._impossible |= {started.rung}
                self._say(f"{started.rung.value} is not possible here", is_news=True)
                continue
            self._state = step.state
            if started is not None:
                self.last_rung_ns = now_ns
            if not is_short and self._state == LadderState():
                self._impossible = frozenset()
            if started is not None and started.rung is Rung.KILL:
                return self._killing(plan, started, step.sentence), guards, self._kill
            if started is not None and started.rung is Rung.EVICT:
                evicted = self._state.evicted
                self._evicted = {uid: victim for uid, victim in self._evicted.items() if uid in evicted} | _victims(
                    plan
                )
                return plan, guards, executor
            break
        return plan, (*guards, *self._held(step.sentence)), executor

    def _thaw_ns(self) -> int | None:
        since_ns = self._executor.frozen_ns
        return None if since_ns is None else since_ns + self._settings.freeze_max_ns

    def _held(self, sentence: str) -> tuple[ClosedGuard, ...]:
        rung = self._state.rung
        if rung is None and not self._settings.rungs & _ENDS:
            return (ClosedGuard("ladder", f"eviction is no rung of the ladder: {sentence}"),)
        is_tried = rung is not None and rung not in _ENDS
        return (ClosedGuard("ladder", f"{rung.value} is tried first" if rung and is_tried else sentence),)

    # The plan without what was found impossible in this shortage, and without those whom the decision should have
    # passed over: it is asked once more before anything is done to them.
    def _possible(self, plan: Plan) -> Plan:
        kept = {
            victim.candidate.uid
            for victim in plan.victims
            if victim_guard(victim, own_pod_uid=self._own_pod_uid) is not None
        }
        return replace(
            plan,
            ladder=tuple(
                replace(rung, actions=tuple(action for action in rung.actions if action.uid not in kept))
                for rung in plan.ladder
                if rung.rung not in self._impossible
            ),
        )

    # The plan, with those that are to be killed as its victims: some of them left it when they were evicted.
    def _killing(self, plan: Plan, rung: RungPlan, sentence: str) -> Plan:
        known = self._evicted | _victims(plan)
        wanted = {action.uid: known[action.uid] for action in rung.actions if action.uid in known}
        return replace(
            plan,
            sentence=sentence,
            features=tuple(
                replace(
                    feature,
                    victims=tuple(victim for name, victim in wanted.values() if name == feature.verdict.feature),
                )
                for feature in plan.features
            ),
        )

    def _say(self, sentence: str, *, is_news: bool) -> None:
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
    own_pod_uid: str | None,
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
        own_pod_uid: this agent's pod.
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
    return Ladder(settings, executor, kill=kill, own_pod_uid=own_pod_uid)


def _victims(plan: Plan) -> dict[str, tuple[str, Victim]]:
    return {
        victim.candidate.uid: (feature.verdict.feature, victim)
        for feature in plan.features
        for victim in feature.victims
    }
