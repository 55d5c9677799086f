"""A whole agent in virtual time, from its start to what the next one finds: no process, no thread, no kernel."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koordebpf.policy.detect.be_memory_evict import FEATURE
from koordebpf.policy.guards import GuardLimits
from koordebpf.state.outcome import Result
from koordebpf.store.sink import OutcomeArrived
from koordebpf.units import NS_PER_S
from tests.support.simulated.cluster import CUT_AFTER, CUT_BEFORE
from tests.support.simulated.faults import DEATH
from tests.support.simulated.node import SimulatedNode

Make = Callable[..., SimulatedNode]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes a node of 1,000 MiB with `hog` and `other`, best effort, and `web`; 70 % is much."""
    nodes: list[SimulatedNode] = []

    def made(**given: Any) -> SimulatedNode:
        node = SimulatedNode(tmp_path, **given).__enter__()
        nodes.append(node)
        node.add("hog", 300, qos="BE")
        node.add("other", 50, qos="BE", priority=5500)
        node.add("web", 50, qos="LS", kube_qos="Burstable", priority=9500)
        node.hold()
        node.start()
        node.run(2)
        return node

    yield made
    for node in nodes:
        node.close()


def gone(node: SimulatedNode, *names: str) -> bool:
    """Tell whether the pods that were evicted are these, by what is left of those that there were."""
    return {"hog", "other", "web"} - set(node.pods) == set(names)


def results(node: SimulatedNode) -> list[Result]:
    return [event.outcome.result for event in node.events if isinstance(event, OutcomeArrived)]


def held(node: SimulatedNode) -> str:
    return node.plans()[-1].outcomes[0].detail


@pytest.mark.parametrize("executor", ["api", "cri"])
def test_a_hog_is_evicted_and_no_other(make: Make, executor: str) -> None:
    node = make(executor=executor)
    node.hold(hog=700)
    node.run(5)
    assert gone(node, "hog")
    assert results(node) == [Result.DONE]
    assert node.failed_ticks() == []


def test_with_its_gate_off_nothing_is_evicted(make: Make) -> None:
    node = make()
    node.stop()
    node.config = msgspec.structs.replace(node.config, feature_gates={**node.config.feature_gates, FEATURE: False})
    node.start()
    node.hold(hog=700)
    node.run(5)
    assert node.gone == []


def test_a_new_threshold_holds_from_the_next_tick(make: Make) -> None:
    node = make()
    node.hold(hog=500)
    node.run(2)
    assert node.gone == []
    node.set_slo(50)
    node.run(1)
    assert [node.plans()[0].plan.victims[0].candidate.name] == ["hog"]


def test_an_unusable_nodeslo_leaves_the_last_good_one_in_force(make: Make) -> None:
    node = make()
    node.set_slo(50, resourceUsedThresholdWithBE="most")
    node.run(2)
    node.hold(hog=500)
    node.run(2)
    assert node.gone == []
    node.hold(hog=700)
    node.run(5)
    assert gone(node, "hog")


def test_an_error_of_the_server_is_tried_again_as_the_same_eviction(make: Make) -> None:
    node = make()
    node.server.answers.extend([500, 500])
    node.hold(hog=700)
    node.run(5)
    assert gone(node, "hog")
    assert results(node) == [Result.DONE]


def test_an_eviction_whose_answer_was_cut_counts_as_done(make: Make) -> None:
    node = make()
    node.server.answers.append(CUT_AFTER)
    node.hold(hog=700)
    node.run(5)
    assert gone(node, "hog")
    assert results(node) == [Result.DONE]


@pytest.mark.parametrize("status", [429, 403, 503])
def test_an_eviction_that_was_cut_and_then_refused_counts_in_the_budget(make: Make, status: int) -> None:
    node = make(guards=GuardLimits(evictions_per_minute=1, useless_after=None))
    node.server.answers.extend([CUT_AFTER, status])
    node.hold(hog=700)
    node.run(5)
    assert gone(node, "hog")
    node.hold(other=800)
    node.run(5)
    assert "1 evictions in the last minute already" in held(node)
    assert gone(node, "hog")


def test_who_is_refused_is_asked_for_again_in_its_time_and_another_serves_meanwhile(make: Make) -> None:
    node = make()
    node.server.answers.append(429)
    node.hold(hog=500, other=200)
    node.run(0.5)
    assert [node.name_of(uid) for uid in node.gone] == ["other"]
    node.run(10)
    node.hold(hog=800)
    node.run(5)
    assert gone(node, "hog", "other")


