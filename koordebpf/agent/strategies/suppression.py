"""Holds best-effort pods to the CPU that others leave: writes what `policy.suppress` chose, and remembers it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from koordebpf.act.writer.owners import SUPPRESS
from koordebpf.act.writer.restore import WAIT_S
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.agent.lifecycle.handover import KEPT, can_wait, leave_waiting, tell_left
from koordebpf.agent.lifecycle.node_lock import is_awaited
from koordebpf.errors import KoordebpfError
from koordebpf.kernel.io.kept_file import KeptFile
from koordebpf.policy.reconcile.values import DesiredState
from koordebpf.policy.strategy import Decision
from koordebpf.policy.suppress.amount import BeAmount
from koordebpf.policy.suppress.kept import KeptSuppression, adopted
from koordebpf.policy.suppress.settings import SuppressSettings
from koordebpf.policy.suppress.strategy import BE_CPU_SUPPRESS, SuppressDecision
from koordebpf.report.prom.suppression import SuppressionMetrics
from koordebpf.runner.runner import Runner
from koordebpf.state.suppression import SuppressState
from koordebpf.state.view import NodeView

log = logging.getLogger(__name__)

_AS_BEFORE = "as the agent before this one held it"


class Suppression(Runner):
    """One node's suppression, from decisions to files and back.

    Args:
        settings: of suppression.
        writer: of the node.
        folder: of the one agent that acts on the node: what a successor continues from. None: dry run.
        metrics: show what is held.
    """

    def __init__(
        self, settings: SuppressSettings, writer: CgroupWriter, folder: Path | None, metrics: SuppressionMetrics
    ) -> None:
        super().__init__("CPU annotations")
        self._settings = settings
        self._kept = KeptFile(folder / KEPT if folder else None, "a successor begins from nothing")
        self._writer = writer
        self._metrics = metrics
        kept, now_s = _read(self._kept), time.time()
        self._last = KeptSuppression(adopted(kept, now_s, settings.keep_s), now_s)  # as if this agent ended now
        self.amount: BeAmount | None = None  # of the last round; None: it suppressed no pod
        if kept is not None and kept.is_fresh(now_s, settings.keep_s):
            self._hold_again(kept.desired)

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Write what a decision on this view wants; where it skipped, what was written before stays."""
        made = decisions.get(BE_CPU_SUPPRESS.name)
        if not isinstance(made, SuppressDecision):
            return
        plan, problems = made.plan, view.cpu.placement.problems if view.cpu else ()
        self.report((f"what cannot be read binds no CPU: {problem}" for problem in problems), view.now_ns)
        self.amount = plan.amount
        self._metrics.held_millicpu, self._metrics.policy = plan.held_millicpu, plan.policy
        if plan.skipped is None:
            if (plan.next.memory_hold is None) != (self.state.memory_hold is None):
                log.info("%s", plan.reason)
            self._writer.apply(plan.desired, view.now_ns, SUPPRESS)
            self._last = msgspec.structs.replace(self._last, state=plan.next, desired=plan.desired)

    @property
    def state(self) -> SuppressState:
        """What the next decision starts from."""
        return self._last.state

    def close(self) -> None:
        """Leave the files to an agent that stands by; else as configured: restored, or left to a successor."""
        try:
            waits = self._settings.at_exit == "keep" and can_wait()
            path = self._kept.path
            if path is not None and (waits or is_awaited(path.parent)):
                self._keep(path, waits=waits)
            else:
                self._restore()
        except (KoordebpfError, OSError) as error:
            log.error("what best-effort pods may use stays as it is: %s. Run: koordebpf restore", error)

    # What systemd has reset since the last agent ended is not left so until the CPUs are measured.
    def _hold_again(self, desired: DesiredState | None) -> None:
        if desired is None:
            return
        try:
            self._writer.apply(msgspec.structs.replace(desired, reason=_AS_BEFORE), time.monotonic_ns(), SUPPRESS)
        except KoordebpfError as error:
            log.warning("what the agent before this one held is not held until the CPUs are measured: %s", error)
        else:
            self._last = msgspec.structs.replace(self._last, desired=desired)

    def _restore(self) -> None:
        try:
            left = self._writer.restore(time.monotonic_ns(), owner=SUPPRESS, wait_s=WAIT_S).left
        except OSError as error:
            log.warning("suppression values restored, but the journal could not be updated: %s", error)
            return
        tell_left(left)

    def _keep(self, path: Path, *, waits: bool) -> None:
        if not self._kept.replace(msgspec.json.encode(msgspec.structs.replace(self._last, left_s=time.time()))):
            self._restore()
            return
        if not waits:
            log.info("what suppression wrote is kept for the agent that stands by")
        elif self._writer.is_journalled:
            pid, keep_s = leave_waiting(path.parent, self._settings.keep_s), self._settings.keep_s
            log.info("what suppression wrote is kept for a successor; process %d waits %g s for one", pid, keep_s)


# What cannot be read is as nothing: the first decision then rewrites everything.
def _read(file: KeptFile) -> KeptSuppression | None:
    kept = None
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if (raw := file.read()) is not None:
            kept = msgspec.json.decode(raw, type=KeptSuppression)
    file.remove()
    return kept
