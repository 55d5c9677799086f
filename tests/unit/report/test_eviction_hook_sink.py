"""When hooks around evictions are called, and with what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from koordebpf.act.eviction_hook_settings import WebhookHook, When
from koordebpf.act.eviction_hooks import EvictionHooks, Hook, Payload, Ran
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.policy.plan import Plan
from koordebpf.report.eviction_hooks import EvictionHookSink, HookCall
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.audit_record import AuditRecord
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.sink import AgentStopped, DecisionsInterrupted, Event, PlanDecided, PlanStarted, TickEnded
from tests.unit.report.test_report import outcome, plan


class Noted(Hook):
    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def call(self, payload: bytes) -> Ran:
        assert payload.endswith(b"}\n")
        assert payload.count(b"\n") == 1
        self.calls.append(json.loads(payload))
        return Ran("done")


class Counted(EvictionHooks):
    counted = 0

    def call(self, when: When, payload: Payload, *, dry_run: bool, decision: str = "") -> None:
        self.counted += 1
        super().call(when, payload, dry_run=dry_run, decision=decision)


class Rig:
    def __init__(self, *, dry_run: bool = False, hook: WebhookHook | None = None) -> None:
        self.noted = Noted()
        self.plans = OpenPlans("n1", dry_run=dry_run)
        self.settings = hook or WebhookHook(name="page-me", url="https://pager.example/")
        self.hooks = Counted([(self.settings, self.noted)])
        self.sink = EvictionHookSink(self.hooks, self.plans)

    def publish(self, *events: Event) -> None:
        for event in events:
            self.plans.publish(event)
            if type(event) in self.sink.takes:
                self.sink.publish(event)

    def calls(self) -> list[dict[str, Any]]:
        """Return them, once the hook's thread has ended."""
        self.publish(AgentStopped(1 << 40))
        return self.noted.calls

    def moments(self) -> list[str]:
        return [each["when"] for each in self.calls()]


def started(value: Plan, at_ns: int = 1_000) -> PlanStarted:
    return PlanStarted(value, None, at_ns, 0.0)


def decided(value: Plan, outcomes: Sequence[Outcome], at_ns: int = 1_000) -> PlanDecided:
    return PlanDecided(value, tuple(outcomes), None, at_ns, 0.0)


def evicted(rig: Rig, result: Result = Result.GONE) -> None:
    final = outcome(result, 1)
    rig.publish(started(plan()), decided(plan(), [final]), OutcomeArrived(final, 2_000), TickEnded(3_000))


def test_an_eviction_has_a_call_before_it_and_one_after_it() -> None:
    rig = Rig()
    sent, done = outcome(Result.SENT, 1), outcome(Result.REFUSED, 1)
    rig.publish(started(plan()))
    rig.publish(decided(plan(), [sent]), TickEnded(2_000))
    rig.publish(OutcomeArrived(done, 3_000), TickEnded(4_000))
    before, after = rig.calls()
    assert (before["when"], before["record"]["outcomes"]) == ("before", [])
    assert (after["when"], after["record"]["outcomes"][0]["result"]) == ("after", "refused")
    for call in (before, after):
        assert (call["schema"], call["hook"], call["node"]) == ("koordebpf.eviction-hook/v1", "page-me", "n1")
        assert call["victims"] == [{"namespace": "default", "name": "spark-1", "uid": "u-1"}]
        assert call["text"] == "n1: evicting default/spark-1: 71 % >= 70 %"
        assert call["dry_run"] is False
        assert msgspec.json.decode(msgspec.json.encode(call["record"]), type=AuditRecord).id == before["record"]["id"]


def test_before_is_called_once_the_evictions_are_sent_with_what_was_known_before() -> None:
    rig = Rig()
    rig.publish(started(plan()))
    assert not rig.hooks.counted
    rig.publish(decided(plan(), [outcome(Result.SENT, 1)]))
    assert rig.hooks.counted == 1
    before = rig.calls()[0]
    assert (before["when"], before["record"]["outcomes"]) == ("before", [])


