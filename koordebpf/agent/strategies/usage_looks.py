"""Looks at what pods use between two rounds, from within the loop's wait: two counters are read, nothing else."""

from __future__ import annotations

from collections.abc import Callable

from koordebpf.agent.strategies.suppression import Suppression
from koordebpf.collect.cpu.sampler import CpuSampler
from koordebpf.kernel.io.loop import Loop
from koordebpf.policy.suppress.wake import WakeSettings, WakeState, next_usage_look_ns, rise
from koordebpf.units import NS_PER_S


class UsageLooks:
    """Ends the loop's wait when latency-sensitive pods use clearly more than the last round left them.

    Args:
        settings: of wakes.
        loop: to look from.
        cpu: reads who uses the CPUs.
        suppression: of the node.
        state: gives the present state of wakes: while one is in progress or rests nothing is looked at.
    """

    def __init__(
        self,
        settings: WakeSettings,
        loop: Loop,
        cpu: CpuSampler,
        suppression: Suppression,
        state: Callable[[], WakeState],
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._cpu = cpu
        self._suppression = suppression
        self._state = state
        self._risen: str | None = None
        loop.look_again(self._look)

    def take(self) -> str | None:
        """Return how far they have risen since the last call, in words; None: they have not."""
        risen, self._risen = self._risen, None
        return risen

    def close(self) -> None:
        """Look no more."""
        self._loop.stop_looking(self._look)

    def _look(self, now_ns: int) -> int:
        amount, state = self._suppression.amount, self._state()
        if amount is None:  # no pod is suppressed
            return now_ns + NS_PER_S
        best_effort = amount.capacity_millicpu
        if state.since_ns is None and self._risen is None and now_ns >= state.heard_ns("usage"):
            used = self._cpu.look(now_ns)
            best_effort = 0 if used is None else used.best_effort_millicpu
            self._risen = None if used is None else rise(used.others_millicpu, best_effort, amount, self._settings)
            if self._risen is not None:
                self._loop.wake()
        return next_usage_look_ns(now_ns, best_effort, amount.capacity_millicpu, state, self._settings)
