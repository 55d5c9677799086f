"""How much an incident's page has of each, what is put together, and what a recording says of its node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from koordebpf.decision.decide_tick import decided_again, tick_view
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.measured import LedgerRow, LedgerView, Party, PsiLine, StallParts
from koordebpf.state.outcome import Result
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.ring import Run
from koordebpf.store.recorder.rounds import RoundEncoder
from koordebpf.store.recorder.stores import FileStore
from koordebpf.tools.incident import decisions as of_decisions
from koordebpf.tools.incident.charts import charts_of
from koordebpf.tools.incident.decisions import FullDecision, Outcomes, decisions_shown, whole
from koordebpf.tools.incident.moments import Moment, Moments
from koordebpf.tools.incident.of_recording import heat_map, incident_of_recording
from koordebpf.tools.incident.ranking import ranking_of, read_decision
from koordebpf.tools.incident.timeline import marks_of, timeline
from koordebpf.tools.incident.values import DecisionShown
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import feature_of, frame, pod
from tests.support.values.rounds import round_at, tick_at, wall_ns
from tests.unit.tools.incident.test_incident_parts import (
    decided_at_second,
    event,
    moment,
    moments_of,
    outcome_event,
    read_round,
)

SHORT = whole(feature_of(frame([pod("hog", anon=300), pod("calm", anon=10)], used=900)))


@pytest.mark.parametrize(
    ("reason", "more", "said"),
    [("a b", "", "a b"), ("a b", "b", "a b"), ("a b", "c", "a b; c"), ("", "c", "c")],
)
def test_a_features_reason_is_said_once(reason: str, more: str, said: str) -> None:
    feature = replace(SHORT, verdict=replace(SHORT.verdict, reason=reason), reason=more)
    assert ranking_of(feature, {}).reason == said


@pytest.mark.parametrize(
    ("changes", "chosen", "stays"),
    [
        ({}, "chosen: rank 1", "stays: 300 MiB of the victims cover the 120 MiB that were needed"),
        ({"reasons": {"uid-spark-hog": "asked"}}, "asked", None),
        ({"reasons": {"uid-spark-hog": SHORT.verdict.reason}}, "chosen: rank 1", None),  # that is said above
        ({"verdict": replace(SHORT.verdict, fires=False)}, "chosen: rank 1", "stays: this feature does not fire"),
        ({"balance": replace(SHORT.balance, missing=1)}, "chosen: rank 1", "stays: the need is covered"),
        ({"balance": replace(SHORT.balance, missing=1), "reason": "no more"}, "chosen: rank 1", "stays: no more"),
    ],
)
def test_who_is_chosen_and_who_stays_says_why(changes: dict[str, Any], chosen: str, stays: str | None) -> None:
    hog, calm = ranking_of(replace(SHORT, **changes), {}).rows
    assert hog.why == chosen
    assert stays is None or calm.why == stays


def test_a_disruption_budget_is_named_where_it_does_not_allow() -> None:
    for disruption, chosen, stays in (
        ("allowed", "chosen: rank 1", "stays: 300 MiB"),
        ("blocked by x", "chosen: rank 1; blocked by x", "stays: blocked by x"),
    ):
        ranking = tuple(replace(each, disruption=disruption) for each in SHORT.ranking)
        hog, calm = ranking_of(replace(SHORT, ranking=ranking), {}).rows
        assert hog.why == chosen and calm.why.startswith(stays)


def full(_: int = 0) -> FullDecision:
    tick, decision = round_at(1, used_mib=900)
    assert decision.carried is not None
    return FullDecision(decision.carried, tick_view(tick).pods)


@pytest.mark.parametrize(
    ("most", "rows"),
    [(3000, [5, 5, 5, 5]), (10, [5, 5, 0, 0]), (12, [5, 5, 2, 0]), (6, [5, 1, 0, 0]), (0, [0, 0, 0, 0])],
)
def test_rankings_are_whole_until_their_rows_are_spent(
    most: int, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_decisions, "MOST_ROWS", most)
    asked: list[int] = []
    found = [decided_at_second(100 * number, "a") for number in range(4)]
    shown = decisions_shown(found, Outcomes([]), [], lambda place: asked.append(place) or full())  # type: ignore[func-returns-value]
    assert [sum(len(ranking.rows) for ranking in each.rankings) for each in shown] == rows
    assert len(asked) == len([each for each in rows if each])


def test_of_many_decisions_the_last_200_are_shown() -> None:
    found = [decided_at_second(100 * number, "a") for number in range(201)]
    shown = decisions_shown(found, Outcomes([]), [], lambda _: None)
    assert (len(shown), shown[0].at_s) == (200, wall_ns(100) / NS_PER_S)


@pytest.mark.parametrize(("second", "times"), [(60, [2]), (61, [1, 1])])
def test_alike_are_those_within_a_minute(second: int, times: list[int]) -> None:
    found = [decided_at_second(0, "a"), decided_at_second(second, "a")]
    assert [each.times for each in decisions_shown(found, Outcomes([]), [], lambda _: None)] == times


def test_a_dry_run_is_one_of_which_any_outcome_says_so() -> None:
    found = [decided_at_second(0, "a", "b")]
    results = (Result.DRY_RUN, Result.REFUSED)
    events = [outcome_event(uid, each, found[0].decided_ns, 0) for uid, each in zip("ab", results, strict=True)]
    assert decisions_shown(found, Outcomes(events), events, lambda _: None)[0].is_dry_run


def test_latencies_are_of_this_decision_alone() -> None:
    uid = "uid-spark-job-0"
    (found,) = [decided_at_second(1, uid)]
    at_ns = found.decided_ns

    def crossed(decided_ns: int, ns: int) -> Any:
        return event("PlanDecided", 1, outcomes=[], decided_ns=decided_ns, crossed_ns=ns)

    def back(ns: int) -> Any:
        return event("MemoryReleased", 2, entry={"uid": uid, "since_ns": 0, "credit_bytes": 1}, now_ns=ns)

    sent = outcome_event(uid, Result.DONE, at_ns, 1)
    events = [crossed(at_ns - 1, at_ns - 7), back(at_ns - 1), crossed(at_ns, at_ns - 3_000), sent, back(at_ns + 5_000)]
    (shown,) = decisions_shown([found], Outcomes(events), events, full)
    assert shown.latencies == "seen to decided 3 µs, decided to sent 9 ns, decided to memory back 5 µs"


def test_lines_of_every_source_come_by_time() -> None:
    decisions = [
        DecisionShown(3.0, 3.0, 1, "evicting a", (), False),
        DecisionShown(1.0, 2.0, 2, "evicting b", (), True),
    ]
    entry = {"uid": "u", "credit_bytes": MIB}
    change = {"path": "/x/cpu.max", "result": "written", "owner": "suppress"}
    events = [event("FileChanged", -wall_ns(0) / NS_PER_S + 2, change=change), event("MemoryReleased", 1, entry=entry)]
    lines, _ = timeline(decisions, events, {"u": "ns/u"})
    assert [line.text for line in lines] == [
        "evicting b (dry run); 2 times" if "2 times" in lines[0].text else lines[0].text,
        "suppress: cpu.max, written once from then on",
        "evicting a",
        "the memory of ns/u is back, 1.0 MiB expected",
    ]
    assert lines[0].text.startswith("evicting b (dry run); ")
    assert [each.kind for each in marks_of(lines)] == ["decision", "decision", "back"]


def test_the_last_200_marks_are_in_every_plot() -> None:
    lines, _ = timeline([DecisionShown(float(at), at, 1, str(at), (), False) for at in range(201)], [], {})
    marks = marks_of(lines)
    assert (len(marks), marks[0].at_s) == (200, 1.0)


def test_small_victims_have_half_of_the_names_and_one_pod_too_many_is_one() -> None:
    held = {f"u{number:02}": number for number in range(1, 12)}
    (memory,) = charts_of([moment(0, held)], {}, [f"u{number:02}" for number in range(1, 8)])
    areas = [each.name for each in memory.series if each.style == "area"]
    assert areas == [*(f"pod u{number:02}" for number in (11, 10, 9, 8, 7, 5, 4, 3, 2, 1)), "1 other pod", areas[-1]]
    assert sum(each.values[0] or 0 for each in memory.series if each.style == "area") == 1000
    ten = {f"u{number:02}": number for number in range(1, 11)}
    (memory,) = charts_of([moment(0, ten)], {}, [])
    assert not any("other" in each.name for each in memory.series)


def test_the_six_pods_of_the_highest_peaks_have_lines() -> None:
    peaks = {f"u{number}": number / 10 for number in range(1, 9)}
    held = dict.fromkeys(peaks, 1)
    rows = [moment(0, held, stalls=peaks), moment(1, held, some_ratio=0.25), moment(2, held, stalls={"u1": 0.75})]
    charts = {each.id: each for each in charts_of(rows, {}, [])}
    lines = {each.name: each.values for each in charts["stalls"].series}
    assert [name for name in lines if name.startswith("pod ")] == [f"pod u{number}" for number in (8, 1, 7, 6, 5, 4)]
    assert (25.0 in next(iter(lines.values()))) and lines["pod u8"] == (80.0, 0.0, 0.0)


def test_growth_and_suppression_are_plotted_where_they_are_known() -> None:
    rows = [
        moment(0, {"u": 1}),
        moment(1, {"u": 1}, be_may_have_millicpu=1500, be_limited_millicpu=2500, be_used_millicpu=500),
    ]
    rows[1].growths, rows[1].growth_bytes_per_s = {"u": 7.4}, -2.6
    charts = {each.id: each for each in charts_of(rows, {}, [])}
    assert [each.values for each in charts["growth"].series] == [(None, -3), (0, 7)]
    assert [each.values for each in charts["suppression"].series] == [(None, 1.5), (None, 2.5), (None, 0.5)]


def test_a_map_has_room_for_twelve_and_others_only_for_more() -> None:
    def names(count: int) -> tuple[str, ...]:
        parties = [Party(f"{number:02}", "pod", f"{number:02}") for number in range(count)]
        rows = tuple(LedgerRow(each, parties[0], 5, 0, 0) for each in parties)
        return heat_map([LedgerView(1, 0, 0, rows)], "x").victims

    assert names(12) == tuple(f"{number:02}" for number in range(12))
    assert names(13) == (*names(12), "others")


def with_measures(second: float, decision: bytes | None = None, **changes: Any) -> Any:
    each, read = read_round(second)
    measured = each.tick.frame.measured
    measured = replace(measured, pods=(replace(measured.pods[0], **changes), *measured.pods[1:]))
    tick = replace(each.tick, frame=replace(each.tick.frame, measured=measured))
    return msgspec.structs.replace(each, tick=tick), read if decision is None else read_decision(decision)


def suppressing(be: int | None, held: int | None) -> bytes:
    plan = {"be_millicpu": be, "held_millicpu": held}
    return msgspec.json.encode(
        {"plan": {"now_ns": 1, "sentence": ""}, "strategies": {"suppress": {"plan": plan if be else None}}}
    )


def test_of_a_stretch_best_effort_pods_may_have_the_least_and_marks_are_those_that_are_known() -> None:
    rounds = [with_measures(second, suppressing(*pair)) for second, pair in enumerate([(7, 9), (None, None), (5, 11)])]
    (found,) = moments_of([*rounds, read_round(3)], 1)
    assert (found.be_may_have_millicpu, found.be_limited_millicpu) == (5, 9)
    assert (found.threshold_bytes, found.lower_bytes) == (800 * MIB, 780 * MIB)


@pytest.mark.parametrize(
    ("total_ns", "window_ns", "stalls"), [(5, 10, 0.5), (20, 10, 1.0), (5, 0, None), (0, 10, None)]
)
def test_a_pod_stalls_for_a_share_of_the_window_all_of_it_at_most(
    total_ns: int, window_ns: int, stalls: float | None
) -> None:
    (found,) = moments_of([with_measures(0, stall=StallParts(window_ns, total_ns, 0))], 10)
    assert found.stalls == ({} if stalls is None else {"uid-spark-job-0": stalls})


def test_a_node_stalls_for_all_of_the_time_at_most_and_without_time_it_is_not_known() -> None:
    made = Moments(wall_ns(0), wall_ns(9), 10)
    for second, total_us in ((0, 0), (1, 5_000_000), (1, 6_000_000), (2, 6_000_000)):
        each, decision = read_round(second)
        measured = each.tick.frame.measured
        node = replace(measured.node, psi_some=PsiLine(0, 0, 0, total_us))
        tick = replace(each.tick, frame=replace(each.tick.frame, measured=replace(measured, node=node)))
        made.record(msgspec.structs.replace(each, tick=tick), decision)
    assert [each.some_ratio for each in made.found] == [None, 1.0, 0.0]
    assert isinstance(made.found[0], Moment)


def facts(folder: Path, redacted: bool = False, **changes: Any) -> dict[str, str]:
    tick = tick_at(1)
    tick = replace(tick, frame=replace(tick.frame, **changes))
    store = FileStore(folder / "x.rounds", Run("0123abcd", "n"), MIB, redacted=redacted)
    store.add(RoundEncoder().encode(tick, decided_again(tick), wall_ns(1)), b"", [])
    store.commit()
    store.close()
    return {each.name: each.value for each in incident_of_recording(Recording(folder / "x.rounds"), "x").facts}


def test_facts_are_those_of_the_last_round_and_the_headers(tmp_path: Path) -> None:
    node = tick_at(1).frame.node
    assert node is not None
    labels = {"kubernetes.io/arch": "arm64", "x": "y"}
    found = facts(tmp_path, node=replace(node, metadata=replace(node.metadata, labels=labels)))
    assert found["kubernetes.io/arch"] == "arm64" and "x" not in found and "Names" not in found
    assert found["Node is"] == "the machine, 1.0 GiB of memory"
    assert (found["Evictions"], found["Runs of the agent"]) == ("by executor api", "0123abcd")
    assert found["Feature gates on"] == "BEMemoryEvict"
    assert found["NodeSLO"].startswith("enable true, ") and "memoryEvictThresholdPercent 80" in found["NodeSLO"]
    assert "None" not in found["NodeSLO"]


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"featureGates": {"BEMemoryEvict": False}}, "Feature gates on", "none is named; the defaults apply"),
        ({"nodeSLO": msgspec.UNSET}, "NodeSLO", "none is known"),
        ({"strategyInForce": ResourceThresholdStrategy()}, "NodeSLO", "no field is set"),
        ({"node": None}, "Evictions", "by executor api"),
    ],
)
def test_what_is_not_set_is_said(changes: dict[str, Any], name: str, value: str, tmp_path: Path) -> None:
    assert facts(tmp_path, **changes)[name] == value


def test_a_redacted_recording_says_so(tmp_path: Path) -> None:
    assert "redacted" in facts(tmp_path, redacted=True)["Names"]
