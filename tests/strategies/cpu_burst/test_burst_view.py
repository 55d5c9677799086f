"""Which pods may burst, and what of the others counts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.state.pods.facts import facts_of_pods, pod_facts
from koordebpf.strategies.cpu_burst.values import BurstMeasured, BurstPod, burst_view, may_burst
from tests.support.values.cpu_burst import CPU, POD, web


@pytest.mark.parametrize(
    ("qos", "is_one"), [("LS", True), ("", True), ("SYSTEM", True), ("LSR", False), ("LSE", False), ("BE", False)]
)
def test_by_its_label(qos, is_one):
    assert may_burst(pod_facts(web(qos))) is is_one


@pytest.mark.parametrize(("phase", "is_one"), [("Pending", True), ("Running", True), ("Succeeded", False)])
def test_by_its_phase(phase, is_one):
    pod = web()
    assert may_burst(pod_facts(replace(pod, status=replace(pod.status, phase=phase)))) is is_one


def test_not_with_cpus_of_its_own():
    status = {"scheduling.koordinator.sh/resource-status": '{"cpuset": "0"}'}
    assert not may_burst(pod_facts(web(annotations=status)))


def test_not_while_it_is_deleted():
    pod = web()
    gone = replace(pod.metadata, deletionTimestamp="2026-01-01T00:00:00Z")
    assert not may_burst(pod_facts(replace(pod, metadata=gone)))


def test_requests_of_live_pods_with_cpus_of_their_own_are_apart():
    done = web("LSE", name="done")
    pods = [web(), web("LSE", name="one"), web("LSR", {"a": CPU, "b": CPU}, name="two"),
            replace(done, status=replace(done.status, phase="Failed"))]  # fmt: skip
    view = burst_view(BurstMeasured(pods=(BurstPod("uid-web", POD),)), facts_of_pods(pods), None)
    assert view.apart_millicpu == 3000
    assert list(view.pods) == ["uid-web"]
