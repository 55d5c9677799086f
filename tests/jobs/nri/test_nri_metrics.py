"""Calls of a container runtime as metrics, by our names and koordlet's."""

from __future__ import annotations

from prometheus_client.core import Metric

from koordebpf.jobs.nri.answers import NriMetrics
from koordebpf.kube.nri.values import BUCKETS_MS, NriCounts


def families(counts: NriCounts, node: str | None = "n1") -> dict[str, Metric]:
    return {each.name: each for each in NriMetrics("nri", counts, lambda: True, node, lambda: 2).families()}


def samples(metric: Metric, **labels: str) -> dict[str, float]:
    """Return samples with these labels by their bound, or by the end of their name."""
    found = [each for each in metric.samples if labels.items() <= each.labels.items()]
    return {each.labels.get("le", each.name.rpartition("_")[2]): each.value for each in found}


def counted() -> NriCounts:
    counts = NriCounts()
    for took_ms in (0.005, 1.5, 2.0, 4.0, 5000.0):
        counts.took("CreateContainer", took_ms, is_ok=True)
    counts.took("CreateContainer", 0.2, is_ok=False)
    counts.adjusted, counts.registrations = 3, 1
    counts.failed("pod team/web: no")
    return counts


def test_a_call_is_in_each_bucket_from_its_own_on():
    calls = samples(families(counted())["koordebpf_nri_call_seconds"], method="CreateContainer", result="succeeded")
    assert (calls["1e-05"], calls["0.002"], calls["0.005"], calls["2.0"], calls["+Inf"]) == (1, 3, 4, 4, 5)
    assert (calls["count"], round(calls["sum"], 6)) == (5, 5.007505)
    assert len(calls) == len(BUCKETS_MS) + 3


def test_koordlets_name_has_milliseconds_and_its_stages():
    found = families(counted())["koordlet_runtime_hook_invoked_duration_milliseconds"]
    calls = samples(found, node="n1", hook="all", stage="PreCreateContainer", status="failed")
    assert (calls["0.16"], calls["0.64"], calls["count"]) == (0, 1, 1)


def test_koordlets_names_are_left_out_without_a_node():
    assert not [name for name in families(counted(), None) if name.startswith("koordlet_")]


def test_what_a_dry_run_would_have_adjusted_counts_too():
    found = families(counted())
    assert samples(found["koordebpf_nri_adjusted_containers"])["total"] == 5
    assert samples(found["koordebpf_nri_errors"])["total"] == 1
    assert samples(found["koordebpf_nri_registrations"])["total"] == 1
    assert found["koordebpf_nri_registered"].samples[0].value == 1


def test_problems_wait_to_be_logged_within_a_bound_and_once():
    counts = NriCounts()
    for number in range(1000):
        counts.failed(f"pod {number}")
        counts.failed("the same")
    found = counts.drain_problems()
    assert len(found) <= 64
    assert found.count("the same") == 1
    assert counts.errors == 2000
    assert counts.drain_problems() == ()
