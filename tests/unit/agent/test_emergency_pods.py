"""On which pods an agent without its API server may still decide."""

from __future__ import annotations

import msgspec
import pytest

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.act.guards.emergency import EmergencySettings
from koordebpf.agent.emergency import Emergency
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.state.build import build_view
from koordebpf.state.pods.facts import pod_facts
from koordebpf.state.view import Measured, NodeMeasure, NodeView, PodMeasure, RefusedEviction
from koordebpf.units import NS_PER_S
from tests.support.values.builders import memory_volume, pod

SYNCED_NS = 1_000 * NS_PER_S
A, B, C = pod("a", volumes=[memory_volume()]), pod("b"), pod("c")
FACTS = tuple(pod_facts(each.pod) for each in (A, B, C))


KNOWN = ClusterState(version=1, synced_at_ns=SYNCED_NS)


def at(seconds: int, **cgroups: int | None) -> Measured:
    """Return what was measured so long after the last sign of life, by pod its cgroup."""
    uids = {each.name: each.uid for each in FACTS}
    now_ns = SYNCED_NS + seconds * NS_PER_S
    return Measured(
        now_ns=now_ns,
        since_ns=now_ns - 1,
        node=NodeMeasure(scope="machine", total_bytes=1, used_bytes=1),
        pods=tuple(PodMeasure(uid=uids[name], cgroup_id=cgroup) for name, cgroup in cgroups.items()),
    )


def view_of(measured: Measured, gates: dict[str, bool] | None = None) -> NodeView:
    return build_view(
        pods=FACTS,
        node=None,
        strategy=None,
        measured=measured,
        feature_gates=gates or {"BEMemoryEvict": True, "MemoryEvict": True, "BECPUSuppress": True},
        executor="api",
        refused=[RefusedEviction(FACTS[0].uid, None, "a disruption budget")],
    )


@pytest.fixture
def lost() -> Emergency:
    """Return one that has seen a, b and c in cgroups 1, 2 and none while the list was fresh."""
    settings = EmergencySettings(action="kill-be", after_ns=120 * NS_PER_S, max_age_ns=600 * NS_PER_S)
    executor = CgroupExecutor(lambda *_: None, OutcomeQueue(lambda: None))
    emergency = Emergency(settings, 90 * NS_PER_S, executor)
    assert emergency.look(at(0, a=9, b=9), KNOWN) is None
    assert emergency.look(at(90, a=1, b=2, c=None), KNOWN) is None
    return emergency


def test_it_is_one_from_its_time_to_its_end(lost: Emergency) -> None:
    assert [lost.look(at(seconds), KNOWN) is not None for seconds in (91, 120, 121, 600, 601)] == [
        *(False, False, True, True, False)
    ]


def test_before_the_first_list_there_is_none(lost: Emergency) -> None:
    assert lost.look(at(300), ClusterState(version=1, synced_at_ns=0)) is None


def test_a_server_that_says_no_is_not_lost(lost: Emergency) -> None:
    assert lost.look(at(300), msgspec.structs.replace(KNOWN, is_denied=True)) is None


@pytest.mark.parametrize(
    ("cgroups", "names"),
    [
        ({"a": 1, "b": 2}, ["a", "b"]),
        ({"a": 1, "b": 3}, ["a"]),  # made anew under the same uid
        ({"a": 2, "b": 1}, []),  # whatever that is
        ({"a": 1, "b": None}, ["a"]),
        ({"a": 1, "b": 2, "c": 3}, ["a", "b"]),  # c had none when the list was fresh
        ({"a": 9, "b": 9}, []),  # those of an older fresh list
        ({}, []),
    ],
)
def test_only_the_same_pods_in_the_same_cgroups(
    lost: Emergency, cgroups: dict[str, int | None], names: list[str]
) -> None:
    measured = at(300, **cgroups)
    assert lost.look(measured, KNOWN) is not None  # and it does not learn from it
    view = view_of(measured)
    narrowed = lost.narrowed(view, FACTS)
    assert [each.name for each in narrowed.pods] == names
    assert [each.name for each in view.pods] == ["a", "b", "c"]


def test_the_decision_is_on_best_effort_pods_and_for_a_kill(lost: Emergency) -> None:
    narrowed = lost.narrowed(view_of(at(300, a=1, b=2)), FACTS)
    assert narrowed.feature_gates == {"BEMemoryEvict": True, "MemoryEvict": False, "BECPUSuppress": False}
    assert (narrowed.executor, narrowed.refused) == ("cgroup", ())
    # A volume in memory outlives a kill, though it would go with an eviction.
    assert [each.keeps_tmpfs for each in narrowed.pods] == [True, False]
    assert [each.keeps_tmpfs for each in view_of(at(300, a=1, b=2)).pods] == [False, False, False]


def test_a_gate_that_is_off_stays_off(lost: Emergency) -> None:
    view = view_of(at(300, a=1), gates={"BEMemoryEvict": False, "MemoryEvict": True})
    assert not any(lost.narrowed(view, FACTS).feature_gates.values())
