"""What is good and what is bad about a run of the demo, and where its numbers come from."""

from __future__ import annotations

import io

import msgspec
import pytest

from koordebpf.demo.output import Event
from koordebpf.demo.screen import JsonLines, Screen
from koordebpf.demo.story import STORIES
from koordebpf.demo.verdict import (
    Eviction,
    PodEnd,
    PodStalls,
    Rounds,
    StoryFacts,
    Verdict,
    evictions_of,
    judge,
    rounds_within,
)
from koordebpf.policy.detect.verdict import Verdict as Condition
from koordebpf.policy.plan import Balance, Candidate, Holding
from koordebpf.state.amount import MEMORY
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.audit_record import AuditedFeature, AuditRecord, Latencies
from koordebpf.units import GIB, MIB, NS_PER_MS

MS = NS_PER_MS
HOG_EVICTED = Eviction("hog", True, 1005 * MS, 1006 * MS, 1007 * MS, 1040 * MS, 400 * MIB)


_NONE = PodStalls()


def pod(name, *, is_be=True, priority=5500, is_alive=True, stalls=_NONE):
    return PodEnd(name, is_be, priority, is_alive, stalls)


def facts(kind="hog", **changes):
    hog = {"hog": "hog", "page-cache": "reader", "own-limit": "thrash"}[kind]
    usual = {
        "kind": kind,
        "limit_bytes": GIB,
        "threshold_bytes": GIB * 8 // 10,
        "began_ns": 500 * MS,
        "crossed_ns": 1003 * MS if kind == "hog" else None,
        "below_ns": 1039 * MS if kind == "hog" else None,
        "peak_usage_bytes": GIB,
        "peak_used_bytes": GIB * 81 // 100 if kind == "hog" else GIB // 3,
        "evictions": (HOG_EVICTED,) if kind == "hog" else (),
        "oom_kills": 0,
        "pods": (
            pod("web", is_be=False, priority=9500),
            pod("train"),
            pod(
                hog,
                priority=5000,
                is_alive=kind != "hog",
                stalls=PodStalls(limit_count=7, limit_ns=7 * MS) if kind == "own-limit" else PodStalls(),
            ),
        ),
        "aggressor": hog,
        "ls_pod": "web",
        "quiet": Rounds(100, 1 * MS, 2 * MS, 3 * MS),
        "trouble": Rounds(100, 1 * MS, 2 * MS, 3 * MS),
        "above": None,
    }
    return StoryFacts(**usual | changes)


def bad(verdict: Verdict) -> list[str]:
    assert verdict.is_as_it_should_be is not any(line.ok is False for line in verdict.lines)
    return [line.name for line in verdict.lines if line.ok is False]


def text(verdict: Verdict, name: str) -> str:
    return next(line.text for line in verdict.lines if line.name == name)


def with_pod(story: StoryFacts, name: str, **changes) -> tuple[PodEnd, ...]:
    return tuple(msgspec.structs.replace(each, **changes) if each.name == name else each for each in story.pods)


@pytest.mark.parametrize("kind", STORIES)
def test_a_story_that_went_well_is_good(kind):
    assert bad(judge(facts(kind))) == []


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"evictions": ()}, ["evicted", "no one else"]),
        ({"evictions": (msgspec.structs.replace(HOG_EVICTED, pod="train"),)}, ["evicted", "no one else"]),
        ({"evictions": (msgspec.structs.replace(HOG_EVICTED, is_done=False),)}, ["evicted"]),
        ({"evictions": (HOG_EVICTED, msgspec.structs.replace(HOG_EVICTED, pod="train"))}, ["no one else"]),
        ({"oom_kills": 1}, ["OOM kills"]),
        ({"agent_exit_code": -9}, ["agent"]),
        ({"agent_exit_code": None}, ["agent"]),
        ({"problems": ("the tick ended unexpectedly",)}, ["problem"]),
        ({"began_ns": None}, ["trouble"]),
    ],
)
def test_a_hog_story_that_went_wrong_says_what(changes, names):
    assert bad(judge(facts(**changes))) == names


