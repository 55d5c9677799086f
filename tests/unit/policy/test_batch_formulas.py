"""Batch and mid resources against sums made by hand, and what must hold for every node."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordebpf.policy.batch.facts import CpuMemory, NodeFacts, PodRequest, PodUse, Usage
from koordebpf.policy.batch.formulas import RESOURCES, NodeResult, node_result
from koordebpf.slo.manager.node_colocation import NodeColocation
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY
from tests.unit.policy.batch_nodes import GIB, MINUTE_NS, NODE, NOW_NS, ON, application, both, pod, usage, use

# prod: one steady, one that has just come, one of LSE; mid; batch; one that is gone but still reported.
PODS = (
    pod("steady", 10, 40),
    pod("new", 4, 8),
    pod("lse", 8, 16, lse=True),
    pod("mid", 6, 10, "koord-mid"),
    pod("batch", 0, 0, "koord-batch"),
)
USES = (
    use("steady", 12, 30),
    use("lse", 2, 10),
    use("mid", 3, 12, "koord-mid"),
    use("batch", 20, 50, "koord-batch"),
    use("gone", 1, 2),
    use("gone-batch", 5, 5, "koord-batch"),
)
SYSTEM = usage(*USES, system=both(5, 20), node=both(45, 130))


def amounts(result: NodeResult) -> dict[str, int | None]:
    return {name: each.result for name, each in result.calculations.items()}


def batch(strategy: NodeColocation = ON, node: NodeFacts = NODE, report: Usage = SYSTEM) -> tuple[int, int]:
    found = amounts(node_result(node, PODS, report, strategy, NOW_NS))
    return found[BATCH_CPU], found[BATCH_MEMORY]


def with_fields(**fields: object) -> NodeColocation:
    return msgspec.structs.replace(ON, **fields)


class TestBatch:
    def test_usage_takes_what_is_used_and_requests_of_pods_without_a_report(self) -> None:
        # CPU: 100 − 40 − 5 − (12 + 3) − 8 of LSE − 4 new − 1 gone; memory: 400 − 140 − 20 − (30 + 10 + 12) − 8 − 2.
        assert batch() == (27_000, 178 * GIB)

    def test_request_takes_reservations_and_requests_of_memory(self) -> None:
        # 400 − 140 − 4 − (40 + 8 + 16 + 10); of CPU it is no policy.
        assert batch(with_fields(memoryCalculatePolicy="request", cpuCalculatePolicy="request")) == (27_000, 182 * GIB)

    def test_maxusagerequest_takes_the_higher_of_both(self) -> None:
        # 100 − 40 − 5 − (12 + 8 + 6) − 4 − 1; 400 − 140 − 20 − (40 + 16 + 12) − 8 − 2.
        policies = with_fields(memoryCalculatePolicy="maxUsageRequest", cpuCalculatePolicy="maxUsageRequest")
        assert batch(policies) == (24_000, 162 * GIB)

    def test_maxusagerequest_counts_pods_without_a_report(self) -> None:
        one = (pod("new", 4, 8),)
        policies = with_fields(memoryCalculatePolicy="maxUsageRequest", cpuCalculatePolicy="maxUsageRequest")
        found = amounts(node_result(NODE, one, usage(), policies, NOW_NS))
        assert (found[BATCH_CPU], found[BATCH_MEMORY]) == (54_000, (400 - 140 - 4 - 8) * GIB)

    @pytest.mark.parametrize(
        ("reserved", "cpu"),
        [(both(1, 0), 27_000), (both(5, 0), 27_000), (both(7.5, 0), 24_500)],
    )
    def test_a_reservation_counts_where_it_is_more_than_the_use(self, reserved: CpuMemory, cpu: int) -> None:
        assert batch(node=msgspec.structs.replace(NODE, reserved=reserved))[0] == cpu

    def test_kubelets_reservation_counts_as_one(self) -> None:
        assert batch(node=msgspec.structs.replace(NODE, allocatable=both(92, 360))) == (24_000, 158 * GIB)

    @pytest.mark.parametrize(
        ("band", "cpu"),
        [("koord-prod", 25_000), ("koord-mid", 25_000), ("koord-batch", 27_000), ("koord-free", 27_000)],
    )
    def test_host_applications_above_batch_count_as_the_system(self, band: str, cpu: int) -> None:
        report = msgspec.structs.replace(SYSTEM, host_applications=(application("nginx", 2, 1, band),))
        assert batch(report=report)[0] == cpu

    def test_a_host_application_without_a_class_counts_as_one_above_batch(self) -> None:
        report = msgspec.structs.replace(SYSTEM, host_applications=(application("nginx", 2, 1, ""),))
        assert batch(report=report) == (25_000, 177 * GIB)

    def test_a_gone_pod_without_a_class_counts_as_one_above_batch(self) -> None:
        report = msgspec.structs.replace(SYSTEM, pods=(*USES, use("odd", 2, 3, "")))
        assert batch(report=report) == (25_000, 175 * GIB)

    def test_the_thresholds_cut(self) -> None:
        assert batch(with_fields(batchCPUThresholdPercent=20, batchMemoryThresholdPercent=200)) == (20_000, 178 * GIB)

    def test_there_is_never_less_than_zero(self) -> None:
        assert batch(with_fields(cpuReclaimThresholdPercent=10, memoryReclaimThresholdPercent=10)) == (0, 0)

    def test_normalization_multiplies_cpu_alone(self) -> None:
        assert batch(node=msgspec.structs.replace(NODE, normalization_ratio=1.2)) == (32_400, 178 * GIB)

    @pytest.mark.parametrize("ratio", [1.0, 0.5, 0.0, -2.0, float("nan"), float("inf")])
    def test_a_ratio_that_is_not_above_one_changes_nothing(self, ratio: float) -> None:
        assert batch(node=msgspec.structs.replace(NODE, normalization_ratio=ratio))[0] == 27_000

    def test_what_a_third_party_allocated_is_taken_off_last(self) -> None:
        node = msgspec.structs.replace(NODE, third_party=both(7, 200))
        result = node_result(node, PODS, SYSTEM, ON, NOW_NS)
        assert (amounts(result)[BATCH_CPU], amounts(result)[BATCH_MEMORY]) == (20_000, 0)
        assert result.origin == both(27, 178)


class TestMid:
    def mid(self, strategy: NodeColocation = ON, **report: object) -> tuple[int, int]:
        result = node_result(NODE, PODS, msgspec.structs.replace(SYSTEM, **report), strategy, NOW_NS)
        found = amounts(result)
        return found[MID_CPU], found[MID_MEMORY]

    def test_it_is_what_prod_pods_do_not_need(self) -> None:
        assert self.mid(prod_reclaimable=both(9, 12)) == (9_000, 12 * GIB)

    def test_it_is_no_more_than_is_unused(self) -> None:
        assert self.mid(prod_reclaimable=both(60, 12), node=both(45, 395)) == (55_000, 5 * GIB)

    def test_without_a_prediction_there_is_none(self) -> None:
        assert self.mid() == (0, 0)

    def test_without_a_use_of_the_node_nothing_is_unused(self) -> None:
        assert self.mid(prod_reclaimable=both(9, 12), node=None) == (0, 0)

    def test_a_share_of_what_is_not_requested_comes_on_top(self) -> None:
        # Half of 100 − 5 − (10 + 4 + 8) and of 400 − 20 − (40 + 8 + 16).
        assert self.mid(with_fields(midUnallocatedPercent=50), prod_reclaimable=both(9, 12)) == (45_500, 170 * GIB)

    def test_of_what_is_not_requested_host_applications_below_prod_take_nothing(self) -> None:
        applications = (application("a", 3, 6), application("b", 5, 5, "koord-mid"))
        found = self.mid(with_fields(midUnallocatedPercent=100), host_applications=applications)
        assert found == (70_000, 310 * GIB)

    def test_the_thresholds_cut_the_whole(self) -> None:
        limits = with_fields(midUnallocatedPercent=50, midCPUThresholdPercent=10, midMemoryThresholdPercent=5)
        assert self.mid(limits, prod_reclaimable=both(9, 12)) == (10_000, 20 * GIB)

    def test_static_is_a_share_of_the_capacity(self) -> None:
        static = with_fields(midReclaimMode="static", midStaticCPUReservedPercent=30, midStaticMemoryReservedPercent=80)
        assert self.mid(static, prod_reclaimable=both(9, 12)) == (30_000, 320 * GIB)
        assert self.mid(msgspec.structs.replace(static, midMemoryThresholdPercent=50)) == (30_000, 200 * GIB)


class TestReset:
    @pytest.mark.parametrize(
        ("strategy", "report", "says"),
        [
            (NodeColocation(), SYSTEM, "colocation is off"),
            (ON, None, "no NodeMetric"),
            (ON, usage(updated_ns=None), "never reported"),
            (ON, usage(updated_ns=NOW_NS - 16 * MINUTE_NS), "16 min old (degradeTimeMinutes 15)"),
            (with_fields(degradeTimeMinutes=3), usage(updated_ns=NOW_NS - 4 * MINUTE_NS), "4 min old"),
        ],
    )
    def test_the_node_has_none_of_the_four(self, strategy: NodeColocation, report: Usage | None, says: str) -> None:
        result = node_result(NODE, PODS, report, strategy, NOW_NS)
        assert says in result.reset
        assert amounts(result) == dict.fromkeys(RESOURCES)
        assert {each.reset for each in result.calculations.values()} == {result.reset}

    def test_a_report_of_exactly_that_age_still_counts(self) -> None:
        assert not node_result(NODE, PODS, usage(updated_ns=NOW_NS - 15 * MINUTE_NS), ON, NOW_NS).reset

    def test_a_report_of_a_clock_that_is_ahead_counts(self) -> None:
        assert not node_result(NODE, PODS, usage(updated_ns=NOW_NS + 60 * MINUTE_NS), ON, NOW_NS).reset


_amounts = st.builds(CpuMemory, st.integers(0, 10**6), st.integers(0, 2**45))
_bands = st.sampled_from(["koord-prod", "koord-mid", "koord-batch", "koord-free", ""])
_pods = st.lists(
    st.builds(
        PodRequest,
        st.sampled_from([f"d/p{n}" for n in range(8)]),
        _bands,
        st.booleans(),
        st.integers(0, 10**5),
        st.integers(0, 2**40),
    ),
    max_size=8,
    unique_by=lambda each: each.key,
)
_uses = st.lists(
    st.builds(
        PodUse,
        st.sampled_from([f"d/p{n}" for n in range(12)]),
        _bands,
        st.integers(0, 10**5),
        st.integers(0, 2**40),
    ),
    max_size=8,
    unique_by=lambda each: each.key,
)
_percent = st.integers(0, 150)
_strategies = st.builds(
    NodeColocation,
    enable=st.just(True),
    cpuReclaimThresholdPercent=_percent,
    memoryReclaimThresholdPercent=_percent,
    cpuCalculatePolicy=st.sampled_from(["usage", "request", "maxUsageRequest", "odd"]),
    memoryCalculatePolicy=st.sampled_from(["usage", "request", "maxUsageRequest", "odd"]),
    batchCPUThresholdPercent=st.none() | _percent,
    batchMemoryThresholdPercent=st.none() | _percent,
    midUnallocatedPercent=st.integers(0, 100),
    midReclaimMode=st.none() | st.just("static"),
    midStaticCPUReservedPercent=_percent,
)
_nodes = st.builds(
    NodeFacts,
    st.just("n1"),
    _amounts,
    _amounts,
    reserved=_amounts,
    third_party=_amounts,
    normalization_ratio=st.floats(0, 3),
)


class TestEveryNode:
    @settings(max_examples=300, deadline=None)
    @given(_nodes, _pods, _uses, _amounts, st.none() | _amounts, _strategies)
    def test_no_amount_is_negative_and_each_is_the_sum_of_its_terms(
        self, node: NodeFacts, pods: list, uses: list, system: CpuMemory, reclaimable: CpuMemory, strategy: object
    ) -> None:
        report = usage(*uses, system=system, node=system, prod_reclaimable=reclaimable)
        for each in node_result(node, pods, report, strategy, NOW_NS).calculations.values():
            assert each.result == sum(term.value for term in each.terms)
            assert each.result >= 0
            assert all(term.name and term.source for term in each.terms)

    @settings(max_examples=200, deadline=None)
    @given(_nodes, _pods, _uses, _amounts, _strategies, st.integers(0, 10**5), st.integers(0, 2**40))
    def test_more_use_never_gives_more(
        self, node: NodeFacts, pods: list, uses: list, system: CpuMemory, strategy: object, cpu: int, memory: int
    ) -> None:
        report = usage(*uses, system=system, node=system)
        before = amounts(node_result(node, pods, report, strategy, NOW_NS))
        more = CpuMemory(system.cpu_millicpu + cpu, system.memory_bytes + memory)
        after = amounts(node_result(node, pods, usage(*uses, system=more, node=more), strategy, NOW_NS))
        assert all(after[name] <= before[name] for name in RESOURCES)
        busier = [msgspec.structs.replace(each, cpu_millicpu=each.cpu_millicpu + cpu) for each in uses]
        after = amounts(node_result(node, pods, usage(*busier, system=system, node=system), strategy, NOW_NS))
        assert all(after[name] <= before[name] for name in RESOURCES)

    @settings(max_examples=100, deadline=None)
    @given(_nodes, _pods, _uses, _strategies)
    def test_batch_and_free_pods_change_nothing(
        self, node: NodeFacts, pods: list, uses: list, strategy: NodeColocation
    ) -> None:
        before = amounts(node_result(node, pods, usage(*uses, node=both(1, 1)), strategy, NOW_NS))
        more = [*pods, pod("tenant", 900, 900, "koord-batch"), pod("tenant2", 900, 900, "koord-free")]
        reported = [*uses, use("tenant", 900, 900, "koord-prod")]
        after = amounts(node_result(node, more, usage(*reported, node=both(1, 1)), strategy, NOW_NS))
        assert before == after
