"""Memory that was plugged in or out after kubelet started: the Node says one size, the kernel has another."""

from __future__ import annotations

from koordebpf.collect.cluster_view import ClusterView
from koordebpf.configuration.checked import agent_config
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.policy.plan import Plan
from koordebpf.state.view import Frame
from koordebpf.tools.plan import Case
from koordebpf.units import MIB
from tests.support.values.builders import feature_of, frame, ls_pod, names, pod

STRICT = agent_config({"compat": "strict"}).eviction
GIB_MIB = 1024
PODS = [ls_pod("api", anon=2000), pod("hog", anon=4000)]


def node(*, total_gib: int, used_gib: float, written: str = "16Gi") -> Frame:
    return frame(PODS, used=int(used_gib * GIB_MIB), capacity=written, total_bytes=total_gib * GIB_MIB * MIB)


def strictly(recorded: Frame) -> Plan:
    return Case(recorded, STRICT).plan()


def test_half_of_the_memory_was_taken_out() -> None:
    # 7.6 of 8 GiB: 47 % of what the Node says, and 400 MiB are left.
    shrunk = node(total_gib=8, used_gib=7.6)
    assert names(feature_of(shrunk)) == ["hog"]
    assert "node at 94 % ≥ 80 %" in feature_of(shrunk).verdict.reason
    assert strictly(shrunk).victims == ()
    (doubt,) = Case(shrunk).doubts
    assert "8.0 GiB (MemTotal)" in doubt
    assert "says 16.0 GiB" in doubt


def test_memory_was_added() -> None:
    # 13 of 32 GiB: 81 % of what the Node says.
    grown = node(total_gib=32, used_gib=13)
    assert names(feature_of(grown)) == []
    assert feature_of(grown).verdict.reason == "node at 40 % < 80 %"
    assert [victim.candidate.name for victim in strictly(grown).victims] == ["hog"]
    (doubt,) = Case(grown, STRICT).doubts
    assert "percents are of node.status.capacity" in doubt


def test_kubelet_knows_it() -> None:
    for total_gib in (8, 16, 32):
        known = node(total_gib=total_gib, used_gib=total_gib * 0.79, written=f"{total_gib}Gi")
        assert names(feature_of(known)) == []
        assert Case(known).doubts == ()


def test_an_agent_says_it_when_it_begins_and_when_it_ends() -> None:
    known, plugged = ClusterView(), node(total_gib=32, used_gib=13)
    known.learn(ClusterState(version=1, synced_at_ns=1, node=plugged.node))
    as_before = node(total_gib=16, used_gib=13).measured.node
    assert not known.check_capacity(as_before)
    assert known.check_capacity(plugged.measured.node)
    assert len(known.problems_by_reason["capacity"]) == 1
    assert not known.check_capacity(plugged.measured.node)
    known.learn(ClusterState(version=1, synced_at_ns=1, node=plugged.node))
    assert len(known.problems_by_reason["capacity"]) == 1
    assert known.capacity_bytes(plugged.measured.node) == 32 * GIB_MIB * MIB
    assert known.check_capacity(as_before)
    assert known.problems_by_reason["capacity"] == ()
