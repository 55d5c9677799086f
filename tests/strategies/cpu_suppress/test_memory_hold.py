"""Less CPU for best-effort pods whose growth makes others stall for memory: begin, steps, judgement, end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.state.measured import LedgerRow, LedgerView, Party
from koordebpf.strategies.cpu_suppress.plan import plan_suppress
from koordebpf.strategies.cpu_suppress.values import MemoryHold, MemoryPressureSettings, SuppressSettings, SuppressState
from koordebpf.units import NS_PER_S
from tests.support.values.builders import NOW_NS, ls_pod, pod
from tests.support.values.cpu_nodes import node

WINDOW_NS = 10 * NS_PER_S
ON = SuppressSettings(policy="cfsQuota", memory_pressure=MemoryPressureSettings(is_on=True))
WEB, HOG = ls_pod("web"), pod("hog", anon=100)
BEST_EFFORT = pod("other", anon=1)


def party(each) -> Party:
    return Party(id=each.pod.uid, kind="pod", name=each.pod.key, uid=each.pod.uid)


def stalled(percent: float, victim=WEB, cause=HOG) -> LedgerView:
    ns = int(WINDOW_NS * percent / 100)
    row = LedgerRow(victim=party(victim), cause=party(cause), ns=ns, since_ns=0, last_ns=NOW_NS)
    return LedgerView(window_ns=WINDOW_NS, total_ns=ns, unattributed_ns=0, rows=(row,) if ns else ())


def plan(percent: float, *, second: float = 0, state: SuppressState | None = None, settings=ON, ledger=None, last=None):
    """Decide `second` seconds later, with the last stall at second `last`, or just now."""
    ledger = ledger or stalled(percent)
    last_ns = NOW_NS + int((second if last is None else last) * NS_PER_S)
    view = node(
        pods=[WEB, HOG, BEST_EFFORT],
        node_used=4000,
        be_used=4000,
        ledger=replace(ledger, rows=tuple(replace(row, last_ns=last_ns) for row in ledger.rows)),
        now_ns=NOW_NS + int(second * NS_PER_S),
    )
    return plan_suppress(view, state or SuppressState(), settings)


def test_off_by_default():
    assert plan(50, settings=SuppressSettings(policy="cfsQuota")).quota_us == 520_000


def test_it_begins_at_its_threshold_and_takes_a_quarter_of_what_they_use():
    assert plan(4.9).be_millicpu == 5200
    started = plan(5)
    assert (started.be_millicpu, started.quota_us) == (3000, 300_000)
    assert started.next.memory_hold == MemoryHold(3000, NOW_NS, NOW_NS, 0.05)
    assert "best-effort pods made others stall for memory 5.0% of the time: held to 3 CPUs" in started.reason


@pytest.mark.parametrize(
    "ledger",
    [
        stalled(50, victim=BEST_EFFORT),
        stalled(50, cause=WEB),
        replace(stalled(50), rows=(replace(stalled(50).rows[0], cause=Party("o", "own limit", "own limit")),)),
        stalled(0),
    ],
)
def test_other_stalls_are_no_reason(ledger):
    assert plan(0, ledger=ledger).next.memory_hold is None


def test_it_takes_only_where_there_is_something_left():
    # GIVEN others that leave 1.2 CPUs, while best-effort pods still use 4
    view = node(pods=[WEB, HOG], node_used=8000, be_used=4000, used={"x": 4000}, ledger=stalled(20))
    plan = plan_suppress(view, SuppressState(), ON)
    assert (plan.next.memory_hold.cap_millicpu, plan.be_millicpu) == (3000, 1200)


def test_a_step_each_second_while_it_lasts():
    state, caps = None, []
    for tick in range(8):  # each half second
        answer = plan(20, second=tick / 2, state=state)
        state = answer.next
        caps.append(answer.be_millicpu)
    assert caps == [3000, 3000, 2250, 2250, 1687, 1687, 1265, 1265]
    assert plan(4, second=5, state=state).be_millicpu == 1265  # below the threshold it holds, and takes no more


def test_no_step_for_stalls_of_before_the_last_one():
    # GIVEN a ledger whose window still has what was stalled before the hold
    state = plan(20).next
    later = plan(20, second=5, last=0, state=state)
    assert later.be_millicpu == 3000
    assert "held to 3 CPUs" in later.reason
    again = plan(20, second=6, last=5.5, state=later.next)
    assert again.be_millicpu == 2250
    over = plan(20, second=16, last=5.5, state=again.next)
    assert (over.next.memory_hold, over.be_millicpu) == (None, 5200)
    assert "no pod stalled for memory for 10 s: the hold ends" in over.reason


def test_it_ends_when_the_stalls_are_over():
    held = plan(20).next
    over = plan(2.4, second=1, state=held)
    assert (over.next.memory_hold, over.be_millicpu) == (None, 5200)
    assert "stalls for memory fell to 2.4%: the hold ends" in over.reason


def test_a_hold_without_effect_ends_and_rests():
    state = plan(20).next
    state = plan(20, second=9.9, state=state).next
    assert state.memory_hold is not None
    judged = plan(11, second=10, state=state)  # 20 % fell by less than half
    assert (judged.next.memory_hold, judged.be_millicpu) == (None, 5200)
    assert "the hold ends without effect" in judged.reason
    assert plan(50, second=69, state=judged.next).next.memory_hold is None
    assert plan(50, second=70, state=judged.next).next.memory_hold is not None


def test_it_is_judged_when_the_ledgers_window_has_passed():
    # GIVEN a ledger of 20 s, in which the stalls of before the hold still stand after 11
    ledger = replace(stalled(40), window_ns=2 * WINDOW_NS)
    state = plan(0, ledger=ledger).next
    assert plan(0, second=11, state=state, ledger=ledger).next.memory_hold is not None
    assert plan(0, second=20, state=state, ledger=ledger).next.memory_hold is None


def test_a_hold_that_helps_continues():
    state = plan(20).next
    assert plan(9, second=11, state=state).next.memory_hold is not None


def test_switching_it_off_ends_it():
    assert plan(20, state=plan(20).next, settings=SuppressSettings(policy="cfsQuota")).next.memory_hold is None


def test_it_never_takes_the_last_tenth_of_a_cpu():
    state = SuppressState(memory_hold=MemoryHold(110, NOW_NS, NOW_NS - NS_PER_S, 0.2))
    assert plan(20, state=state).be_millicpu == 100
    state = SuppressState(memory_hold=MemoryHold(100, NOW_NS, NOW_NS - NS_PER_S, 0.2))
    assert plan(20, state=state).be_millicpu == 100
