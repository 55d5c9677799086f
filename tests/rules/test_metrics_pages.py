"""Pages that list metrics: each has them as they describe themselves, those of a strategy's page and no other."""

from __future__ import annotations

import re
from collections.abc import Iterable

from prometheus_client.core import Metric

from koordebpf.jobs.node_metric.run import NodeMetricNow, sending_families
from koordebpf.jobs.node_topology.run import topology_families
from koordebpf.report.prom.decision import DeadManMetrics
from koordebpf.strategies.cpu_burst.run import CpuBurstMetrics
from koordebpf.strategies.page_cache.run import PageCacheMetrics
from koordebpf.strategies.proactive_reclaim.run import ReclaimMetrics
from tests.jobs.node_topology.test_topology_metrics import ALLOCATABLE, POOLS, allocatable_families, pool_families
from tests.rules.offenders import report
from tests.rules.pages import DOCS, ROOT, name_of, rows
from tests.support.values.cpu_burst import BurstNode, container, pod
from tests.unit.report.test_prediction_metrics import GIVEN, NOW_NS, latest, prediction_families

OF_OPERATORS = ROOT / "deploy/metrics.md"


def name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def row(family: Metric) -> str:
    """Return the row that a metric has in the table for operators."""
    samples = family.samples[:1]
    names = [*samples[0].labels] if samples else getattr(family, "_labelnames", None) or ()
    return f"| `{name(family)}` | {family.type} | {' '.join(f'`{each}`' for each in names)} | {family.documentation} |"


def missing(families: Iterable[Metric]) -> list[str]:
    written = {each.text for each in rows(OF_OPERATORS)}
    return [line for line in map(row, families) if line not in written]


def test_the_page_for_operators_has_them() -> None:
    burst = CpuBurstMetrics()
    burst.decision = BurstNode().round(pod(container()))
    of_pods = [*pool_families("n1", POOLS), *allocatable_families("n1", ALLOCATABLE)]
    of_qos = [
        each for one in (PageCacheMetrics(), ReclaimMetrics(), DeadManMetrics(), burst) for each in one.families()
    ]
    others = [*sending_families(NodeMetricNow(age_s=1)), *prediction_families("n1", latest(GIVEN), NOW_NS)]
    families = [*of_qos, *others, *topology_families(0), *of_pods]
    assert len(families) > 20
    report(missing(families), f"{name_of(OF_OPERATORS)} must have these rows")


def test_pages_of_strategies_have_their_metrics_and_no_other() -> None:
    wrong = []
    for page, families in (("page-cache.md", PageCacheMetrics()), ("proactive-reclaim.md", ReclaimMetrics())):
        named = set(re.findall(r"^\| `(koordebpf_\w+)` \|", (DOCS / "qos" / page).read_text(), re.MULTILINE))
        own = {name(each) for each in families.families()}
        assert own
        wrong += [f"docs/qos/{page}: {each}: is not there" for each in sorted(own - named)]
        wrong += [f"docs/qos/{page}: {each}: no such metric" for each in sorted(named - own)]
    report(wrong, "these pages must have a row for each metric of their strategy, and for no other")
