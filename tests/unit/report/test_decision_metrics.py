"""Metrics of what was decided and what became of it."""

from __future__ import annotations

from koordebpf.report.prom.decision import DecisionMetrics
from koordebpf.state.outcome import Outcome, Result

FEATURE = "BEMemoryEvict"


def shown(metrics: DecisionMetrics, name: str) -> dict[tuple[str, ...], float]:
    """Return a family's values by those of their labels."""
    (family,) = (each for each in metrics.families() if each.name == name)
    return {tuple(each.labels.values()): each.value for each in family.samples if not each.name.endswith("_created")}


def test_rounds_that_are_skipped_are_counted_by_feature_and_reason() -> None:
    metrics = DecisionMetrics()
    for feature, reason in ((FEATURE, "cooling"), (FEATURE, "cooling"), (FEATURE, "stale"), ("CPUEvict", "cooling")):
        metrics.count_skipped(feature, reason)
    expected = {(FEATURE, "cooling"): 2, (FEATURE, "stale"): 1, ("CPUEvict", "cooling"): 1}
    assert shown(metrics, "koordebpf_skipped_rounds") == expected


def test_evictions_that_may_come_are_there_from_zero_on() -> None:
    metrics = DecisionMetrics()
    metrics.expect(["BatchResource", FEATURE], "api", is_dry_run=True)
    assert set(shown(metrics, "koordebpf_evictions")) == {(FEATURE, "api", "dry_run")}
    metrics = DecisionMetrics()
    metrics.expect([FEATURE], "api", is_dry_run=False)
    sent = Outcome(uid="u", namespace="n", name="p", executor="api", decided_ns=1, result=Result.DONE, detail="")
    for _ in range(2):
        metrics.count_outcome(sent, FEATURE)
    assert shown(metrics, "koordebpf_evictions") == {
        (FEATURE, "api", "done"): 2,
        (FEATURE, "api", "refused"): 0,
        (FEATURE, "api", "failed"): 0,
    }
