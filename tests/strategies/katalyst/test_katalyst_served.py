"""What the plugin of `koordebpf plugin serve` answers, from values."""

from __future__ import annotations

from msgspec.structs import replace

from koordebpf.kube.plugins.given_source import given_pod
from koordebpf.policy.evict.settings import StallSettings
from koordebpf.state.measured import Measured, MemoryParts, NodeMeasure, PodMeasure, StallSample
from koordebpf.state.pods.facts import facts_of_pods
from koordebpf.strategies.katalyst.plugin import Seen, katalyst_pods
from koordebpf.strategies.katalyst.plugins.memory import SystemMemorySettings
from koordebpf.strategies.katalyst.served import (
    STALL_GATES,
    STALL_SCOPE,
    STALL_STRATEGY,
    ServedSettings,
    ServedState,
    served_threshold,
    served_top,
)
from koordebpf.strategies.katalyst.values import KatalystMeasured, SystemMemory, TopPods
from koordebpf.units import GIB, MIB, NS_PER_S
from tests.support.plugin_pods import plugin_pod
from tests.support.values.builders import view_of_measured

NOW_NS = 1000 * NS_PER_S
SETTINGS = ServedSettings(SystemMemorySettings(free_minimum_bytes=2 * GIB), StallSettings(full_percent=60, seconds=10))
START = ServedState()
LEVELS = {"online": "shared_cores", "small": "reclaimed_cores", "large": "reclaimed_cores", "system": "system_cores"}
MIBS = {"online": 900, "small": 100, "large": 300, "system": 5000}


def stalling(ratio: float, seconds: int = 15) -> tuple[StallSample, ...]:
    times = range(NOW_NS - seconds * NS_PER_S, NOW_NS + 1, NS_PER_S)
    return tuple(StallSample(at_ns, ratio, ratio, "team/online", "team/online") for at_ns in times)


def seen(free_gib: float = 8, stalls: tuple[StallSample, ...] = (), now_ns: int = NOW_NS) -> Seen:
    pods = facts_of_pods([given_pod(plugin_pod(uid, level)) for uid, level in LEVELS.items()])
    measures = tuple(
        PodMeasure(uid=uid, cgroup_id=number + 2, memory=MemoryParts(
            usage_bytes=mib * MIB, inactive_anon_bytes=0, active_anon_bytes=mib * MIB, inactive_file_bytes=0,
            active_file_bytes=0, unevictable_bytes=0,
        ))
        for number, (uid, mib) in enumerate(MIBS.items())
    )  # fmt: skip
    node = NodeMeasure("machine", 16 * GIB, int((16 - free_gib) * GIB))
    measured = Measured(now_ns, now_ns, node, measures, stall_window=stalls)
    view = view_of_measured(measured, pods, strategy=STALL_STRATEGY, gates=STALL_GATES)
    active = katalyst_pods(view.pods, {})
    free = int(free_gib * GIB)
    return Seen(view, KatalystMeasured(SystemMemory(16 * GIB, free, free, 10)), active, active)


def test_a_node_with_enough_memory_meets_no_threshold() -> None:
    assert served_threshold(seen(), START, SETTINGS).threshold is None
    assert served_threshold(seen(stalls=stalling(0.5)), START, SETTINGS).threshold is None


def test_a_short_node_meets_the_threshold_of_the_machine() -> None:
    found = served_threshold(seen(free_gib=1, stalls=stalling(0.9)), START, SETTINGS).threshold
    assert found is not None
    assert (found.scope, found.value, found.observed) == ("SystemMemory", 2 * GIB, GIB)


def test_stalls_with_enough_free_memory_meet_a_threshold_of_their_own() -> None:
    found = served_threshold(seen(stalls=stalling(0.9)), START, SETTINGS).threshold
    assert found is not None
    assert (found.met, found.scope, found.value, found.operator) == ("hard", STALL_SCOPE, 60, "greater_than")
    assert round(found.observed) == 90
    assert served_threshold(seen(stalls=stalling(0.9, seconds=5)), START, SETTINGS).threshold is None


def test_for_stalls_reclaimed_pods_leave_and_no_other_the_largest_first() -> None:
    state = seen(stalls=stalling(0.9))
    top, after = served_top(state, LEVELS, START, SETTINGS, STALL_SCOPE, 0)
    assert top == TopPods(("large", "small"), 1)
    # AND none while they leave
    later = seen(stalls=stalling(0.9), now_ns=NOW_NS)
    assert served_top(later, LEVELS, after, SETTINGS, STALL_SCOPE, 1)[0] == TopPods(())
    cooled = replace(after, chosen_ns=NOW_NS - 36 * NS_PER_S)
    assert served_top(later, LEVELS, cooled, SETTINGS, STALL_SCOPE, 1)[0] == TopPods(("large",), 1)


def test_stalls_that_are_over_choose_no_pod() -> None:
    assert served_top(seen(), LEVELS, START, SETTINGS, STALL_SCOPE, 1)[0] == TopPods(())


def test_only_pods_that_are_asked_about_are_chosen_and_never_one_that_katalyst_protects() -> None:
    state = seen(free_gib=1)
    assert served_top(state, {"small", "system", "gone"}, START, SETTINGS, "SystemMemory", 0)[0].uids == ("small",)
    assert served_top(state, set(), START, SETTINGS, "SystemMemory", 0)[0].uids == ()


def test_a_scope_that_another_plugin_has_is_answered_as_the_machine() -> None:
    assert served_top(seen(), LEVELS, START, SETTINGS, "no such scope", 1)[0] == TopPods(())


def test_memory_that_was_not_measured_is_said_and_judges_nothing() -> None:
    state = replace(seen(free_gib=1), measured=KatalystMeasured())
    found = served_threshold(state, START, SETTINGS)
    assert found.threshold is None
    assert found.lacks == "the machine's free memory was not measured"
