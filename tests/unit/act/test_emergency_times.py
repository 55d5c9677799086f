"""When the API server counts as lost, on both sides of each line, and what then is still forbidden."""

from __future__ import annotations

import pytest

from koordebpf.policy.guards import EmergencySettings, GuardLimits, closed_guards, emergency, without_stale
from koordebpf.state.guard_facts import ClosedGuard, GuardFacts
from koordebpf.units import NS_PER_S

KILL_BE = EmergencySettings(action="kill-be", after_ns=120 * NS_PER_S, max_age_ns=600 * NS_PER_S)


@pytest.mark.parametrize(
    ("age_ns", "is_one"),
    [
        (0, False),
        (120 * NS_PER_S, False),
        (120 * NS_PER_S + 1, True),
        (600 * NS_PER_S, True),
        (600 * NS_PER_S + 1, False),
    ],
)
def test_it_begins_and_it_ends(age_ns: int, is_one: bool) -> None:
    assert (emergency(age_ns, KILL_BE) is not None) is is_one
    assert emergency(age_ns, EmergencySettings(after_ns=0)) is None  # nothing is the default


def test_its_sentence_has_both_numbers() -> None:
    assert emergency(130 * NS_PER_S, KILL_BE) == (
        "emergency: the API server has not been heard of for 130 s > 120 s, best-effort pods are killed by cgroup"
    )


def test_it_opens_the_guard_on_the_age_of_the_list_and_no_other() -> None:
    facts = GuardFacts(
        now_ns=1000 * NS_PER_S, source="api", pods_synced_ns=NS_PER_S, lost_records=9, clock_jump_ns=99 * NS_PER_S,
        running_pods=2, running_pods_without_cgroup=2,
    )  # fmt: skip
    closed = closed_guards(facts, GuardLimits())
    assert [guard.code for guard in closed] == ["pods_stale", "records_lost", "clock_jump", "node_disagrees"]
    assert [guard.code for guard in without_stale(closed)] == ["records_lost", "clock_jump", "node_disagrees"]
    assert without_stale((ClosedGuard("no_pod_view", "s"),)) == (ClosedGuard("no_pod_view", "s"),)
