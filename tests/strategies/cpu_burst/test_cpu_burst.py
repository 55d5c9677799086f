"""CPU burst: what quotas become, round after round."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.reconcile import CgroupWrite, Demand, DesiredState, joined
from koordebpf.slo.strategies.cpu_burst import CPUBurstStrategy
from koordebpf.state.build import view_of_frame
from koordebpf.strategies.cpu_burst.decide import CPU_BURST, Tokens, is_allowed, node_state
from koordebpf.strategies.cpu_burst.values import CPU_BURST_ANNOTATION, BurstSettings, burst_view
from koordebpf.units import NS_PER_S
from tests.support.values.cpu_burst import AUTO, CPU, ONE, POD, TWO, BurstNode, container, pod, values, web
from tests.support.values.resized import whole

QUOTA, BURST = "cpu.cfs_quota_us", "cpu.cfs_burst_us"


def annotated(**fields: object) -> dict[str, str]:
    return {CPU_BURST_ANNOTATION: json.dumps(fields)}


class TestOwnLevel:
    def grown(self, cpus: str, containers: dict[str, dict[str, object]], quotas: list[int]) -> list[int]:
        """Return the quotas of the pod and its containers after twenty rounds; all are throttled."""
        node = BurstNode(whole(web(containers=containers), {"limits": {"cpu": cpus}}, beside_containers=True))
        held = dict(zip((POD, ONE, TWO), quotas, strict=True))
        for _ in range(20):
            both = container("a", quota_us=held[ONE]), container("b", quota_us=held[TWO])
            decided = values(node.round(pod(*both, quota_us=held[POD])))
            held |= {path: value for (path, file), value in decided.items() if file == QUOTA}
        return list(held.values())

    def test_its_limit_bounds_the_bursts_of_its_containers_together(self):
        assert self.grown("1", {"a": CPU, "b": CPU}, [100_000] * 3) == [300_000] * 3

    def test_containers_without_a_limit_have_its_limit(self):
        assert self.grown("2", {"a": {}, "b": {}}, [200_000] * 3) == [600_000] * 3


class TestRaising:
    def test_a_throttled_container_gets_a_fifth_more_each_period_up_to_its_ceiling(self):
        node = BurstNode()
        assert [node.step(after_s=0.1) for _ in range(8)] == [
            120_000, 144_000, 172_800, 207_360, 248_832, 298_598, 300_000, 300_000,
        ]  # fmt: skip
        assert node.held[POD] == 300_000

    def test_not_twice_in_one_period(self):
        node = BurstNode()
        assert [node.step(after_s=0.05) for _ in range(4)] == [120_000, 120_000, 144_000, 144_000]

    def test_it_keeps_what_it_has_while_the_node_has_room(self):
        node = BurstNode()
        node.step()
        assert [node.step(throttled=False, after_s=3600) for _ in range(3)] == [120_000] * 3

    def test_one_that_is_not_throttled_has_its_own(self):
        decided = BurstNode(strategy=replace(AUTO, policy="cfsQuotaBurstOnly")).round(pod(container(throttled=False)))
        assert decided.writes == ()
        assert decided.watched == {ONE: 100_000}

    def test_parents_are_raised_by_what_all_their_containers_get(self):
        node = BurstNode(web(containers={"a": CPU, "b": CPU}))
        decided = node.round(pod(container("a"), container("b"), quota_us=200_000))
        assert [values(decided)[path, QUOTA] for path in (POD, ONE, TWO)] == [240_000, 120_000, 120_000]
        assert next(each.path for each in decided.writes if each.file is CgroupFile.CPU_QUOTA) == POD

    def test_a_pod_without_a_limit_stays_without(self):
        decided = BurstNode().round(pod(container(), quota_us=None))
        assert values(decided) == {(ONE, QUOTA): 120_000, (ONE, BURST): 100_000}

    def test_never_beyond_the_cpus_of_the_node(self):
        node = BurstNode(strategy=replace(AUTO, cfsQuotaBurstPercent=100_000))
        assert max(node.step(after_s=0.1) for _ in range(40)) == 8 * 100_000

    @pytest.mark.parametrize(("percent", "quota"), [(100, 100_000), (110, 110_000), (None, 100_000)])
    def test_never_beyond_its_percent(self, percent, quota):
        node = BurstNode(strategy=replace(AUTO, cfsQuotaBurstPercent=percent))
        assert [node.step() for _ in range(3)][-1] == quota

    def test_init_containers_too(self):
        node = BurstNode(web(containers={}, init={"a": CPU}))
        assert node.step() == 120_000

    @pytest.mark.parametrize("limits", [{}, {"limits": {"cpu": "nonsense"}}])
    def test_a_container_without_a_limit_in_its_spec_never(self, limits):
        assert BurstNode(web(containers={"a": limits})).round(pod(container())).writes == ()

    def test_another_period_than_kubelets(self):
        node = BurstNode()
        decided = node.round(pod(container(quota_us=10_000, period_us=10_000), quota_us=10_000, period_us=10_000))
        assert values(decided)[ONE, QUOTA] == 12_000

    def test_a_pod_that_is_not_known_is_left_alone(self):
        node = BurstNode(web(name="other"))
        assert node.round(pod(container())).writes == ()


class TestNodeState:
    @pytest.mark.parametrize(
        ("used", "state"), [(0, "idle"), (3599, "idle"), (3600, "cooling"), (3999, "cooling"), (4000, "overload")]
    )
    def test_by_the_use_of_the_share_pool(self, used, state):
        node = BurstNode()
        assert node.round(pod(container()), used=used).node == state

    def test_what_is_apart_counts_neither_as_use_nor_as_room(self):
        lse = web("LSE", {"a": {"requests": {"cpu": "4"}}}, name="lse")
        node = BurstNode(web(), lse)
        assert node.round(pod(container()), used=3000, apart_used=2500).node == "idle"
        assert node.round(pod(container()), used=4500, apart_used=2500).node == "overload"
        assert BurstNode(web("LSR", {"a": {"requests": {"cpu": "8"}}})).round(used=0).node == "overload"

    def test_unknown_until_it_is_measured(self):
        node = BurstNode()
        assert node.step(used=None) == 100_000
        assert node.step() == 120_000
        assert node.step(used=None) == 120_000
        decided = node.round(used=None)
        assert "use of the share pool not known" in decided.reason

    def test_a_strategy_without_a_threshold_is_unknown(self):
        node = BurstNode(strategy=replace(AUTO, sharePoolThresholdPercent=None))
        view = view_of_frame(node.frame(pod(container())))
        measured = CPU_BURST.measured_of(view)
        assert measured is not None
        for given in (measured, replace(measured, strategy=None)):
            assert node_state(burst_view(given, view.facts, view.frame.node)) == ("unknown", None)

    def test_cooling_keeps_and_overload_lowers_to_its_own(self):
        node = BurstNode()
        for _ in range(3):
            node.step()
        assert node.step(used=3700) == 172_800
        assert [node.step(used=5000) for _ in range(4)] == [138_240, 110_592, 100_000, 100_000]

    def test_not_lowered_twice_in_one_second(self):
        node = BurstNode()
        for _ in range(3):
            node.step()
        assert [node.step(used=5000, after_s=0.5) for _ in range(3)] == [172_800, 138_240, 138_240]

    def test_its_own_is_written_once_before_it_is_wanted_no_more(self):
        node = BurstNode(strategy=replace(AUTO, policy="cfsQuotaBurstOnly"))
        node.step()
        first = node.round(pod(container(quota_us=120_000), quota_us=120_000), used=5000)
        assert values(first) == {(POD, QUOTA): 100_000, (ONE, QUOTA): 100_000}
        assert node.round(pod(container(), quota_us=100_000), used=5000).writes == ()

    @pytest.mark.parametrize(("ratio", "quota"), [(0.5, 120_000), (0.49, 100_000), (None, 100_000)])
    def test_a_starved_container_is_raised_without_room_where_the_operator_wants_it(self, ratio, quota):
        node = BurstNode(settings=BurstSettings(starved_percent=50))
        decided = node.round(pod(container(throttled_ratio=ratio)), used=7000)
        assert decided.node == "overload"
        assert values(decided).get((ONE, QUOTA), 100_000) == quota
        assert BurstNode().round(pod(container(throttled_ratio=1.0)), used=7000).raised == 0


class TestReturning:
    def test_a_calm_container_is_lowered_where_the_operator_wants_it(self):
        node = BurstNode(settings=BurstSettings(return_after_s=5))
        node.step()
        assert [node.step(throttled=False) for _ in range(6)] == [120_000] * 4 + [100_000] * 2

    @pytest.mark.parametrize("policy", ["none", "cpuBurstOnly"])
    def test_a_policy_without_quota_burst_resets_at_once(self, policy):
        node = BurstNode()
        for _ in range(3):
            node.step()
        node.strategy = replace(AUTO, policy=policy)
        assert node.step() == 100_000

    def test_without_a_nodeslo_nothing_is_wanted(self):
        node = BurstNode()
        node.step()
        node.strategy = None
        decided = node.round(pod(container(quota_us=120_000), quota_us=120_000))
        assert (decided.writes, decided.skipped) == ((), None)

    def test_what_was_not_measured_stays(self):
        node = BurstNode()
        node.step()
        frame = node.frame()
        decided = CPU_BURST.decide(view_of_frame(frame), None, node.state, node.settings)
        assert (decided.skipped, decided.state) == ("not_measured", node.state)

    def test_another_limit_ends_the_burst(self):
        node = BurstNode()
        node.step()
        node.pods = (web(containers={"a": {"limits": {"cpu": "2"}}}),)
        decided = node.round(pod(container(throttled=False, quota_us=120_000), quota_us=120_000))
        assert values(decided)[ONE, QUOTA] == 100_000
        # WHEN kubelet has written it
        decided = node.round(pod(container(quota_us=200_000), quota_us=200_000))
        assert values(decided)[ONE, QUOTA] == 240_000

    def test_a_new_limit_that_kubelet_wrote_in_the_same_round_is_its_own(self):
        node = BurstNode()
        node.step()
        node.pods = (web(containers={"a": {"limits": {"cpu": "2"}}}),)
        decided = node.round(pod(container(throttled=False, quota_us=200_000), quota_us=120_000))
        assert (values(decided)[ONE, QUOTA], decided.raised, decided.left) == (200_000, 0, 0)


class TestOtherWriters:
    def test_a_quota_that_another_process_wrote_is_left_to_it_for_a_minute(self):
        node = BurstNode()
        node.step()
        written = pod(container(quota_us=150_000), quota_us=150_000)
        decided = node.round(written)
        # As if it were wanted, for one round: so the writer takes it for what the file held before.
        assert (values(decided)[ONE, QUOTA], decided.raised, decided.left, decided.watched) == (150_000, 0, 1, {})
        assert [node.round(written).raised for _ in range(59)] == [0] * 59
        decided = node.round(written, after_s=2)
        assert values(decided)[ONE, QUOTA] == 180_000

    def test_so_is_one_that_has_no_limit_any_more(self):
        node = BurstNode()
        node.step()
        assert node.round(pod(quota_us=None)).writes == ()

    def test_a_pods_quota_that_another_process_wrote_ends_the_bursts_below(self):
        node = BurstNode()
        node.step()
        decided = node.round(pod(container(quota_us=120_000), quota_us=90_000))
        # What it wrote is taken for what the file is to hold, and the container is lowered.
        assert [values(decided)[path, QUOTA] for path in (POD, ONE)] == [90_000, 100_000]
        decided = node.round(pod(container(), quota_us=90_000))
        assert [each for each in decided.writes if each.file is CgroupFile.CPU_QUOTA] == []
        assert (decided.left, decided.raised) == (1, 0)

    def test_a_refused_write_is_no_other_process(self):
        node = BurstNode()
        node.step()
        decided = node.round(pod(container()), after_s=0.1)
        assert values(decided)[ONE, QUOTA] == 144_000
        decided = node.round(pod(container(quota_us=120_000), quota_us=120_000), after_s=0.1)
        assert (values(decided)[ONE, QUOTA], decided.left) == (172_800, 0)

    @pytest.mark.parametrize(
        ("limit", "quota_us", "of_pod_us"),
        [("333m", 33_300, 33_300), ("333m", 34_000, 34_000), ("1001m", 100_100, 101_000), ("1001m", 101_000, 100_100)],
    )
    def test_a_quota_that_systemd_rounded_is_a_containers_own(self, limit, quota_us, of_pod_us):
        """It rounds CPUQuotaPerSecUSec up to 10 ms of a second."""
        asked = {"a": {"limits": {"cpu": limit}, "requests": {"cpu": limit}}}
        node = BurstNode(web(containers=asked))
        decided = values(node.round(pod(container(quota_us=quota_us), quota_us=of_pod_us)))
        raised_us = quota_us * 120 // 100
        assert decided[ONE, QUOTA] == raised_us
        assert decided[POD, QUOTA] == of_pod_us + raised_us - quota_us
        # AND what it comes back to
        for _ in range(9):
            decided = values(node.round(pod(container(quota_us=raised_us, throttled=False), quota_us=1), used=8000))
            raised_us = decided.get((ONE, QUOTA), quota_us)
        assert raised_us == quota_us

    def test_no_burst_is_above_what_ordinary_tasks_run_on(self):
        node = BurstNode()
        quotas = []
        for _ in range(12):
            decided = node.round(pod(container(quota_us=quotas[-1] if quotas else 100_000)), used=500, isolated=6)
            quotas.append(values(decided).get((f"{POD}/id-a", "cpu.cfs_quota_us"), quotas[-1] if quotas else 100_000))
        assert max(quotas) == 200_000

    def test_the_pool_is_no_larger_than_that_either(self):
        view = view_of_frame(BurstNode().frame(pod(container()), used=1600, isolated=6))
        assert node_state(burst_view(CPU_BURST.measured_of(view), view.facts, view.frame.node)) == ("overload", 80)
        view = view_of_frame(BurstNode().frame(pod(container()), used=1600))
        assert node_state(burst_view(CPU_BURST.measured_of(view), view.facts, view.frame.node)) == ("idle", 20)

    def test_a_larger_quota_than_the_limit_has_no_larger_ceiling(self):
        node = BurstNode()
        (judged,) = [node.round(pod(container(quota_us=290_000), quota_us=None), after_s=1) for _ in range(1)]
        assert values(judged)[ONE, QUOTA] == 300_000
        assert BurstNode().round(pod(container(quota_us=400_000), quota_us=None)).raised == 0

    def test_a_burst_is_above_the_quota_of_cpu_normalization_and_below_any_other(self):
        key = (ONE, CgroupFile.CPU_QUOTA)

        def wants(value):
            return DesiredState("a test", (CgroupWrite(*key, value),))

        both = {"cpuBurst": wants(120_000), "cpuNormalization": wants(90_000)}
        assert joined(both)[key] == Demand(120_000, ("cpuBurst", "cpuNormalization"))
        for other in ("batchResource", "suppress", "ladder", "cpuSetAllocator"):
            assert joined({**both, other: wants(50_000)})[key].value == 50_000
        shares = {name: DesiredState("", (CgroupWrite(ONE, CgroupFile.CPU_SHARES, 5),)) for name in both}
        assert joined(shares)[ONE, CgroupFile.CPU_SHARES].value == 5


class TestCfsBurst:
    def test_unused_quota_is_saved_up_to_its_own_quota(self):
        node = BurstNode(strategy=replace(AUTO, policy="cpuBurstOnly"))
        assert values(node.round(pod(container()))) == {(POD, BURST): 100_000, (ONE, BURST): 100_000}

    def test_less_where_the_percent_is_less(self):
        strategy = replace(AUTO, policy="cpuBurstOnly", cpuBurstPercent=25)
        assert values(BurstNode(strategy=strategy).round(pod(container()))) == {
            (POD, BURST): 25_000,
            (ONE, BURST): 25_000,
        }

    def test_a_pod_saves_what_its_containers_do_and_no_more_than_its_own(self):
        node = BurstNode(web(containers={"a": CPU, "b": CPU}), strategy=replace(AUTO, policy="cpuBurstOnly"))
        two = (container("a"), container("b"))
        assert values(node.round(pod(*two, quota_us=200_000)))[POD, BURST] == 200_000
        assert values(node.round(pod(*two, quota_us=150_000)))[POD, BURST] == 150_000

    def test_of_a_limit_of_more_than_a_hundred_cpus_too(self):
        """koordlet refuses 10 times such a limit on cgroup v1: more than 100 s."""
        node = BurstNode(
            web(containers={"a": {"limits": {"cpu": "128"}}}), strategy=replace(AUTO, policy="cpuBurstOnly")
        )
        assert node.strategy is not None
        assert node.strategy.cpuBurstPercent == 1000
        large = pod(container(quota_us=12_800_000), quota_us=12_800_000)
        assert values(node.round(large)) == {(POD, BURST): 12_800_000, (ONE, BURST): 12_800_000}

    def test_a_raised_quota_does_not_raise_it(self):
        node = BurstNode()
        node.step()
        decided = node.round(pod(container(quota_us=120_000), quota_us=120_000))
        assert values(decided)[ONE, BURST] == values(decided)[POD, BURST] == 100_000

    def test_a_smaller_limit_has_room_for_its_quota_before_it_is_written(self):
        """The kernel refuses a quota below the burst: kubelet could not write it."""
        node = BurstNode(strategy=replace(AUTO, policy="cpuBurstOnly"))
        node.round(pod(container()))
        node.pods = (web(containers={"a": {"limits": {"cpu": "500m"}}}),)
        assert values(node.round(pod(container()))) == {(POD, BURST): 50_000, (ONE, BURST): 50_000}

    def test_none_where_the_kernel_has_no_such_file_or_the_policy_none(self):
        decided = BurstNode().round(pod(container(burst_us=None), burst_us=None))
        assert {file for _, file in values(decided)} == {QUOTA}
        assert BurstNode(strategy=replace(AUTO, policy="none")).round(pod(container())).writes == ()


class TestAnnotations:
    def test_a_pods_own_strategy_counts_for_it(self):
        node = BurstNode(web(annotations=annotated(policy="auto", cfsQuotaBurstPercent=110)))
        node.strategy = replace(AUTO, policy="none")
        assert [node.step() for _ in range(2)] == [110_000] * 2

    def test_its_threshold_is_the_nodes(self):
        node = BurstNode(web(annotations=annotated(sharePoolThresholdPercent=100)))
        assert node.round(pod(container()), used=5000).node == "overload"

    @pytest.mark.parametrize(
        "written", ["{", "[]", "1", '{"policy": "always"}', '{"cfsQuotaBurstPercent": 1}', "[" * 5000, '{"policy": 5}']
    )
    def test_one_that_cannot_be_read_is_named_and_the_nodes_counts(self, written):
        node = BurstNode(web(annotations={CPU_BURST_ANNOTATION: written}))
        decided = node.round(pod(container()))
        assert decided.raised == 1
        (problem,) = decided.problems
        assert problem.startswith(f"pod team/web: annotation {CPU_BURST_ANNOTATION}")

    def test_they_count_only_where_the_operator_wants_it(self):
        settings = BurstSettings(pod_annotations=False)
        node = BurstNode(web(annotations={CPU_BURST_ANNOTATION: '{"policy": "none"}'}), settings=settings)
        assert node.step() == 120_000


class TestLimiter:
    STRATEGY = CPUBurstStrategy(cfsQuotaBurstPercent=300, cfsQuotaBurstPeriodSeconds=10)

    @pytest.mark.parametrize(
        ("period", "percent", "is_in_time"), [(-1, 300, True), (None, 300, True), (10, None, False), (0, 300, False)]
    )
    def test_without_a_bucket(self, period, percent, is_in_time):
        strategy = CPUBurstStrategy(cfsQuotaBurstPercent=percent, cfsQuotaBurstPeriodSeconds=period)
        assert is_allowed(None, strategy, 50, 0, "c")[0] is is_in_time

    def test_it_begins_with_up_to_half_by_the_container_alone(self):
        found = [is_allowed(None, self.STRATEGY, 80, 5, f"c{number}")[1] for number in range(50)]
        lefts = {each.left for each in found if each is not None}
        assert len(lefts) == 50
        assert 0 <= min(lefts) < max(lefts) < 1000
        assert is_allowed(None, self.STRATEGY, 80, 5, "c7")[1] == found[7]

    @pytest.mark.parametrize(
        ("used", "seconds", "left"),
        [(150, 1, 450), (150, 20, -500), (60, 10, 500), (99, 10, 500), (59, 10, 910), (0, 3600, 2000),
         (100, 9, 500), (9000, 60, -2000)],
    )  # fmt: skip
    def test_what_is_used_above_the_limit_is_taken_and_what_is_not_used_saved(self, used, seconds, left):
        is_in_time, tokens = is_allowed(Tokens(2000, 500, 0), self.STRATEGY, used, seconds * NS_PER_S, "c")
        assert tokens == Tokens(2000, left, seconds * NS_PER_S)
        assert is_in_time is (left > 0)

    def test_another_capacity_is_another_bucket(self):
        _, tokens = is_allowed(Tokens(5, 5, 0), self.STRATEGY, 0, NS_PER_S, "c")
        assert tokens is not None
        assert tokens.capacity == 2000

    def test_a_container_that_has_used_up_its_tokens_is_lowered(self):
        node = BurstNode(strategy=replace(AUTO, cfsQuotaBurstPeriodSeconds=1))
        first = node.step()
        assert first == 120_000
        held = pod(container(quota_us=120_000, used_millicpu=9000), quota_us=120_000)
        decided = node.round(held)
        assert values(decided)[ONE, QUOTA] == 100_000
        assert decided.watched == {}

    def test_tokens_are_taken_while_the_policy_is_none_too(self):
        node = BurstNode(strategy=replace(AUTO, policy="none", cfsQuotaBurstPeriodSeconds=10))
        lefts = []
        for _ in range(2):
            node.round(pod(container(used_millicpu=1500)))
            tokens = node.state.containers[ONE].tokens
            assert tokens is not None
            lefts.append(tokens.left)
        assert lefts[1] == lefts[0] - 50


def test_a_container_whose_use_is_not_known_counts_as_at_its_limit():
    node = BurstNode(strategy=replace(AUTO, cfsQuotaBurstPeriodSeconds=10))
    node.round(pod(container(used_millicpu=None)))
    before = node.state.containers[ONE].tokens
    node.round(pod(container(used_millicpu=None, quota_us=120_000), quota_us=120_000))
    after = node.state.containers[ONE].tokens
    assert before is not None
    assert after is not None
    assert after.left == before.left
