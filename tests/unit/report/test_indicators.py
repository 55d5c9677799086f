"""Service level indicators: which stalls, which CPU time and which evictions count in them."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from koordebpf.report.prom.metrics import AgentMetrics, IndicatorMetrics
from koordebpf.state.build import view_of_frame
from koordebpf.state.cpu.measured import CpuMeasured, CpuTopology, CpuUsage, CpuView
from koordebpf.state.measured import NodeForecast, Party, TimeTo
from koordebpf.state.pods.facts import pod_facts
from koordebpf.state.stalls.ledger import OWN_LIMIT, UNATTRIBUTED, Charge
from koordebpf.state.view import NodeView
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import frame, pod

S = NS_PER_S
CPU = CpuView(CpuMeasured(CpuTopology(())), 4000, allocatable={"kubernetes.io/batch-cpu": 1500})


def samples(metrics: IndicatorMetrics) -> dict[str, float]:
    return {
        each.name: each.value for family in metrics.families() for each in family.samples if "le" not in each.labels
    }


def party(name: str) -> Party:
    return Party(name, "pod", f"ns/{name}", uid=name)


def seen(at_s: int, *, used_mib: int = 500, cpu: CpuView | None = CPU, **millicpu: int) -> NodeView:
    """A node at a moment, with best-effort pods that used so much CPU."""
    view = view_of_frame(frame([pod(name, anon=10, uid=name) for name in millicpu] + [pod("web", qos="LS", anon=5)]))
    pods = tuple(replace(each, cpu_used_millicpu=millicpu.get(each.name, 900)) for each in view.pods)
    return replace(view, now_ns=at_s * S, used_bytes=used_mib * MIB, cpu=cpu, pods=pods)


def test_only_stalls_of_others_by_best_effort_pods_count() -> None:
    metrics = IndicatorMetrics()
    facts = [
        pod_facts(each.pod)
        for each in (
            pod("hog", uid="hog"),
            pod("unlabelled", qos=None, uid="unlabelled"),
            pod("web", qos="LS", kube_qos="Burstable", uid="web"),
            pod("job", qos=None, kube_qos="Burstable", uid="job"),
        )
    ]
    service = Party("x.service", "cgroup", "x.service")
    metrics.charge(
        [
            Charge(party("web"), party("hog"), S),
            Charge(party("job"), party("unlabelled"), 2 * S),
            Charge(party("hog"), party("unlabelled"), 4 * S),  # one best-effort pod by another
            Charge(party("web"), party("job"), 8 * S),
            Charge(party("web"), OWN_LIMIT, 16 * S),
            Charge(party("web"), UNATTRIBUTED, 32 * S),
            Charge(service, party("hog"), 64 * S),  # no pod
        ],
        facts,
    )
    assert samples(metrics)["koordebpf_ls_stall_by_be_seconds_total"] == 3


def test_an_evicted_pods_cpu_time_is_lost_once() -> None:
    metrics = IndicatorMetrics()
    metrics.record(seen(10, hog=1500, other=500))  # the first look knows no window
    metrics.record(seen(12, hog=1500, other=500))
    metrics.record(seen(13, hog=1000))  # the other has ended by itself
    for uid in ("hog", "hog", "other", "never-seen"):
        metrics.evicted(uid)
    found = samples(metrics)
    assert found["koordebpf_be_cpu_seconds_total"] == pytest.approx(5)
    assert found["koordebpf_be_lost_cpu_seconds_total"] == pytest.approx(4)
    assert found["koordebpf_be_memory_bytes"] == 10 * MIB
    assert found["koordebpf_batch_allocatable_cores"] == 1.5


def test_where_cpus_are_not_measured_their_time_is_absent() -> None:
    metrics = IndicatorMetrics()
    for at_s in (1, 2):
        metrics.record(seen(at_s, cpu=None, hog=0))
    assert not [name for name in samples(metrics) if "cpu" in name or "batch" in name]


def test_where_the_directory_alone_is_measured_its_time_counts_and_no_pods_work_is_known_to_be_lost() -> None:
    metrics = IndicatorMetrics()
    usage = CpuUsage(S, node_used_millicpu=3000, be_used_millicpu=700)
    for at_s, cpu in ((1, CPU), (2, CPU), (4, replace(CPU, measured=replace(CPU.measured, usage=usage)))):
        view = seen(at_s, cpu=cpu, hog=0)
        metrics.record(replace(view, pods=tuple(replace(each, cpu_used_millicpu=None) for each in view.pods)))
        assert ("koordebpf_be_cpu_seconds_total" in samples(metrics)) is (at_s == 4)
    metrics.evicted("hog")
    assert samples(metrics)["koordebpf_be_cpu_seconds_total"] == pytest.approx(1.4)
    assert "koordebpf_be_lost_cpu_seconds_total" not in samples(metrics)


@pytest.mark.parametrize(
    ("used_mib", "back_mib", "threshold_mib", "needless"),
    [(599, 100, 700, 1), (600, 100, 700, 0), (400, 100, None, 0)],
    ids=["below without it", "at the threshold without it", "judged by something else"],
)
def test_an_eviction_is_needless_where_the_node_is_below_the_threshold_without_it(
    used_mib: int, back_mib: int, threshold_mib: int | None, needless: int
) -> None:
    metrics = IndicatorMetrics()
    metrics.released(back_mib * MIB, None if threshold_mib is None else threshold_mib * MIB)
    assert samples(metrics)["koordebpf_needless_evictions_total"] == 0
    for at_s in (1, 2):
        metrics.record(seen(at_s, used_mib=used_mib))
    assert samples(metrics)["koordebpf_needless_evictions_total"] == needless


def test_the_lead_is_what_the_forecast_had_left() -> None:
    metrics = IndicatorMetrics()
    for forecast in (None, NodeForecast(), NodeForecast(oom=TimeTo(S, 2 * S, None))):
        metrics.decided(replace(seen(1), forecast=forecast))
    found = samples(metrics)
    assert (found["koordebpf_lead_over_oom_seconds_count"], found["koordebpf_lead_over_oom_seconds_sum"]) == (1, 2)


def test_kills_by_the_kernel_begin_at_zero() -> None:
    metrics = IndicatorMetrics()

    def kills() -> dict[str, float]:
        (family,) = (each for each in metrics.families() if each.name == "koordebpf_oom_kills")
        return {each.labels["scope"]: each.value for each in family.samples}

    assert kills() == {"node": 0, "limit": 0}
    for is_global in (True, False, False):
        metrics.oom_killed(is_global=is_global)
    assert kills() == {"node": 1, "limit": 2}


@pytest.mark.parametrize("most", [0, 1, 10, 100, 800])
def test_series_with_a_pods_name_are_within_their_budget_and_nothing_is_lost(most: int) -> None:
    # GIVEN 300 pods, each of which stalls for both reasons on account of the one before, and grows
    metrics = AgentMetrics(pod_series=most)
    pods = [f"p{at}" for at in range(300)]
    for before, name in itertools.pairwise(pods):
        for scope in ("global", "limit"):
            metrics.pods.add_stall("ns", name, scope, S)
        metrics.ledger.add([Charge(party(name), party(before), S)])
    view = view_of_frame(frame([pod(name) for name in pods]))
    metrics.node.forecast_pods = tuple(replace(each, forecast=TimeTo(1, 2, 3)) for each in view.pods)
    # THEN
    names = ("koordebpf_pod_stall_seconds", "koordebpf_stall_charged_seconds", "koordebpf_pod_forecast_seconds")
    found = {family.name: family.samples for family in metrics.collect() if family.name in names}
    overflows = 3  # one of each scope, and one pair
    assert sum(map(len, found.values())) <= max(most, overflows)
    assert sum(each.value for each in found["koordebpf_pod_stall_seconds"]) == 598
    assert sum(each.value for each in found["koordebpf_stall_charged_seconds"]) == 299
    if most >= 100:
        assert sum(map(len, found.values())) >= most * 3 // 4
