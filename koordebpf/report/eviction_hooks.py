"""The sink that has hooks called before and after evictions, with the audit record as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from koordebpf.act.eviction_hook_settings import When
from koordebpf.act.eviction_hooks import EvictionHooks
from koordebpf.printable import json_bytes
from koordebpf.state.outcome import Result
from koordebpf.store.audit_record import AuditRecord, OpenPlan
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.sink import AgentStopped, DecisionsInterrupted, Event, PlanDecided, PlanStarted, TickEnded

_TRIED = frozenset({Result.DONE, Result.SENT, Result.REFUSED, Result.FAILED})


class HookVictim(msgspec.Struct, frozen=True):
    """A pod that is evicted."""

    namespace: str
    name: str
    uid: str


class HookCall(msgspec.Struct, frozen=True):
    """What a hook is called with. `before`: the record has no outcomes yet; `after`: it is the audit's line.

    `text` says it to people in one sentence; `dry_run`: nothing was evicted.
    """

    schema: Literal["koordebpf.eviction-hook/v1"]
    hook: str
    when: When
    node: str
    dry_run: bool
    text: str
    victims: tuple[HookVictim, ...]
    record: AuditRecord


class EvictionHookSink:
    """Hooks are called with a plan as the write-ahead log has it, and once its audit line is complete.

    The eviction waits for none of them, and is sent first. In a dry run a plan that is news counts as one that is sent.
    Where hooks were called before, they are called after it too, whatever became of it; of what the dead man's switch
    killed, or an agent before this one, they are called after alone. What a guard held back is no eviction.
    """

    name = "eviction_hooks"
    takes = (PlanStarted, PlanDecided, TickEnded, DecisionsInterrupted, AgentStopped)

    def __init__(self, hooks: EvictionHooks, plans: OpenPlans) -> None:
        self._hooks = hooks
        self._plans = plans
        self._started: set[str] = set()  # ids of lines that are open
        self._before: AuditRecord | None = None  # of the plan whose evictions are being sent

    def publish(self, event: Event) -> None:
        """Have hooks called that want it."""
        plans = self._plans
        match event:
            case PlanStarted() if plans.current is not None:
                self._start(plans.current)
            case PlanDecided(_, outcomes):
                is_dry = any(each.result is Result.DRY_RUN for each in outcomes)
                if is_dry and plans.current is not None and plans.current.decided_ns == event.decided_ns:
                    self._start(plans.current)
                self._call_before()
            case TickEnded():
                self._call_before()  # of a plan that an error ended
                self._closed(plans.closed)
            case DecisionsInterrupted(records):
                for record in records:
                    if record.interrupted:  # else they were called
                        self._call("after", record, victims_of(record))
            case AgentStopped():
                self._closed(plans.closed)
                self._hooks.close()

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return how many calls ended how since the start, by hook and outcome; from any thread."""
        return self._hooks.counts()

    def spent_s(self) -> Mapping[str, float]:
        """Return how long the calls of each hook took since the start; from any thread."""
        return self._hooks.spent_s()

    def with_calls(self, records: Sequence[AuditRecord]) -> list[AuditRecord]:
        """Return decisions with what became of the calls of hooks for them; from any thread."""
        calls = {decision: tuple(ended) for decision, ended in self._hooks.ended().items()}
        return [msgspec.structs.replace(each, hooks=calls.get(each.id, each.hooks)) for each in records]

    def _start(self, line: OpenPlan) -> None:
        self._started.add(line.id)
        if self._hooks.wants("before", dry_run=self._plans.dry_run):
            self._before = line.record()

    # Not before the evictions are sent: threads that wake compete with them for the interpreter, 1.4 ms (measured).
    def _call_before(self) -> None:
        if self._before is not None:
            self._call("before", self._before, victims_of(self._before))
            self._before = None

    def _closed(self, lines: Sequence[OpenPlan]) -> None:
        for line in lines:
            if self._hooks.wants("after", dry_run=self._plans.dry_run):
                record = line.record()
                if line.id in self._started or any(each.result in _TRIED for each in record.outcomes):
                    self._call("after", record, victims_of(record))
            self._started.discard(line.id)

    # It is made into JSON by the hook's thread.
    def _call(self, when: When, record: AuditRecord, victims: tuple[HookVictim, ...]) -> None:
        def payload(hook: str) -> bytes:
            return hook_payload(hook, when, record, victims)

        self._hooks.call(when, payload, dry_run=record.dry_run, decision=record.id)


def hook_payload(hook: str, when: When, record: AuditRecord, victims: tuple[HookVictim, ...]) -> bytes:
    """Return what a hook is called with, as one line of JSON."""
    call = HookCall(
        schema="koordebpf.eviction-hook/v1",
        hook=hook,
        when=when,
        node=record.node,
        dry_run=record.dry_run,
        text=f"{record.node}: {record.sentence}" + (" (dry run)" if record.dry_run else ""),
        victims=victims,
        record=record,
    )
    return json_bytes(call) + b"\n"


def victims_of(record: AuditRecord) -> tuple[HookVictim, ...]:
    """Return the pods that a record is about, in their order; what it does not name has its UID alone."""
    named = {each.uid: each for feature in record.features for each in feature.ranking} | {
        each.uid: each for each in record.outcomes
    }
    uids = dict.fromkeys(uid for feature in record.features for uid in feature.victims)
    return tuple(
        HookVictim(named[uid].namespace, named[uid].name, uid) if uid in named else HookVictim("", "", uid)
        for uid in uids
    )
