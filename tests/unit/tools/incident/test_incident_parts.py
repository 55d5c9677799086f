"""The parts of an incident: which time, which moments, plots, the map of stalls, and a reason for each pod."""

from __future__ import annotations

import random

import msgspec
import pytest
from msgspec.structs import replace

from koordebpf.decision.decide_tick import encode_decision
from koordebpf.report.sentences import outcome_sentence
from koordebpf.state.build import view_of_frame
from koordebpf.state.measured import LedgerRow, LedgerView, Party, PsiLine, StallParts, StallShares
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.recorder.rounds import ReadRound
from koordebpf.store.recorder.values import RecordedEvent
from koordebpf.tools.incident.charts import NAMED, charts_of, with_gaps
from koordebpf.tools.incident.decisions import Decided, Outcomes, VictimSeen, decided, decisions_shown, whole
from koordebpf.tools.incident.moments import Moment, Moments
from koordebpf.tools.incident.of_recording import Ledgers, heat_map, returned
from koordebpf.tools.incident.ranking import RecordedDecision, ranking_of, read_decision
from koordebpf.tools.incident.timeline import HOUR_NS, Window, changed_files, marks_of, timeline, window_of
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import NOW_NS, feature_of, frame, ls_pod, pod
from tests.support.values.rounds import round_at, wall_ns

MINUTE_NS = 60 * NS_PER_S


class TestWindow:
    def test_an_hour_is_shown_whole(self) -> None:
        assert window_of([0, HOUR_NS], [5]) == Window(0, HOUR_NS, False)

    def test_of_more_the_last_incident_with_what_is_around_it(self) -> None:
        decided_ns = [60 * MINUTE_NS, 300 * MINUTE_NS, 305 * MINUTE_NS]
        found = window_of([0, 600 * MINUTE_NS], decided_ns)
        assert found == Window(295 * MINUTE_NS, 315 * MINUTE_NS, True)
        earlier = window_of([0, 600 * MINUTE_NS], decided_ns, around_ns=60 * MINUTE_NS)
        assert earlier == Window(55 * MINUTE_NS, 70 * MINUTE_NS, True)

    def test_without_a_decision_the_last_hour(self) -> None:
        assert window_of([0, 3 * HOUR_NS], []) == Window(2 * HOUR_NS, 3 * HOUR_NS, True)

    def test_times_that_are_given_count(self) -> None:
        assert window_of([0, 3 * HOUR_NS], [7], since_ns=5) == Window(5, 3 * HOUR_NS, True)
        assert window_of([0, 9], [7], until_ns=5) == Window(0, 5, True)
        assert window_of([0, 9], [7], since_ns=-4, until_ns=50) == Window(0, 9, False)

    def test_a_long_incident_is_cut_to_an_hour_that_has_the_decision(self) -> None:
        chance = random.Random(7)
        times = [0, 30 * HOUR_NS]
        for _ in range(300):
            decided_ns = sorted(chance.randrange(30 * HOUR_NS) for _ in range(chance.randrange(1, 400)))
            at = chance.choice(decided_ns)
            found = window_of(times, decided_ns, around_ns=at)
            assert found.last_ns - found.first_ns <= HOUR_NS
            assert found.first_ns <= at <= found.last_ns

    def test_what_follows_the_last_round_belongs_to_it(self) -> None:
        window = Window(10 * NS_PER_S, 20 * NS_PER_S, False)
        assert [window.has(at) for at in (9.9, 10, 20.5, 21.5)] == [False, True, True, False]


def read_round(second: float, **asked: object) -> tuple[ReadRound, RecordedDecision]:
    tick, decision = round_at(second, **asked)
    raw = encode_decision(decision)
    return ReadRound(wall_ns(second), tick, raw, decision.carried is not None), read_decision(raw)


def moments_of(rounds: list[tuple[ReadRound, RecordedDecision]], most: int) -> list[Moment]:
    made = Moments(rounds[0][0].wall_ns, rounds[-1][0].wall_ns, most)
    for each, decision in rounds:
        made.record(each, decision)
    return made.found