def test_before_is_called_too_where_an_error_ends_the_tick() -> None:
    rig = Rig()
    rig.publish(started(plan()), TickEnded(2_000))
    assert rig.moments() == ["before", "after"]


def test_a_hook_is_called_when_it_asks_for() -> None:
    for when in ("before", "after"):
        rig = Rig(hook=WebhookHook(name="a", url="https://a.example/", when=(when,)))  # type: ignore[arg-type]
        evicted(rig)
        assert rig.moments() == [when]


def test_after_follows_before_whatever_became_of_it() -> None:
    rig = Rig()
    evicted(rig, Result.GONE)
    assert rig.moments() == ["before", "after"]


def test_what_a_guard_held_back_is_no_eviction() -> None:
    rig = Rig()
    rig.publish(decided(plan(), [outcome(Result.HELD, 1)]), TickEnded(2_000))
    assert rig.moments() == []


def test_a_plan_without_victims_is_no_eviction() -> None:
    rig = Rig()
    rig.publish(decided(plan(victims=0), []), TickEnded(2_000))
    assert rig.moments() == []


def test_a_dry_run_calls_only_hooks_that_ask_for_it() -> None:
    for asks in (False, True):
        rig = Rig(dry_run=True, hook=WebhookHook(name="a", url="https://a.example/", dry_run=asks))
        rig.publish(decided(plan(), [outcome(Result.DRY_RUN, 1)]), TickEnded(2_000))
        # THEN a round that decides the same again is no news
        rig.publish(decided(plan(), [outcome(Result.DRY_RUN, 1)], 3_000), TickEnded(4_000))
        calls = rig.calls()
        assert [each["when"] for each in calls] == (["before", "after"] if asks else [])
        assert all(each["dry_run"] and each["text"].endswith("(dry run)") for each in calls)


def test_what_the_dead_mans_switch_killed_has_a_call_after_it() -> None:
    rig = Rig()
    rig.publish(decided(plan(), [outcome(Result.DONE, 1)]))
    rig.publish(AgentStopped(2_000))
    assert [each["when"] for each in rig.noted.calls] == ["after"]


def test_an_eviction_that_an_agent_before_this_one_was_ended_in_has_a_call_after_it() -> None:
    rig = Rig()
    rig.publish(started(plan()))
    (line,) = rig.plans
    left = msgspec.structs.replace(line.record(), interrupted=True)
    other = Rig()
    other.publish(DecisionsInterrupted((left,)))
    (call,) = other.calls()
    assert (call["when"], call["record"]["interrupted"]) == ("after", True)
    assert call["victims"][0]["name"] == "spark-1"


def test_a_plan_of_more_victims_than_a_ranking_has_names_their_uids() -> None:
    rig = Rig()
    rig.publish(started(plan(victims=12, candidates=12)))
    before, *_ = rig.calls()
    assert [each["uid"] for each in before["victims"]] == [f"u-{number}" for number in range(1, 13)]
    assert before["victims"][9]["name"] == "spark-10"
    assert before["victims"][11]["name"] == ""


def test_every_field_is_sent() -> None:
    rig = Rig()
    evicted(rig)
    assert set(rig.calls()[0]) == set(HookCall.__struct_fields__)


def test_a_decision_is_shown_with_its_calls() -> None:
    rig = Rig()
    records: list[AuditRecord] = []
    evicted(rig)
    records += [line.record() for line in rig.plans.closed]
    rig.calls()
    (shown,) = rig.sink.with_calls(records)
    assert [(each.hook, each.when, each.outcome) for each in shown.hooks] == [
        ("page-me", "before", "done"),
        ("page-me", "after", "done"),
    ]
    assert all(each.took_ns > 0 for each in shown.hooks)
    assert msgspec.json.decode(msgspec.json.encode(shown), type=AuditRecord) == shown
    assert b"hooks" not in msgspec.json.encode(records[0])
    other = msgspec.structs.replace(records[0], id="another")
    assert rig.sink.with_calls([other]) == [other]
