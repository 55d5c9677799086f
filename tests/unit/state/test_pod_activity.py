"""Which pods still run: those that are deleted and have no container left do not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.kube.cache.objects import ContainerState, ContainerStatus, StateDetails
from koordebpf.state.build import view_of_frame
from koordebpf.state.pods.facts import pod_facts
from koordebpf.strategies.katalyst.plugin import katalyst_pods
from tests.support.values.builders import frame, pod

ENDED, WAITS, RUNS = (ContainerState(**{name: StateDetails()}) for name in ("terminated", "waiting", "running"))


def terms(*states: ContainerState | None, phase: str = "Running", terminating: bool = True):
    made = pod("a", terminating=terminating, phase=phase).pod
    statuses = [ContainerStatus(f"c{number}", state=state) for number, state in enumerate(states)]
    return pod_facts(replace(made, status=replace(made.status, containerStatuses=statuses or None))).terms


@pytest.mark.parametrize("states", [(ENDED,), (WAITS,), (ENDED, WAITS)])
def test_a_deleted_pod_without_a_running_container_is_over(states):
    assert terms(*states).is_over
    assert not terms(*states, terminating=False).is_over


@pytest.mark.parametrize("states", [(RUNS,), (ENDED, RUNS), (ENDED, None), (ContainerState(),), ()])
def test_what_nothing_is_known_of_may_run(states):
    assert not terms(*states).is_over


def test_a_pending_pod_that_is_deleted_before_any_container_is_over():
    assert terms(phase="Pending").is_over


def test_one_that_is_over_is_not_active():
    over = pod("over", terminating=True, phase="Pending")
    assert [each.pod.name for each in katalyst_pods(view_of_frame(frame([over, pod("runs")])).pods, {})] == ["runs"]
