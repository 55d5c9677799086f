"""The status of a NodeMetric against what koordlet would write for the same samples, worked out by hand."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from koordebpf.jobs.node_metric.render import CollectPolicy, Rendering, Reported, with_prediction
from koordebpf.kube.cache.objects import ObjectMeta, Pod, PodSpec, PodStatus
from koordebpf.quantity import cpu_text, memory_text
from koordebpf.slo.strategies.host_applications import HostApplication
from koordebpf.state.pods.facts import PodFacts, pod_facts
from koordebpf.state.prediction import Amounts, ProdPrediction
from koordebpf.state.series import kinds
from koordebpf.state.series.kinds import SeriesKey
from koordebpf.state.series.store import SeriesStore
from koordebpf.units import GIB, MIB, NS_PER_S

NOW_NS = 10_000 * NS_PER_S
TIME = "2026-01-02T03:04:05Z"


def pod(
    name: str, namespace: str = "be", qos: str = "Burstable", priority: int | None = None, **labels: str
) -> PodFacts:
    named = {f"koordinator.sh/{label}": value for label, value in labels.items()}
    meta = ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}", labels=named)
    return pod_facts(Pod(meta, PodSpec(priority=priority), PodStatus(phase="Running", qosClass=qos)))


class Samples:
    """What was measured in half an hour, a sample a second, the last one now."""

    def __init__(self) -> None:
        self._rounds: dict[int, dict[SeriesKey, float]] = defaultdict(dict)

    @property
    def store(self) -> SeriesStore:
        store = SeriesStore()
        for second in sorted(self._rounds):
            values = self._rounds[second]
            assert store.append_round(NOW_NS + second * NS_PER_S, values) == len(values)
        return store

    def fill(self, key: SeriesKey, *values: float, seconds: int | None = None, ago_s: int = 0) -> Samples:
        """`values` end so long ago; of a single one there are `seconds` samples."""
        filled = values if seconds is None else values * seconds
        for back, value in enumerate(reversed(filled), ago_s):
            self._rounds[-back][key] = value
        return self

    def node(self, cores: float = 2.0, used_bytes: float = GIB, seconds: int = 1800) -> Samples:
        self.fill((kinds.NODE_CPU,), cores, seconds=seconds)
        return self.fill((kinds.NODE_MEMORY,), used_bytes, seconds=seconds)

    def pod(self, name: str, cores: float = 0.5, used_bytes: float = 100 * MIB) -> Samples:
        self.fill((kinds.POD_CPU, f"uid-{name}"), cores, seconds=60)
        return self.fill((kinds.POD_MEMORY, f"uid-{name}"), used_bytes, seconds=60)


def status(samples: Samples, *pods: PodFacts, policy: CollectPolicy | None = None, **of: Any) -> Any:
    report = Rendering(
        samples.store,
        Reported(now_ns=NOW_NS, time=TIME, policy=policy or CollectPolicy(), pods=pods, **of),
    )
    for _ in report.steps():
        pass
    return report.status


def whole_status() -> Any:
    """What `test_a_whole_status_is_as_koordlet_writes_it` expects."""
    empty = {each: {} for each in ("avg", "p50", "p90", "p95", "p99")}

    def system() -> dict[str, Any]:
        return {"resources": {"cpu": "25m", "memory": "1k"}}

    return {
        "updateTime": TIME,
        "nodeMetric": {
            # (1 + … + 100) / 100 = 50.5 millicores, of which the half is cut off.
            "nodeUsage": {"resources": {"cpu": "50m", "memory": "51712Ki"}},
            "aggregatedNodeUsages": [
                {
                    "duration": "3m0s",
                    "usage": {
                        "avg": {"resources": {"cpu": "50m", "memory": "51712Ki"}},
                        # The value at index trunc(100 · p) − 1.
                        "p50": {"resources": {"cpu": "50m", "memory": "50Mi"}},
                        "p90": {"resources": {"cpu": "90m", "memory": "90Mi"}},
                        "p95": {"resources": {"cpu": "95m", "memory": "95Mi"}},
                        "p99": {"resources": {"cpu": "99m", "memory": "99Mi"}},
                    },
                },
                {"duration": "5m0s", "usage": empty},
            ],
            "systemUsage": system(),
            "aggregatedSystemUsages": [
                {"duration": "3m0s", "usage": {each: system() for each in empty}},
                {"duration": "5m0s", "usage": empty},
            ],
        },
        "podsMetric": [
            {
                "name": "a",
                "namespace": "be",
                "podUsage": {"resources": {"cpu": "250m", "memory": "1500000"}},
                "priority": "koord-batch",
                "qos": "BE",
            },
            {
                "name": "b",
                "namespace": "be",
                "podUsage": {"resources": {"cpu": "1999m", "memory": "3Gi"}},
                "priority": "koord-prod",
                "qos": "LS",
            },
        ],
        "hostApplicationMetric": [
            {
                "name": "nginx",
                "usage": {"resources": {"cpu": "1", "memory": "5Mi"}},
                "priority": "koord-prod",
                "qos": "LS",
            }
        ],
        "prodReclaimableMetric": {"resource": {"resources": {"cpu": "1500m", "memory": "2Gi"}}},
        "prodPeakMetric": {"resource": {"resources": {"cpu": "4", "memory": "3Gi"}}},
    }


def test_a_whole_status_is_as_koordlet_writes_it() -> None:
    samples = Samples()
    # 1..100 millicores and MiB, in the last 100 s: a window of 3 minutes is full for more than half, of 5 it is not.
    samples.fill((kinds.NODE_CPU,), *(n / 1000 for n in range(1, 101)))
    samples.fill((kinds.NODE_MEMORY,), *(n * MIB for n in range(1, 101)))
    samples.fill((kinds.SYSTEM_CPU,), 0.0255, seconds=100).fill((kinds.SYSTEM_MEMORY,), 1000.9, seconds=100)
    samples.pod("b", 1.9999, 3 * GIB).pod("a", 0.25, 1_500_000)
    samples.fill((kinds.HOST_APPLICATION_CPU, "nginx"), 1.0, seconds=5)
    samples.fill((kinds.HOST_APPLICATION_MEMORY, "nginx"), 5 * MIB, seconds=5)
    made = status(
        samples,
        pod("b", priority=9000),
        pod("a", qosClass="BE"),
        pod("z-without-samples"),
        policy=CollectPolicy(durations_ns=(180 * NS_PER_S, 300 * NS_PER_S)),
        host_applications=(
            HostApplication(name="unmeasured", qos="LS"),
            HostApplication(name="nginx", priority="koord-prod", qos="LS"),
        ),
    )
    assert with_prediction(made, ProdPrediction(Amounts(1500, 2 * GIB), Amounts(4000, 3 * GIB))) == whole_status()


def test_usage_is_the_average_over_the_aggregate_duration_alone() -> None:
    samples = Samples().fill((kinds.NODE_CPU,), *[8.0] * 100, *[1.0] * 60)
    samples.fill((kinds.NODE_MEMORY,), *[9 * GIB] * 100, *[GIB] * 60)
    made = status(samples, policy=CollectPolicy(aggregate_ns=60 * NS_PER_S))
    assert made["nodeMetric"]["nodeUsage"] == {"resources": {"cpu": "1", "memory": "1Gi"}}


def test_without_samples_of_the_node_there_is_no_report() -> None:
    samples = Samples().pod("a")
    assert status(samples, pod("a")) is None
    samples.fill((kinds.NODE_CPU,), 1.0)
    assert status(samples, pod("a")) is None


def test_what_is_not_measured_is_left_out_and_is_not_zero() -> None:
    made = status(Samples().node())
    assert made["nodeMetric"]["systemUsage"] == {}
    assert made.keys() == {"updateTime", "nodeMetric"}
    assert "numaUsages" not in made["nodeMetric"]
    assert with_prediction(made, None)["prodReclaimableMetric"] == {"resource": {}}
    assert with_prediction(made, ProdPrediction())["prodReclaimableMetric"] == {"resource": {}}
    assert "prodPeakMetric" not in with_prediction(made, ProdPrediction())


def test_pods_are_sorted_by_namespace_and_name() -> None:
    samples = Samples().node()
    pods = [pod("c", "x"), pod("b", "y"), pod("a", "y"), pod("d", "x")]
    for each in pods:
        samples.pod(each.name)
    made = status(samples, *pods)["podsMetric"]
    assert [(each["namespace"], each["name"]) for each in made] == [("x", "c"), ("x", "d"), ("y", "a"), ("y", "b")]


# GetPodQoSClassWithDefault, GetPodPriorityClassWithDefault.
@pytest.mark.parametrize(
    ("of", "priority", "qos"),
    [
        (pod("p", qos="Guaranteed"), "koord-prod", "LSR"),
        (pod("p", qos="Burstable"), "koord-prod", "LS"),
        (pod("p", qos="BestEffort"), "koord-batch", "BE"),
        (pod("p", qos="BestEffort", qosClass="LSE"), "koord-prod", "LSE"),
        (pod("p", qosClass="SYSTEM"), "koord-prod", "SYSTEM"),
        (pod("p", qosClass="nothing"), "koord-prod", "LS"),
        (pod("p", qos="BestEffort", priority=7000), "koord-mid", "BE"),
        (pod("p", priority=3500), "koord-free", "LS"),
        (pod("p", **{"priority-class": "koord-batch"}), "koord-batch", "LS"),
    ],
)
def test_priority_and_qos_have_koordinators_defaults(of: PodFacts, priority: str, qos: str) -> None:
    (made,) = status(Samples().node().pod("p"), of)["podsMetric"]
    assert (made["priority"], made["qos"]) == (priority, qos)


def test_the_memory_policy_chooses_the_kind() -> None:
    samples = Samples().node(used_bytes=GIB).pod("a", used_bytes=MIB)
    samples.fill((kinds.NODE_MEMORY_WITH_PAGE_CACHE,), 3 * GIB, seconds=60)
    samples.fill((kinds.POD_MEMORY_WITH_PAGE_CACHE, "uid-a"), 3 * MIB, seconds=60)
    samples.fill((kinds.SYSTEM_CPU,), 0.5, seconds=60).fill((kinds.SYSTEM_MEMORY,), 7 * MIB, seconds=60)

    samples.fill((kinds.HOST_APPLICATION_CPU, "nginx"), 0.5, seconds=60)
    samples.fill((kinds.HOST_APPLICATION_MEMORY, "nginx"), 5 * MIB, seconds=60)
    samples.fill((kinds.HOST_APPLICATION_MEMORY_WITH_PAGE_CACHE, "nginx"), 9 * MIB, seconds=60)

    def memory(policy: Any) -> tuple[str, ...]:
        applications = (HostApplication(name="nginx"),)
        made = status(samples, pod("a"), policy=CollectPolicy(memory=policy), host_applications=applications)
        node, system = made["nodeMetric"]["nodeUsage"], made["nodeMetric"]["systemUsage"]
        used, host = made["podsMetric"][0]["podUsage"], made["hostApplicationMetric"][0]["usage"]
        return tuple(each["resources"]["memory"] for each in (node, used, system, host))

    assert memory("usageWithoutPageCache") == ("1Gi", "1Mi", "7Mi", "5Mi")
    assert memory("usageWithPageCache") == ("3Gi", "3Mi", "7Mi", "9Mi")
    # The kernel does not tell hot pages: as without.
    assert memory("usageWithHotPageCache") == ("1Gi", "1Mi", "7Mi", "5Mi")
    samples.fill((kinds.NODE_MEMORY_WITH_HOT_PAGES,), 2 * GIB, seconds=60)
    samples.fill((kinds.POD_MEMORY_WITH_HOT_PAGES, "uid-a"), 2 * MIB, seconds=60)
    assert memory("usageWithHotPageCache") == ("2Gi", "2Mi", "7Mi", "5Mi")


def test_numa_nodes_are_reported_where_they_are_measured() -> None:
    samples = Samples().node()
    for number, cores in enumerate((1.0, 0.5)):
        samples.fill((kinds.NODE_NUMA_CPU, str(number)), cores, seconds=60)
        samples.fill((kinds.NODE_NUMA_MEMORY, str(number)), GIB, seconds=60)
    samples.fill((kinds.SYSTEM_NUMA_CPU, "1"), 0.25, seconds=60)
    samples.fill((kinds.SYSTEM_NUMA_MEMORY, "1"), MIB, seconds=60)
    assert status(samples)["nodeMetric"]["numaUsages"] == [
        {"numaNodeID": 0, "nodeUsage": {"resources": {"cpu": "1", "memory": "1Gi"}}, "systemUsage": {}},
        {
            "numaNodeID": 1,
            "nodeUsage": {"resources": {"cpu": "500m", "memory": "1Gi"}},
            "systemUsage": {"resources": {"cpu": "250m", "memory": "1Mi"}},
        },
    ]


def test_a_report_is_made_in_steps_of_few_pods() -> None:
    samples = Samples().node(seconds=1200)
    pods = [pod(f"p{number}") for number in range(100)]
    for each in pods:
        samples.pod(each.name)
    report = Rendering(samples.store, Reported(now_ns=NOW_NS, time=TIME, policy=CollectPolicy(), pods=pods))
    assert sum(1 for _ in report.steps()) >= 6 + 100 / 16
    assert report.status is not None
    assert len(report.status["podsMetric"]) == len(report.measured) == 100


# resource.NewMilliQuantity(n, DecimalSI).String()
@pytest.mark.parametrize(
    ("millicpu", "text"),
    [(0, "0"), (1, "1m"), (1000, "1"), (1500, "1500m"), (10_000, "10"), (1_000_000, "1k"), (1_200_000, "1200")],
)
def test_cpu_is_written_as_go_does(millicpu: int, text: str) -> None:
    assert cpu_text(millicpu) == text


# resource.NewQuantity(n, BinarySI).String()
@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0"),
        (1000, "1k"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1536, "1536"),
        (10_000, "10000"),
        (3 * GIB, "3Gi"),
        (GIB + MIB, "1025Mi"),
        (1 << 60, "1Ei"),
    ],
)
def test_memory_is_written_as_go_does(n_bytes: int, text: str) -> None:
    assert memory_text(n_bytes) == text
