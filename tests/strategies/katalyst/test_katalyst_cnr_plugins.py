"""What Katalyst's plugins judge by the CustomNodeResource: NUMA zones and NICs."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec.structs import replace

from koordebpf.policy.strategy import Empty
from koordebpf.slo.katalyst import QOS_LEVEL, SOFT_NOTICE, cnr_taints_of
from koordebpf.state.build import view_of_frame
from koordebpf.state.cnr import Cnr, CnrZone
from koordebpf.state.pods.requests import NET_BANDWIDTH, RECLAIMED_CPU, RECLAIMED_MEMORY
from koordebpf.strategies.katalyst.inner import INNER, InnerSettings, choose_inside, judge_inside
from koordebpf.strategies.katalyst.plugin import Seen, katalyst_pods
from koordebpf.strategies.katalyst.plugins.cnr import (
    NETWORK,
    NIC_SELECTION_RESULT,
    NUMA_BIND_RESULT,
    RECLAIMED,
    RECLAIMED_NUMA,
    NetworkSettings,
    NetworkState,
    ReclaimedSettings,
)
from koordebpf.strategies.katalyst.requests import MetSince, gather
from koordebpf.strategies.katalyst.values import EvictAsked, KatalystMeasured, PluginAnswer, Threshold, TopPods
from koordebpf.units import GIB, NS_PER_S
from tests.support.values.builders import NOW_NS, PodAndMeasure, frame, pod

NONE = Empty()
USUAL = ReclaimedSettings()


def kpod(name: str, level: str = "reclaimed_cores", *, requests: dict[str, str] | None = None, **annotations: str):
    made = pod(name, qos=None, kube_qos="Burstable", namespace="kat", uid=f"u-{name}", requests=requests or {})
    keys = {"numa": NUMA_BIND_RESULT, "nic": NIC_SELECTION_RESULT, "notice": SOFT_NOTICE}
    written = {QOS_LEVEL: level, **{keys[name]: value for name, value in annotations.items()}}
    return replace(made, pod=replace(made.pod, metadata=replace(made.pod.metadata, annotations=written)))


def seen(*pods: PodAndMeasure, at_s: float = 0, cnr: Cnr | None = None, links: dict[str, bool] | None = None) -> Seen:
    view = replace(view_of_frame(frame(pods)), now_ns=NOW_NS + int(at_s * NS_PER_S))
    active = katalyst_pods(view.pods, {})
    return Seen(view, KatalystMeasured(cnr=cnr, links=links or {}), active, active)


def of(name: str) -> str:
    """Return the consumer that a pod is in the CustomNodeResource."""
    return f"kat/{name}/u-{name}"


class TestNumaZones:
    CNR = Cnr(
        numa=(
            CnrZone("0", {RECLAIMED_CPU: 1000, RECLAIMED_MEMORY: GIB}, {of("a"): {RECLAIMED_CPU: 4000}}),
            CnrZone("1", {RECLAIMED_CPU: 1000}, {of("b"): {RECLAIMED_CPU: 3000}, of("c"): {RECLAIMED_CPU: 2500}}),
        )
    )

    def test_the_largest_pod_of_the_zone_that_is_short_is_chosen(self) -> None:
        here = seen(kpod("a"), kpod("b"), kpod("c"), kpod("online", "shared_cores"), cnr=self.CNR)
        found = RECLAIMED_NUMA.judge(here, NONE, USUAL).threshold
        assert found == Threshold("hard", f"zone1|{RECLAIMED_CPU}", 5000, 5500, "greater_than")
        top, _ = RECLAIMED_NUMA.top_pods(here, NONE, USUAL, 1)
        assert top == TopPods(("u-b",), 60)

    def test_a_pod_that_is_bound_counts_there_until_the_cnr_knows_it(self) -> None:
        pods = [kpod("b"), kpod("new", requests={RECLAIMED_CPU: "9000"}, numa="0")]
        here = seen(*pods, cnr=self.CNR)
        found = RECLAIMED_NUMA.judge(here, NONE, USUAL).threshold
        assert found is not None
        assert (found.scope, found.observed) == (f"zone0|{RECLAIMED_CPU}", 9000)
        assert RECLAIMED_NUMA.top_pods(here, NONE, USUAL, 1)[0].uids == ("u-new",)

    def test_pods_that_say_they_are_bound_get_no_pod_evicted_that_the_cnr_knows_there(self) -> None:
        cnr = Cnr(numa=(CnrZone("0", {RECLAIMED_CPU: 1000}, {of("large"): {RECLAIMED_CPU: 4900}}),))
        claims = [kpod(f"claims-{number}", requests={RECLAIMED_CPU: "4800"}, numa="0") for number in range(3)]
        here = seen(kpod("large"), *claims, cnr=cnr)
        found = RECLAIMED_NUMA.judge(here, NONE, USUAL).threshold
        assert found is not None
        assert found.observed == 4900 + 3 * 4800
        assert RECLAIMED_NUMA.top_pods(here, NONE, USUAL, 0)[0].uids == ("u-claims-0", "u-claims-1", "u-claims-2")
        # Where it is short without them, the largest of all is chosen, and what they claim counts for themselves.
        short = Cnr(numa=(CnrZone("0", {RECLAIMED_CPU: 900}, {of("large"): {RECLAIMED_CPU: 4600}}),))
        here = seen(kpod("large"), *claims, cnr=short)
        assert RECLAIMED_NUMA.judge(here, NONE, USUAL).threshold.observed == 4600
        assert RECLAIMED_NUMA.top_pods(here, NONE, USUAL, 1)[0].uids == ("u-claims-0",)

    def test_a_zone_that_is_short_without_them_comes_before_one_that_is_short_by_them(self) -> None:
        claims = [kpod(f"claims-{number}", requests={RECLAIMED_CPU: "4800"}, numa="0") for number in range(3)]
        here = seen(kpod("b"), kpod("c"), *claims, cnr=self.CNR)
        found = RECLAIMED_NUMA.judge(here, NONE, USUAL).threshold
        assert found is not None
        assert found.scope == f"zone1|{RECLAIMED_CPU}"
        assert RECLAIMED_NUMA.top_pods(here, NONE, USUAL, 1)[0].uids == ("u-b",)

    @pytest.mark.parametrize("numa", ["7", "", "zone0", '{"0": 1}'])
    def test_a_binding_to_no_zone_counts_nowhere(self, numa: str) -> None:
        here = seen(kpod("new", requests={RECLAIMED_CPU: "900000"}, numa=numa), cnr=self.CNR)
        assert RECLAIMED_NUMA.judge(here, NONE, USUAL).threshold is None

    def test_a_pod_of_another_level_is_neither_counted_nor_chosen(self) -> None:
        here = seen(kpod("b", "shared_cores"), kpod("c"), cnr=self.CNR)
        assert RECLAIMED_NUMA.judge(here, NONE, USUAL).threshold is None

    def test_another_pod_of_the_same_name_is_not_the_one_that_the_cnr_knows(self) -> None:
        again = kpod("b")
        again = replace(again, pod=replace(again.pod, metadata=replace(again.pod.metadata, uid="u-later")))
        assert RECLAIMED_NUMA.judge(seen(again, kpod("c"), cnr=self.CNR), NONE, USUAL).threshold is None

    def test_a_zone_of_which_nothing_is_known_leaves_the_node_unjudged(self) -> None:
        zones = (*self.CNR.numa, CnrZone("2"), CnrZone("3"))
        found = RECLAIMED_NUMA.judge(seen(kpod("b"), kpod("c"), cnr=Cnr(numa=zones)), NONE, USUAL)
        assert found.threshold is None
        assert found.lacks == "the CustomNodeResource has no allocatable resources of NUMA zone 2, 3"
        assert RECLAIMED_NUMA.top_pods(seen(kpod("b"), cnr=Cnr(numa=zones)), NONE, USUAL, 1)[0].uids == ()

    @pytest.mark.parametrize(
        ("cnr", "lacks"),
        [
            (None, "there is no CustomNodeResource of this node"),
            (Cnr({RECLAIMED_CPU: 1}), "the CustomNodeResource has no zone of a NUMA node"),
        ],
    )
    def test_what_a_node_lacks_is_said(self, cnr: Cnr | None, lacks: str) -> None:
        here = seen(kpod("b"), cnr=cnr)
        assert RECLAIMED_NUMA.judge(here, NONE, USUAL).lacks == lacks
        assert RECLAIMED_NUMA.top_pods(here, NONE, USUAL, 1)[0].uids == ()
        off = RECLAIMED_NUMA.judge(here, NONE, ReclaimedSettings(is_on=False))
        assert (off.lacks, off.threshold) == (None, None)

    def test_a_hard_threshold_of_one_zone_comes_before_a_soft_one_of_another(self) -> None:
        settings = ReclaimedSettings(soft_cpu_factor=1.5, tolerance_ns=30 * NS_PER_S)
        here = seen(kpod("a"), kpod("b"), kpod("c"), cnr=self.CNR)
        found = RECLAIMED_NUMA.judge(here, NONE, settings).threshold
        assert found is not None
        assert (found.met, found.scope, found.grace_s) == ("hard", f"zone1|{RECLAIMED_CPU}", 30)

    def test_above_a_soft_factor_the_pods_that_listen_are_notified(self) -> None:
        settings = ReclaimedSettings(soft_cpu_factor=1.5)
        here = seen(kpod("b", notice="true"), kpod("c"), cnr=self.CNR)
        named = replace(self.CNR.numa[1], allocations={of("b"): {RECLAIMED_CPU: 2000}, of("c"): {RECLAIMED_CPU: 900}})
        here = replace(here, measured=KatalystMeasured(cnr=Cnr(numa=(named,))))
        found = RECLAIMED_NUMA.judge(here, NONE, settings).threshold
        assert found is not None
        assert found.met == "soft"
        assert RECLAIMED_NUMA.top_pods(here, NONE, settings, 0)[0].uids == ("u-b",)

    @pytest.mark.parametrize("grace_seconds", [None, 0, 60])
    def test_a_grace_period_is_the_same_of_zones_and_of_the_node(self, grace_seconds: int | None) -> None:
        settings = ReclaimedSettings(grace_seconds=grace_seconds)
        cnr = replace(self.CNR, allocatable={RECLAIMED_CPU: 1000})
        here = seen(kpod("b", requests={RECLAIMED_CPU: "9000"}), kpod("c"), cnr=cnr)
        of_node, _ = RECLAIMED.top_pods(here, NONE, settings, 1)
        of_zone, _ = RECLAIMED_NUMA.top_pods(here, NONE, settings, 1)
        assert of_node == of_zone == TopPods(("u-b",), grace_seconds)


class TestNics:
    ON = NetworkSettings(is_on=True)
    HEALTHY = CnrZone("eth0", {NET_BANDWIDTH: 25_000}, {of("a"): {NET_BANDWIDTH: 10}, of("b"): {NET_BANDWIDTH: 0}})
    CNR = Cnr(nics=(replace(HEALTHY, allocatable={NET_BANDWIDTH: 0}),))

    def evicted(self, state: NetworkState, at_s: float, *pods: PodAndMeasure, settings=ON, **measured: object):
        found = NETWORK.judge(seen(*pods, at_s=at_s, **measured), state, settings)
        return found.state, found.evict

    def test_pods_of_a_nic_without_bandwidth_are_evicted_softly_after_the_tolerance(self) -> None:
        state, evict = self.evicted(NetworkState(), 0, kpod("a"), kpod("b"), cnr=self.CNR)
        assert (state.since_ns, evict) == ({"eth0": NOW_NS}, ())
        state, evict = self.evicted(state, 299, kpod("a"), kpod("b"), cnr=self.CNR)
        assert evict == ()
        state, evict = self.evicted(state, 300, kpod("a"), kpod("b"), cnr=self.CNR)
        assert evict == (
            EvictAsked("u-a", "its NIC eth0 has had no bandwidth in the CustomNodeResource for 300 s", grace_s=None),
        )
        assert not evict[0].is_forced

    @pytest.mark.parametrize("allocatable", [{}, {"cpu": 1}, {NET_BANDWIDTH: 0}])
    def test_no_bandwidth_is_the_same_however_it_is_said(self, allocatable: dict[str, int]) -> None:
        cnr = Cnr(nics=(replace(self.HEALTHY, allocatable=allocatable),))
        state, _ = self.evicted(NetworkState(), 0, kpod("a"), cnr=cnr)
        assert [each.uid for each in self.evicted(state, 300, kpod("a"), cnr=cnr)[1]] == ["u-a"]

    def test_one_that_recovers_starts_again(self) -> None:
        state, _ = self.evicted(NetworkState(), 0, kpod("a"), cnr=self.CNR)
        state, _ = self.evicted(state, 200, kpod("a"), cnr=Cnr(nics=(self.HEALTHY,)))
        assert state == NetworkState()
        state, _ = self.evicted(state, 210, kpod("a"), cnr=self.CNR)
        assert self.evicted(state, 400, kpod("a"), cnr=self.CNR)[1] == ()

    def test_a_nic_without_a_link_is_unhealthy_whatever_the_cnr_says(self) -> None:
        cnr = Cnr(nics=(self.HEALTHY,))
        state, _ = self.evicted(NetworkState(), 0, kpod("a"), cnr=cnr, links={"eth0": False})
        _, evict = self.evicted(state, 300, kpod("a"), cnr=cnr, links={"eth0": False})
        assert [each.reason for each in evict] == ["its NIC eth0 has had no link for 300 s"]
        alone = NetworkSettings(is_on=True, judges_links=False)
        assert self.evicted(NetworkState(), 0, cnr=cnr, links={"eth0": False}, settings=alone)[0] == NetworkState()

    @pytest.mark.parametrize("links", [{}, {"eth0": True}, {"eth1": False}])
    def test_one_that_was_not_seen_is_judged_by_the_cnr_alone(self, links: dict[str, bool]) -> None:
        cnr = Cnr(nics=(self.HEALTHY,))
        assert self.evicted(NetworkState(), 0, kpod("a"), cnr=cnr, links=links)[0] == NetworkState()

    def test_a_pod_that_is_bound_to_it_is_evicted_if_it_requests_bandwidth(self) -> None:
        pods = [
            kpod("bound", "shared_cores", requests={NET_BANDWIDTH: "5"}, nic="eth0"),
            kpod("free", requests={NET_BANDWIDTH: "0"}, nic="eth0"),
            kpod("elsewhere", requests={NET_BANDWIDTH: "5"}, nic="eth1"),
            kpod("a", requests={NET_BANDWIDTH: "5"}, nic="eth0"),
        ]
        state, _ = self.evicted(NetworkState(), 0, *pods, cnr=self.CNR)
        _, evict = self.evicted(state, 300, *pods, cnr=self.CNR)
        assert sorted(each.uid for each in evict) == ["u-a", "u-bound"]

    @pytest.mark.parametrize(
        ("cnr", "lacks"),
        [
            (None, "there is no CustomNodeResource of this node"),
            (Cnr(), "the CustomNodeResource has no zone of a NIC"),
        ],
    )
    def test_what_a_node_lacks_is_said_and_its_clocks_end(self, cnr: Cnr | None, lacks: str) -> None:
        found = NETWORK.judge(seen(kpod("a"), cnr=cnr), NetworkState({"eth0": 0}), self.ON)
        assert (found.lacks, found.state, found.evict) == (lacks, NetworkState(), ())
        off = NETWORK.judge(seen(kpod("a"), cnr=cnr), NetworkState({"eth0": 0}), NetworkSettings())
        assert (off.lacks, off.state) == (None, NetworkState())

    def test_the_grace_period_of_the_plugin_is_that_of_the_soft_eviction(self) -> None:
        asked = EvictAsked("u", "because", grace_s=7)
        top = PluginAnswer("q", Threshold("soft", "cpu", 1, 2), top=TopPods(("v",), 9))
        found = gather([PluginAnswer("p", evict=(asked,)), top], {"q": MetSince(0)}, 1, {"u", "v"}, {}, ())
        # Of a soft threshold Katalyst drops it.
        assert {uid: wanted.grace_s for uid, wanted in found.soft.items()} == {"u": 7, "v": None}


def test_both_are_plugins_inside_and_a_frame_keeps_what_they_judge() -> None:
    assert (INNER["reclaimedNuma"], INNER["network"]) == (RECLAIMED_NUMA, NETWORK)
    measured = KatalystMeasured(cnr=replace(TestNumaZones.CNR, nics=TestNics.CNR.nics), links={"eth0": False})
    assert msgspec.json.decode(msgspec.json.encode(measured), type=KatalystMeasured) == measured
    here = replace(seen(kpod("b"), kpod("c")), measured=measured)
    settings = InnerSettings(network=NetworkSettings(is_on=True, tolerance_ns=0))
    answers, states = judge_inside(here, {}, settings, lambda _: True)
    by_name = {each.plugin: each for each in answers}
    assert by_name[RECLAIMED_NUMA.name].threshold is not None
    assert by_name[NETWORK.name].problem is None
    # As a frame has what they remember.
    states = json.loads(msgspec.json.encode(states))
    again, _ = judge_inside(here, states, settings, lambda _: True)
    assert again == answers
    clocks = {RECLAIMED_NUMA.name: MetSince(NOW_NS)}
    chosen, _ = choose_inside(answers, clocks, here, states, settings)
    tops = {each.plugin: each.top for each in chosen}
    assert tops[RECLAIMED_NUMA.name] == TopPods(("u-b",), 60)


@pytest.mark.parametrize(
    ("effects", "taints"),
    [
        (("reclaimed_cores/NoExecute", "reclaimed_cores/NoSchedule"), ["NoSchedule", "NoExecute"]),
        (("shared_cores/NoSchedule", "NoSchedule", "reclaimed_cores/"), []),
        (("reclaimed_cores/NoSchedule/x", "/NoSchedule", "reclaimed_cores//NoSchedule"), []),
    ],
)
def test_a_condition_of_the_cnr_names_its_qos_level(effects: tuple[str, ...], taints: list[str]) -> None:
    assert [effect for _, effect, _ in cnr_taints_of("Cpu", effects)] == taints
    assert {level for _, _, level in cnr_taints_of("Cpu", effects)} <= {"reclaimed_cores"}
