"""The ladder under the stall net: what a rung brings to stalls takes as long to see as the stalls took to count."""

from __future__ import annotations

from msgspec.structs import replace

from koordebpf.policy.decide import decide
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.ladder.climb import LadderState, LadderStep, next_rung
from koordebpf.policy.ladder_settings import LadderSettings, Rung
from koordebpf.state.build import view_of_frame
from koordebpf.state.measured import LedgerRow, LedgerView, Party, StallParts, StallSample
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_S
from tests.support.values.builders import NOW_NS, frame, ls_pod, pod

RUNGS = LadderSettings(rungs=frozenset({Rung.RECLAIM, Rung.FREEZE, Rung.EVICT}))
SETTINGS = EvictSettings(ladder=RUNGS)
GROUND = LadderState()


def node(at_s: int, *, above_s: int | None, used: int = 700, stalled_s: float = 8) -> NodeView:
    """Return the node after `at_s`, on which web has stalled for 80 % of the last `above_s`; None: it does not."""
    now_ns = NOW_NS + at_s * NS_PER_S
    web = ls_pod("web", anon=50)
    assert web.measure is not None
    stall = StallParts(10 * NS_PER_S, 0, 0, other_global_ns=int(stalled_s * NS_PER_S))
    web = replace(web, measure=replace(web.measure, stall=stall))
    window = (StallSample(now_ns),)
    if above_s is not None:
        seconds = range(above_s, -1, -1)
        window = tuple(StallSample(now_ns - back * NS_PER_S, 0.8, 0.8, "web/web", "web/web") for back in seconds)
    victim, cause = (Party(uid, "pod", uid, uid=uid) for uid in ("uid-web-web", "uid-spark-reader"))
    ledger = LedgerView(60 * NS_PER_S, 9 * NS_PER_S, 0, (LedgerRow(victim, cause, 9 * NS_PER_S, 0, now_ns),))
    made = frame([web, pod("reader", anon=20, file=200)], used=used, gates={"BEMemoryEvict": True, "StallEvict": True})
    measured = replace(made.measured, now_ns=now_ns, stall_window=window, ledger=ledger)
    return view_of_frame(replace(made, measured=measured))


def step(view: NodeView, state: LadderState = GROUND) -> LadderStep:
    return next_rung(view, decide(view, SETTINGS), state, RUNGS)


def rung_of(found: LadderStep) -> Rung | None:
    return found.begin.rung if found.begin else None


def test_the_rungs_are_climbed_one_window_after_the_other_before_any_eviction():
    first = step(node(0, above_s=30))
    assert rung_of(first) is Rung.RECLAIM
    # The window has restarted: neither is it judged yet, nor is the shortage over.
    for at_s in (1, 15, 29):
        waiting = step(node(at_s, above_s=at_s), first.state)
        assert (waiting.kind, waiting.sentence) == ("wait", "reclaim is judged when the stalls have lasted")
        assert waiting.state == first.state
    second = step(node(30, above_s=30), first.state)
    assert rung_of(second) is Rung.FREEZE
    # A freeze ends in time whatever the stalls do.
    thawed = step(node(51, above_s=21), second.state)
    assert (thawed.kind, [each.plan.rung for each in thawed.undo]) == ("undo", [Rung.FREEZE])
    assert rung_of(step(node(61, above_s=30), thawed.state)) is Rung.EVICT


def test_a_rung_is_judged_by_the_stalls_and_not_by_use_which_is_no_part_of_them():
    first = step(node(0, above_s=30))
    assert rung_of(step(node(30, above_s=30, used=500), first.state)) is Rung.FREEZE
    helped = step(node(30, above_s=30, stalled_s=3), first.state)
    assert (helped.kind, helped.begin) == ("wait", None)


def test_all_is_undone_when_no_pod_stalls_any_more():
    frozen = step(node(30, above_s=30), step(node(0, above_s=30)).state)
    calm = step(node(31, above_s=None), frozen.state)
    assert calm.state.calm_since_ns is not None
    over = step(node(61, above_s=None), calm.state)
    assert (over.kind, over.state) == ("undo", GROUND)


def test_stalls_that_have_not_lasted_begin_nothing():
    assert step(node(0, above_s=20)).kind == "ground"
