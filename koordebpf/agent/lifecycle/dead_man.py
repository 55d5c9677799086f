"""The dead man's switch in the agent: chooses its victim in each round, writes heartbeats, reads what it did."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from koordebpf.collect.scope import NodeScope
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.dead_man import (
    DeadManAction,
    DeadManChoice,
    DeadManFiring,
    DeadManSettings,
    dead_man_choice,
    pods_valid_until_ns,
)
from koordebpf.decision.decide_tick import TickFrame
from koordebpf.errors import SupportError
from koordebpf.report.prom.decision import DeadManMetrics
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.state.guard_facts import ClosedGuard
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_MS, format_ns

if TYPE_CHECKING:
    from koordebpf.kernel.bpf.deadman import DeadMan, Mode

log = logging.getLogger("koordebpf")
_SWEEP_NS = 20 * NS_PER_MS  # the programs look at all tasks meanwhile
_BEATS = 4  # in each `after_ns`: one or two that come late are none that is missing


class DeadManNews(NamedTuple):
    """It fired: whom for, and what it did."""

    choice: DeadManChoice
    firing: DeadManFiring


class DeadManSwitch:
    """Arms the programs with the choice of each round. Nothing of it waits.

    Args:
        programs: attached; owned from here on.
        settings: of the switch.
        action: what is in force of `settings.action`.
        scope: the node.
        metrics: to be kept up to date.
    """

    def __init__(
        self,
        programs: DeadMan,
        settings: DeadManSettings,
        action: DeadManAction,
        scope: NodeScope,
        metrics: DeadManMetrics,
    ) -> None:
        self._programs = programs
        self._settings = settings
        self._mode: Mode = "kill" if action == "kill" else "count"
        self._node_cgroup_id = scope.node_cgroup_id or 0
        self._metrics = metrics
        self._choices: tuple[DeadManChoice, ...] = ()  # that it is armed with, and the one before
        self._reason = ""
        self._fired = 0
        self._is_well = True

    def choose(
        self,
        tick: TickFrame,
        view: NodeView,
        holding: Sequence[ClosedGuard],
        above: Callable[[int], tuple[int, ...]],
        now_ns: int,
    ) -> None:
        """Arm it with this round's choice, or disarm it where there is none. `above`: `CgroupIndex.above`."""
        from koordebpf.kernel.bpf.deadman import DeadManOrder

        choice = dead_man_choice(tick, view, holding)
        if choice.victim is None and choice.reason != self._reason:
            log.info("the dead man's switch has no victim: %s", choice.reason)
        self._reason = "" if choice.victim is not None else choice.reason
        self._metrics.is_armed = choice.victim is not None
        if choice.victim is None:
            self._programs.disarm()
            return
        self._choices = (choice, *self._choices[:1])
        in_use = -(-choice.threshold_bytes // mmap.PAGESIZE)
        self._programs.order(
            now_ns,
            DeadManOrder(
                after_ns=self._settings.after_ns,
                stall_ns=self._settings.stall_ns,
                victim_id=choice.cgroup_id,
                until_ns=pods_valid_until_ns(tick),
                node_cgroup_id=self._node_cgroup_id,
                above_pages=in_use,
                below_pages=max(choice.capacity_bytes // mmap.PAGESIZE - in_use, 0),
                percent=choice.percent,
                above_ids=above(choice.cgroup_id),
                mode=self._mode,
            ),
        )

    def tick_begins(self) -> None:
        """Write no heartbeat until `tick_ended`: a tick that hangs or fails is none that protects the node."""
        self._is_well = False

    def tick_ended(self, now_ns: int) -> None:
        """Write heartbeats again, the first one now."""
        self._is_well = True
        self._programs.beat(now_ns)

    def beat(self, now_ns: int) -> int:
        """Write a heartbeat between two ticks; return when the next one is due. For `Loop.set_timer`."""
        if self._is_well:
            self._programs.beat(now_ns)
        return now_ns + self._settings.after_ns // _BEATS

    def poll_news(self, now_ns: int) -> DeadManNews | None:
        """Return what it did since the last time, once; None: nothing."""
        report = self._programs.report()
        self._metrics.late_stalls, self._metrics.spared = report.late_stalls, report.spared
        if report.fired == self._fired or now_ns < report.fired_ns + _SWEEP_NS:
            return None
        self._fired = report.fired
        self._metrics.count(report.mode)
        firing = DeadManFiring(
            heartbeat_ns=report.heartbeat_ns,
            fired_ns=report.fired_ns,
            stall_ns=report.stall_ns,
            at_limit=bool(report.at_limit),
            kills=report.mode == "kill",
            processes=report.seen,
            signalled=report.signalled,
            refused=report.refused,
            error=report.error,
        )
        choice = next((each for each in self._choices if each.cgroup_id == report.victim_id), None)
        if choice is None:
            log.error("the dead man's switch fired for cgroup %d, which is not known any more", report.victim_id)
            return None
        return DeadManNews(choice, firing)

    def close(self) -> None:
        """Disarm and detach it."""
        self._programs.close()


def open_dead_man(config: AgentConfig, scope: NodeScope, metrics: AgentMetrics, *, acts: bool) -> DeadManSwitch | None:
    """Return it; None: it is off, or this kernel does not have what it needs, which the log says."""
    settings = config.dead_man
    if settings.action == "nothing":
        return None
    from koordebpf.kernel.bpf.deadman import DeadMan

    try:
        programs = DeadMan()
    except SupportError as error:
        log.warning("no dead man's switch: %s; %s", error.reason, error.remedy)
        return None
    action: DeadManAction = settings.action if acts else "count"
    shown = DeadManMetrics()
    metrics.node.strategies.append(shown.families)
    after, stall = format_ns(settings.after_ns), format_ns(settings.stall_ns)
    does = "kills the first victim" if action == "kill" else "counts what it would kill"
    text = "a dead man's switch %s when the agent stops for %s and tasks stall %s of it; it %s"
    log.info(text, does, after, stall, programs.counts)
    return DeadManSwitch(programs, settings, action, scope, shown)
