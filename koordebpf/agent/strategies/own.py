"""Carries out what strategies decide that have no runner for it: their files, by the node's one writer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from koordebpf.act.writer.restore import WAIT_S
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.collect.cpu.collector import CpuCollector
from koordebpf.decision.strategies import OWN_STRATEGIES
from koordebpf.policy.reconcile.values import DesiredState
from koordebpf.policy.strategy import GATE_OFF, Decision
from koordebpf.runner.runner import Runner
from koordebpf.state.view import NodeView
from koordebpf.store.node_lock import is_awaited


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

    def take_due(self, now_ns: int) -> bool:
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
