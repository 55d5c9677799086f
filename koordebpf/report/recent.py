"""The last decisions and changes of files, as they are shown to other threads: `explain` and the HTTP pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from koordebpf.policy.block_io.strategy import BLOCK_IO, BlockIODecision
from koordebpf.policy.hooks.strategy import HOOKS_PART, HookDecision
from koordebpf.policy.hooks.values import HookRules
from koordebpf.policy.memory_qos.strategy import MEMORY_QOS, MemoryQosDecision
from koordebpf.policy.memory_qos.values import MemoryQosRules
from koordebpf.policy.page_cache.strategy import BE_PAGE_CACHE_SUPPRESS, PageCacheDecision
from koordebpf.policy.proactive_reclaim.strategy import PROACTIVE_RECLAIM, ReclaimDecision
from koordebpf.policy.strategy import Decision
from koordebpf.report.hooks.memory_settings import with_memory_settings
from koordebpf.report.hooks.pod_settings import PodSettings, pod_settings, with_block_io
from koordebpf.report.hooks.reclaim_settings import with_page_cache, with_reclaim
from koordebpf.state.block_io.measured import BlockIOView
from koordebpf.state.block_io.view import block_io_view
from koordebpf.state.hooks.measured import HookView
from koordebpf.state.hooks.view import hook_view
from koordebpf.state.memory_qos.measured import MemoryQosView
from koordebpf.state.memory_qos.view import memory_qos_view
from koordebpf.state.proactive_reclaim import ReclaimMeasured
from koordebpf.state.view import NodeView
from koordebpf.store.audit_record import AuditRecord
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.sink import DecisionsInterrupted, Event, FileChanged, KatalystActed, RoundEnded, TickEnded
from koordebpf.store.v1.requests import AuditedRequest, audited_request
from koordebpf.store.write_log import AuditedWrite, audited_write

_DECISIONS = 50  # about 10 kB each
_REQUESTS = 500  # Why: of one minute at most 20
_WRITES = 2000  # Why: 440 files that are written twice, and what came before


# What was last decided of pods' block IO and memory, with what it was decided from.
class _Taken(msgspec.Struct):
    block_io: tuple[BlockIOView | None, BlockIODecision | None] = (None, None)
    reclaim: tuple[ReclaimMeasured | None, ReclaimDecision | None] = (None, None)
    page_cache: PageCacheDecision | None = None


class Recent:
    """The sink of what can be read from any thread: everything as of the last tick, also of a dry run.

    An open plan changes while it is recorded, so only the loop may look at it.
    """

    name = "recent"
    takes = (FileChanged, KatalystActed, RoundEnded, TickEnded, DecisionsInterrupted)

    def __init__(self, plans: OpenPlans) -> None:
        self._plans = plans
        self._settled: deque[AuditRecord] = deque(maxlen=_DECISIONS)
        self._written: deque[AuditedWrite] = deque(maxlen=_WRITES)
        self._shown_changes = 0
        self._decisions: tuple[AuditRecord, ...] = ()
        self._has_written = False
        self._writes: tuple[AuditedWrite, ...] = ()
        self._requests: tuple[AuditedRequest, ...] = ()
        self._round: RoundEnded | None = None
        self._hooks: tuple[HookView | None, HookRules] = (None, HookRules())
        self._memory: tuple[MemoryQosView | None, MemoryQosRules] = (None, MemoryQosRules())
        self._taken = _Taken()

    def publish(self, event: Event) -> None:
        """Keep decisions whose outcomes are known, and writes; show them at the end of the tick."""
        match event:
            case FileChanged(change, wall_s):
                self._written.append(audited_write(change, self._plans.node, wall_s))
                self._has_written = True
            case KatalystActed(_, news, _, wall_s) if news:
                made = (audited_request(each, self._plans.node, wall_s) for each in news)
                self._requests = (*self._requests, *made)[-_REQUESTS:]
            case RoundEnded(_, view, decision):
                self._round = event
                self._take(view, decision.strategies)
            case TickEnded():
                self._settled.extend(line.record() for line in self._plans.closed)
                self._show()
            case DecisionsInterrupted(records):
                self._settled.extend(records)
                self._decisions = tuple(self._settled)

    def _take(self, view: NodeView, strategies: Mapping[str, Decision[Any]]) -> None:
        hooked = (each for each in strategies.values() if isinstance(each, HookDecision) and each.skipped is None)
        hooks, of_hooks = view.measured.parts.get(HOOKS_PART), next(hooked, None)
        if hooks is not None and of_hooks is not None:
            self._hooks = hook_view(hooks, view.facts, view.frame.node, view.frame.nodeResourceTopology), of_hooks.rules
        memory, of_memory = MEMORY_QOS.measured_of(view), strategies.get(MEMORY_QOS.name)
        if memory is not None and isinstance(of_memory, MemoryQosDecision):
            self._memory = memory_qos_view(memory, view.facts, view.frame.node), of_memory.rules
        devices, limits = BLOCK_IO.measured_of(view), strategies.get(BLOCK_IO.name)
        if devices is not None and isinstance(limits, BlockIODecision):
            self._taken.block_io = block_io_view(devices, view.facts), limits
        trimmed, taken = PROACTIVE_RECLAIM.measured_of(view), strategies.get(PROACTIVE_RECLAIM.name)
        if trimmed is not None and isinstance(taken, ReclaimDecision):
            self._taken.reclaim = trimmed, taken
        cached = strategies.get(BE_PAGE_CACHE_SUPPRESS.name)
        if BE_PAGE_CACHE_SUPPRESS.measured_of(view) is not None and isinstance(cached, PageCacheDecision):
            self._taken.page_cache = cached

    def decisions(self) -> tuple[AuditRecord, ...]:
        """Return the last decisions, also those whose outcome is awaited; from any thread."""
        return self._decisions

    def writes(self) -> tuple[AuditedWrite, ...]:
        """Return the last changes of files; from any thread."""
        return self._writes

    def requests(self) -> tuple[AuditedRequest, ...]:
        """Return the last requests of eviction plugins that were not carried out; from any thread."""
        return self._requests

    def last_round(self) -> RoundEnded | None:
        """Return the last round, None before the first; from any thread."""
        return self._round

    def pods(self) -> list[PodSettings]:
        """Return all pods with what strategies want of them: of files, and of their memory; from any thread."""
        pods = self._round.view.pods if self._round else ()
        of_memory = with_memory_settings(pod_settings(pods, *self._hooks), *self._memory)
        of_cache = with_page_cache(with_reclaim(of_memory, *self._taken.reclaim), self._taken.page_cache)
        return with_block_io(of_cache, *self._taken.block_io)

    def _show(self) -> None:
        if self._plans.changes != self._shown_changes:
            self._shown_changes = self._plans.changes
            self._decisions = (*self._settled, *self._plans.records())
        if self._has_written:
            self._has_written = False
            self._writes = tuple(self._written)