def test_a_pod_that_died_without_being_asked_is_bad():
    story = facts()
    assert bad(judge(facts(pods=with_pod(story, "train", is_alive=False)))) == ["no one else"]
    assert bad(judge(facts(pods=with_pod(story, "web", is_alive=False)))) == ["no one else", "web"]


def test_a_victim_that_still_runs_is_bad():
    assert bad(judge(facts(pods=with_pod(facts(), "hog", is_alive=True)))) == ["evicted"]


@pytest.mark.parametrize("kind", ["page-cache", "own-limit"])
def test_any_eviction_is_bad_where_none_is_needed(kind):
    aggressor = facts(kind).aggressor
    assert bad(judge(facts(kind, evictions=(msgspec.structs.replace(HOG_EVICTED, pod=aggressor),)))) == ["evicted"]
    assert bad(judge(facts(kind, pods=with_pod(facts(kind), aggressor, is_alive=False)))) == ["evicted"]


def test_a_flood_that_did_not_fill_the_node_shows_nothing():
    assert bad(judge(facts("page-cache", peak_usage_bytes=GIB // 2))) == ["node filled"]


def test_a_flood_that_was_no_page_cache_shows_nothing():
    assert bad(judge(facts("page-cache", peak_used_bytes=GIB * 9 // 10))) == ["node filled"]
    threshold = facts("page-cache").threshold_bytes  # from it on, pods are evicted
    assert bad(judge(facts("page-cache", peak_used_bytes=threshold))) == ["node filled"]
    assert bad(judge(facts("page-cache", peak_used_bytes=threshold - 1))) == []


def test_thrashing_that_never_reclaimed_shows_nothing():
    story = facts("own-limit")
    assert bad(judge(facts("own-limit", pods=with_pod(story, "thrash", stalls=PodStalls())))) == ["stalls"]


def test_a_stall_for_the_node_is_bad_where_only_a_limit_is_short():
    for_node = PodStalls(node_count=1, node_ns=MS)
    verdict = judge(facts("own-limit", pods=with_pod(facts("own-limit"), "web", stalls=for_node)))
    assert bad(verdict) == ["stalls", "web's stalls"]


def test_what_cannot_be_seen_is_said_and_is_not_zero():
    story = facts("own-limit")
    pods = tuple(msgspec.structs.replace(each, stalls=None) for each in story.pods)
    verdict = judge(facts("own-limit", pods=pods, stalls_unseen="no BPF here", oom_kills=None))
    assert bad(verdict) == []
    assert text(verdict, "stalls") == "not seen here: no BPF here"
    assert text(verdict, "OOM kills") == "this kernel does not count them"


def test_latencies_are_counted_from_the_crossing():
    verdict = judge(facts())
    assert text(verdict, "crossing to decision") == "3.0 ms"
    assert text(verdict, "decision to SIGKILL") == "1.0 ms"
    assert text(verdict, "SIGKILL to memory back") == "33.0 ms"


def test_a_step_that_was_not_reached_is_not_zero():
    verdict = judge(facts(evictions=(msgspec.structs.replace(HOG_EVICTED, freed_ns=None),)))
    assert text(verdict, "SIGKILL to memory back") == "not reached"


def test_rounds_that_overlap_the_window_count():
    rounds = [(0, 10), (20, 10), (40, 10), (60, 10)]
    assert rounds_within(rounds, 25, 41) == Rounds(2, 10, 10, 10)
    assert rounds_within(rounds, 11, 19) is None
    assert rounds_within(rounds, None, 41) is None


def test_p99_is_by_nearest_rank():
    rounds = [(at, at + 1) for at in range(200)]
    assert rounds_within(rounds, 0, 10_000) == Rounds(200, 100, 198, 200)


@pytest.mark.parametrize(
    ("took", "expected"),
    [
        ([5], Rounds(1, 5, 5, 5)),
        ([2, 1], Rounds(2, 1, 2, 2)),
        ([3, 1, 2], Rounds(3, 2, 3, 3)),
        ([*range(1, 101)], Rounds(100, 50, 99, 100)),
    ],
)
def test_the_median_of_an_even_number_is_the_lower_one(took: list[int], expected: Rounds) -> None:
    assert rounds_within([(1, each) for each in took], 0, 10) == expected


def test_evictions_come_from_the_audit_line():
    candidate = Candidate(1, "u1", "default", "hog", 7, 5000, (Holding(MEMORY, 400 * MIB, 400 * MIB),))
    feature = AuditedFeature(
        Condition("BEMemoryEvict", True, "why"), Balance(MEMORY, 1, credit=1), 1, (candidate,), ("u1",), (), ""
    )
    record = AuditRecord(
        time="2026-01-01T00:00:00.000Z",
        node="n",
        dry_run=False,
        decided_ns=1006 * MS,
        sentence="evicting default/hog",
        features=(feature,),
        outcomes=(Outcome("u1", "default", "hog", "cgroup", Result.DONE, "", 1006 * MS, sent_ns=1007 * MS),),
        latencies=Latencies(seen_to_decided_ns=1 * MS, decided_to_freed_ns=34 * MS),
    )
    assert evictions_of(record) == (HOG_EVICTED,)
    unfinished = msgspec.structs.replace(record, latencies=Latencies())
    assert evictions_of(unfinished)[0].seen_ns is None
    assert evictions_of(unfinished)[0].freed_ns is None


def events() -> list[Event]:
    return [
        Event(0, "agent", "watching the node cgroup /sys/fs/cgroup/memory/x, pods from file", None, {"level": "info"}),
        Event(500 * MS, "worker", "begins", "hog"),
        Event(
            600 * MS, "usage", numbers={
                "usage_bytes": GIB, "used_bytes": GIB // 2, "pods_usage_bytes": {"web": 100 * MIB, "hog": GIB},
            },
        ),
        Event(900 * MS, "agent", "boom\nTraceback: " + "x" * 200, None, {"level": "error"}),
        Event(
            1050 * MS, "evicted", "evicting default/hog (priority 5000): node at 80 %", "hog",
            {
                "crossed_ns": 1003 * MS, **msgspec.to_builtins(HOG_EVICTED),
                "ranking": [{"pod": "hog", "priority": 5000}, {"pod": "train", "priority": 5500}],
            },
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", STORIES)
def test_nothing_is_wider_than_80_columns(kind):
    out = io.StringIO()
    screen = Screen(out)
    screen.begin(STORIES[kind], GIB)
    for event in events():
        screen.tell(event)
    many = Rounds(99_999, 9999 * MS, 9999 * MS, 9999 * MS)
    story = facts(kind, quiet=many, trouble=many, above=many, crossed_ns=MS, problems=("x " * 90,))
    screen.end(story, judge(story))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "\x1b" not in out.getvalue()  # no terminal, no colour


def test_json_ends_with_the_verdict_and_every_number():
    out = io.StringIO()
    lines = JsonLines(out)
    lines.begin(STORIES["hog"], GIB)
    for event in events():
        lines.tell(event)
    lines.end(facts(), judge(facts()))
    said = [msgspec.json.decode(line) for line in out.getvalue().splitlines()]
    assert [line["event"] for line in said] == ["story", *(event.event for event in events()), "verdict"]
    assert said[-1]["is_as_it_should_be"] is True
    assert msgspec.convert(said[-1]["facts"], StoryFacts) == facts()


@pytest.mark.parametrize(("verbose", "shown"), [(False, False), (True, True)])
def test_what_the_agent_says_while_it_starts_is_for_the_curious(verbose, shown):
    out = io.StringIO()
    screen = Screen(out, verbose=verbose)
    screen.begin(STORIES["hog"], GIB)
    screen.tell(Event(0, "agent", "missing signal: x", None, {"level": "warning"}))
    screen.tell(Event(0, "agent", "no such socket", None, {"level": "error"}))
    for event in events():
        screen.tell(event)
    assert ("missing signal: x" in out.getvalue()) is shown
    assert "no such socket" in out.getvalue()
    assert "boom" in out.getvalue()  # after the node was seen once