class TestMoments:
    def test_each_round_where_there_is_room(self) -> None:
        found = moments_of([read_round(second) for second in range(5)], 10)
        assert [each.wall_ns for each in found] == [wall_ns(second) for second in range(5)]
        assert found[0].threshold_bytes == 800 * MIB and found[0].lower_bytes == 780 * MIB

    def test_of_a_stretch_the_one_with_the_most_in_use(self) -> None:
        used = [500, 900, 700, 400, 600, 300]
        found = moments_of([read_round(second, used_mib=mib) for second, mib in enumerate(used)], 2)
        assert [each.used_bytes for each in found] == [900 * MIB, 600 * MIB]
        assert [each.wall_ns for each in found] == [wall_ns(1), wall_ns(4)]

    def test_stalls_are_the_largest_of_the_stretch(self) -> None:
        totals = [0, 100_000, 400_000, 450_000]
        rounds = []
        for second, total in enumerate(totals):
            each, decision = read_round(second)
            measured = each.tick.frame.measured
            node = replace(measured.node, psi_some=PsiLine(0, 0, 0, total), psi_full=PsiLine(0, 0, 0, total // 2))
            stalled = replace(measured.pods[0], stall=StallParts(NS_PER_S, second * 100_000_000, 0))
            changed = replace(measured, node=node, pods=(stalled, *measured.pods[1:]))
            tick = replace(each.tick, frame=replace(each.tick.frame, measured=changed))
            rounds.append((msgspec.structs.replace(each, tick=tick), decision))
        (found,) = moments_of(rounds, 1)
        assert found.some_ratio == pytest.approx(0.3) and found.full_ratio == pytest.approx(0.15)
        assert found.stalls == {"uid-spark-job-0": pytest.approx(0.3)}
        first = moments_of(rounds, 10)[0]
        assert first.some_ratio is None  # nothing is known of the time before it

    def test_shares_stand_for_a_file_that_is_not_there_and_a_boot_is_no_stall(self) -> None:
        rounds = []
        for second, total in enumerate((900_000, 100_000)):
            each, decision = read_round(second)
            shares = StallShares(PsiLine(0, 0, 0, total), None, derived=True)
            node = replace(each.tick.frame.measured.node, shares=shares)
            measured = replace(each.tick.frame.measured, node=node)
            tick = replace(each.tick, frame=replace(each.tick.frame, measured=measured))
            rounds.append((msgspec.structs.replace(each, tick=tick), decision))
        assert [each.some_ratio for each in moments_of(rounds, 10)] == [None, None]
        assert moments_of(rounds[::-1], 10)[-1].full_ratio is None


def moment(second: float, held: dict[str, int], used: int | None = 1000, **more: object) -> Moment:
    return Moment(wall_ns(second), 2000, used, 900, 800, None, held, {}, **more)  # type: ignore[arg-type]


class TestCharts:
    def test_the_largest_have_names_and_the_stack_adds_up(self) -> None:
        held = {f"u{number:02}": number for number in range(1, 31)}
        (memory,) = charts_of([moment(0, held), moment(1, held)], {"u30": "ns/largest"}, ["u01", "gone"])
        areas = [each for each in memory.series if each.style == "area"]
        assert [each.name for each in areas[:2]] == ["ns/largest", "pod u29"]
        assert "pod u01" in [each.name for each in areas]  # a victim, however small
        assert len(areas) == NAMED + 2 and areas[-2].name == "20 other pods"
        assert sum(each.values[0] or 0 for each in areas) == 1000
        assert [each.name for each in memory.series[-3:]] == ["node, in use", "threshold", "lower mark"]

    def test_where_nothing_was_recorded_no_line_is_drawn(self) -> None:
        moments = [moment(second, {"u": 5}) for second in (0, 1, 2, 100, 101)]
        assert [at - wall_ns(0) for at, each in with_gaps(moments) if each is None] == [51 * NS_PER_S]
        (memory,) = charts_of(moments, {}, [])
        assert memory.series[0].values == (5, 5, 5, None, 5, 5)
        slow = [moment(second, {}) for second in range(0, 100, 15)]
        assert all(each is not None for _, each in with_gaps(slow))

    @pytest.mark.parametrize(("step_s", "longest_s"), [(1, 20), (15, 75)])
    def test_a_line_ends_after_20_s_or_5_usual_steps_without_a_moment(self, step_s: int, longest_s: int) -> None:
        last_s = 10 * step_s
        usual = [moment(second, {}) for second in range(0, last_s + 1, step_s)]
        for wait_s, gaps in ((longest_s, 0), (longest_s + 1, 1)):
            points = with_gaps([*usual, moment(last_s + wait_s, {})])
            assert [each for _, each in points].count(None) == gaps

    def test_absent_is_not_zero(self) -> None:
        rows = [
            moment(0, {"a": 5}, used=None),
            moment(1, {"a": 5, "b": 7}, stalls={"b": 0.5}, be_may_have_millicpu=1500),
        ]
        charts = {each.id: each for each in charts_of(rows, {}, [])}
        memory = {each.name: each.values for each in charts["memory"].series}
        assert memory["outside of pods"] == (None, 988)
        stalls = {each.name: each.values for each in charts["stalls"].series}
        assert stalls == {"pod b": (None, 50.0)}
        assert charts["suppression"].series[0].values == (None, 1.5)
        assert "growth" not in charts

    def test_nothing_measured_is_no_plot(self) -> None:
        assert charts_of([moment(0, {}, used=None)], {}, []) == ()


def row(victim: str, cause: str, ns: int, kind: str = "pod") -> LedgerRow:
    return LedgerRow(Party(victim, "pod", victim), Party(cause, kind, cause), ns, 0, 0)  # type: ignore[arg-type]


class TestHeat:
    def test_no_stall_counts_twice(self) -> None:
        ledgers = Ledgers(wall_ns(179))
        for second in range(180):
            # A window of a minute with a stall of 1 ms in each second.
            rows = (row("web/a", "spark/b", 1_000_000 * min(second + 1, 60)),)
            ledgers.record(wall_ns(second), LedgerView(60 * NS_PER_S, rows[0].ns, 0, rows))
        found = ledgers.map()
        assert found is not None and found.ns == ((180_000_000,),)
        assert found.covers == "the ledgers of 3 × 60 s"

    def test_rounds_without_a_ledger_are_none(self) -> None:
        ledgers = Ledgers(0)
        ledgers.record(0, None)
        assert ledgers.map() is None and not ledgers.has_any

    def test_the_smallest_are_summed_up(self) -> None:
        rows = tuple(row(f"web/{number:02}", f"spark/{number:02}", number) for number in range(1, 21))
        rows += (row("web/20", "own", 9, "own limit"), row("others", "others", 2, "others"))
        found = heat_map([LedgerView(1, 0, 0, rows)], "x")
        assert found.victims[0] == "web/20" and found.victims[-1] == "others" and len(found.victims) == 13
        assert "own limit" not in found.victims and "own limit" in found.causes
        assert sum(map(sum, found.ns)) == sum(range(1, 21)) + 9 + 2


class TestRanking:
    pods = (
        pod("hog", anon=300),
        pod("calm", anon=10),
        pod("kept", anon=50, policy="[]"),
        pod("plain", anon=5, qos=None),
        ls_pod("api", anon=200),
    )

    def test_there_is_a_reason_for_everyone(self) -> None:
        made = frame(self.pods, used=900)
        feature = whole(feature_of(made))
        outcome = Outcome("uid-spark-hog", "spark", "hog", "api", Result.DONE, "the pod is gone", 5, sent_ns=6)
        found = ranking_of(feature, {outcome.uid: outcome}, view_of_frame(made).pods)
        rows = {each.pod: each for each in found.rows}
        assert rows.keys() == {"spark/hog", "spark/calm", "spark/kept", "spark/plain", "web/api"}
        assert found.rows[0].pod == "spark/hog" and found.rows[0].is_victim
        assert rows["spark/hog"].why == f"chosen: rank 1; {outcome_sentence(outcome)}"
        assert rows["spark/calm"].why == "stays: 300 MiB of the victims cover the 120 MiB that were needed"
        assert "does not list BEMemoryEvict" in rows["spark/kept"].why
        assert "has no label koordinator.sh/qosClass=BE" in rows["spark/plain"].why
        assert rows["web/api"].why == (
            "no candidate of BEMemoryEvict: koordinator.sh/qosClass LS, Kubernetes Burstable, priority 9500"
        )
        assert found.left_out == 0

    def test_what_cannot_be_covered_is_said_of_those_that_stay(self) -> None:
        made = frame([pod("a", anon=1), pod("b", anon=0, measured=False)], used=999)
        found = ranking_of(whole(feature_of(made)), {}, view_of_frame(made).pods)
        assert [(each.pod, each.rank) for each in found.rows] == [("spark/a", 1), ("spark/b", None)]

    def test_too_many_are_counted_and_victims_are_not(self) -> None:
        many = frame([pod(f"job-{number:03}", anon=1) for number in range(300)], used=900)
        found = ranking_of(whole(feature_of(many)), {}, (), most=20)
        victims = [each for each in found.rows if each.is_victim]
        assert len(victims) == 120 == len(found.rows) and found.left_out == 180

    def test_the_ten_best_of_an_audit_are_not_all(self) -> None:
        many = whole(feature_of(frame([pod(f"job-{number:02}", anon=20) for number in range(40)], used=900)))
        found = ranking_of(replace(many, ranking=many.ranking[:10]), {})
        assert len(found.rows) == 10 and found.left_out == 30


def event(kind: str, second: float, **data: object) -> RecordedEvent:
    return RecordedEvent(kind, wall_ns(second) / NS_PER_S, data)


def outcome_event(uid: str, result: Result, decided_ns: int, second: float) -> RecordedEvent:
    sent_ns = decided_ns + 9 if result in (Result.DONE, Result.SENT) else None
    made = Outcome(uid, "spark", uid, "api", result, "so", decided_ns, sent_ns=sent_ns)
    return event("OutcomeArrived", second, outcome=msgspec.to_builtins(made), now_ns=decided_ns + 20)


def decided_at_second(second: int, *uids: str) -> Decided:
    now_ns = NOW_NS + second * NS_PER_S
    return Decided(
        second, wall_ns(second), now_ns, "evicting", tuple(VictimSeen(uid, f"spark/{uid}", 7) for uid in uids)
    )


class TestDecisions:
    def test_alike_ones_in_a_row_are_one(self) -> None:
        found = [*(decided_at_second(second, "a") for second in range(5)), decided_at_second(6, "b")]
        found += [decided_at_second(200, "b")]  # long after it is another one
        events = [outcome_event("a", Result.DRY_RUN, found[0].decided_ns, 0)]
        shown = decisions_shown(found, Outcomes(events), events, lambda _: None)
        assert [(each.times, each.victims, each.is_dry_run) for each in shown] == [
            (5, ("spark/a",), True),
            (1, ("spark/b",), False),
            (1, ("spark/b",), False),
        ]
        assert shown[0].last_s == wall_ns(4) / NS_PER_S

    def test_a_final_outcome_takes_the_place_of_one_that_was_sent(self) -> None:
        outcomes = Outcomes([outcome_event("a", each, 5, 0) for each in (Result.SENT, Result.DONE, Result.FAILED)])
        assert outcomes.of(5)["a"].result is Result.DONE
        assert outcomes.of(6) == {}

    def test_a_round_that_carries_nothing_out_is_none(self) -> None:
        calm, short = read_round(0), read_round(1, used_mib=900)
        found = decided([(0, calm[0].wall_ns, calm[1]), (1, short[0].wall_ns, short[1])], [])
        assert [(each.place, [who.pod for who in each.victims]) for each in found] == [(1, ["spark/job-0"])]


class TestReturned:
    def test_who_came_back_and_who_did_not(self) -> None:
        found = [decided_at_second(5, "a", "b", "c", "dry")]
        at_ns = found[0].decided_ns
        events = [
            *(outcome_event(uid, Result.DONE, at_ns, 5) for uid in ("a", "b", "c")),
            outcome_event("dry", Result.DRY_RUN, at_ns, 5),
            event("MemoryReleased", 6, entry={"uid": "a", "since_ns": 0, "credit_bytes": 7}, now_ns=at_ns + NS_PER_S),
            event(
                "ReleaseOverdue", 9, entry={"uid": "b", "since_ns": 0, "credit_bytes": 7, "why": "it hangs"}, now_ns=1
            ),
            event("MemoryReleased", 7, entry={"uid": "x", "since_ns": 5, "credit_bytes": 3}, now_ns=9),
        ]
        rows = {each.pod: each for each in returned(found, Outcomes(events), events, {"x": "ns/x"})}
        assert rows.keys() == {"spark/a", "spark/b", "spark/c", "ns/x"}
        assert rows["spark/a"].after_ns == NS_PER_S and rows["spark/a"].back_s == wall_ns(6) / NS_PER_S
        assert rows["spark/b"].note.endswith("given up on: it hangs") and rows["spark/b"].back_s is None
        assert rows["spark/c"].note.endswith("was not seen to come back")
        assert rows["ns/x"].evicted_s is None and rows["ns/x"].after_ns == 4


class TestTimeline:
    def test_each_kind_has_its_sentence(self) -> None:
        record = {"comm": "hog", "tgid": 42, "is_global": True}
        owner = {"namespace": "spark", "pod_name": "be-7", "path": "/kubepods/x"}
        events = [
            event("OomKilled", 1, record=record, owner=owner, now_ns=1),
            event("OomKilled", 2, record=record | {"is_global": False}, owner=None, now_ns=1),
            event("OomKilled", 3, record=record, owner={"path": "/system.slice"}, now_ns=1),
            event("ReleaseOverdue", 4, entry={"uid": "u", "credit_bytes": 1}, now_ns=1),
            event("NoticeEnded", 5, notice=["ns", "soft", "p", "r", "u"], problem=None, now_ns=1),
            event("NoticeEnded", 6, notice=["ns", "soft", "p", "r", "u"], problem="no folder", now_ns=1),
            event("TickFailed", 7, reason="boom"),
            event("RoundsLost", 8, rounds=3),
            event("SignalsSeen", 9, kernel="6.12", quality={}),
        ]
        lines, more = timeline((), events, {"u": "ns/u"})
        assert [line.text for line in lines] == [
            "the kernel killed hog (42) of spark/be-7: the machine ran out of memory",
            "the kernel killed hog (42): the limit of its cgroup was hit",
            "the kernel killed hog (42) in /system.slice: the machine ran out of memory",
            "ns/u is not counted on any more: it still holds its memory",
            "ns/soft was notified of a soft eviction",
            "ns/soft could not be notified: no folder",
            "a round of the agent failed: boom",
            "3 rounds were not recorded",
        ]
        assert more == 0
        assert [each.kind for each in marks_of(lines)] == ["oom", "oom", "oom", "gap"]

    def test_files_of_one_name_are_a_line(self) -> None:
        change = {"path": "/x/cpu.max", "result": "dry_run", "owner": "suppress"}
        lines = changed_files([(5.0, change), (6.0, change), (7.0, change | {"result": "written", "owner": ""})])
        assert [(line.at_s, line.text) for line in lines] == [
            (5.0, "suppress: cpu.max, dry run 2 times from then on"),
            (7.0, "cpu.max, written once from then on"),
        ]

    def test_too_many_lines_are_counted(self) -> None:
        lines, more = timeline((), [event("TickFailed", second, reason="x") for second in range(305)], {})
        assert (len(lines), more) == (300, 5)