@pytest.mark.parametrize(("other_mib", "evicted"), [(1, {"hog"}), (100, {"hog", "other"})])
def test_while_an_eviction_is_not_answered_no_pod_is_evicted_for_next_to_nothing(
    make: Make, other_mib: int, evicted: set[str]
) -> None:
    node = make()
    node.hold(other=other_mib)
    node.run(1)
    node.server.answers.extend([CUT_BEFORE] * 4)  # the tries of one request
    node.hold(hog=800)
    node.run(10)
    assert gone(node, *evicted)
    assert results(node)[:1] == [Result.FAILED]


def test_a_slow_server_holds_neither_the_ticks_nor_a_second_request(make: Make) -> None:
    node = make()
    node.server.slow_until_ns = node.clock.ns + 4 * NS_PER_S
    ticks = node.ticks
    node.hold(hog=700)
    node.run(3)
    assert node.gone == []
    assert node.ticks > ticks + 3
    node.run(5)
    assert gone(node, "hog")
    assert len(node.server.evicted) == 1


def test_nothing_is_evicted_on_an_old_list_of_pods(make: Make) -> None:
    node = make()
    node.server.is_lost = True
    node.run(100)
    node.hold(hog=700)
    node.run(5)
    assert "s old > 90 s" in held(node)
    node.server.is_lost = False
    node.run(5)
    assert gone(node, "hog")


def test_after_a_suspend_nothing_is_evicted_until_pods_are_known_again(make: Make) -> None:
    node = make()
    node.server.is_lost = True
    node.clock.asleep_ns += 60 * NS_PER_S
    node.hold(hog=700)
    node.run(2)
    assert "the machine was suspended for 60 s" in held(node)
    node.server.is_lost = False
    node.run(5)
    assert gone(node, "hog")


def test_evictions_that_do_not_help_are_the_last_ones_for_a_minute(make: Make) -> None:
    # GIVEN a pod that takes what the victim frees
    node = make(guards=GuardLimits(useless_after=1))
    node.hold(hog=700)
    node.run(0.02)
    node.hold(web=650)
    node.run(5)
    assert gone(node, "hog")
    # THEN the next victim is held, for a minute
    assert "did not bring the node's use down" in held(node)
    node.run(70)
    assert gone(node, "hog", "other")


@pytest.mark.parametrize("way", ["stopped", "killed"])
def test_a_successor_has_the_rest_of_the_minutes_budget(make: Make, way: str) -> None:
    node = make(guards=GuardLimits(evictions_per_minute=1, useless_after=None))
    node.hold(hog=700)
    node.run(3)
    assert gone(node, "hog")
    (node.stop if way == "stopped" else node.kill)()
    node.start()
    node.hold(other=800)
    node.run(5)
    assert "1 evictions in the last minute already" in held(node)
    node.run(60)
    assert gone(node, "hog", "other")


def test_a_value_that_was_written_and_could_not_be_read_back_is_no_other_processs(make: Make) -> None:
    node = make(gates={"CgroupReconcile": True})
    memory_min = node.tree.node / "kubepods" / "memory.min"
    node.faults.fail_after_write(memory_min, errno.ENOMEM)
    node.set_slo(70, resourceQOSStrategy={"lsClass": {"memoryQOS": {"enable": True, "minLimitPercent": 50}}})
    node.run(90)
    assert "ENOMEM" in node.faults.happened[0]
    assert memory_min.read_text() != "0\n"
    node.stop()
    assert node.tree.changed() == []


@pytest.mark.parametrize("calls", range(0, 400, 50))
def test_what_is_written_is_restored_whenever_the_agent_dies(make: Make, calls: int) -> None:
    node = make(gates={"CgroupReconcile": True})
    protects = {"lsClass": {"memoryQOS": {"enable": True, "minLimitPercent": 50}}}
    node.set_slo(70, resourceQOSStrategy=protects)
    node.faults.plan(calls, DEATH)
    node.hold(hog=700)
    node.run(3)
    if not node.is_running:
        node.start()
        node.run(2)
    assert len(node.tree.changed()) == 3
    node.stop()
    assert node.tree.changed() == []
