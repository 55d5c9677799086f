"""A plan for people: all three features, what tells the candidates apart, and what was not done."""

from __future__ import annotations

from msgspec.structs import replace

from koordebpf.decision.node_plan import NodePlan, decide_node
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.ladder_settings import LadderSettings, Rung
from koordebpf.policy.plan import FeaturePlan
from koordebpf.report.pages.explain import explained
from koordebpf.report.pages.plan import plan_page
from koordebpf.store.audit_record import OpenPlan
from tests.scenarios import test_cpu_evict
from tests.support.values.builders import frame, node_plan_of, pod
from tests.support.values.cpu_nodes import node as cpu_node

ENABLED = {"koordinator.sh/eviction-enabled": "true"}
GATES = {"BEMemoryEvict": True, "MemoryAllocatableEvict": True, "MemoryEvict": True}
BATCH = {"kubernetes.io/batch-memory": "400Mi"}


def allocatable(used: int = 100) -> NodePlan:
    return node_plan_of(
        frame(
            [
                pod("own", anon=300, labels=ENABLED, requests=BATCH, own_priority="3"),
                pod("sub", anon=100, labels={**ENABLED, "koordinator.sh/priority": "77"}, requests=BATCH),
                pod("none", anon=100),
            ],
            used=used,
            gates=GATES,
            allocatable={"memory": "900Mi", "kubernetes.io/batch-memory": "500Mi"},
        )
    )


def reported(plan: NodePlan) -> str:
    return explained(OpenPlan(plan, node="n", dry_run=True, seen_ns=None, decided_ns=1, wall_s=0.0).record())


def test_requests_against_what_is_allocatable() -> None:
    page = plan_page(allocatable(), 10)
    assert (
        "MemoryAllocatableEvict\n"
        "  of kubernetes.io/batch-memory\n"
        "  requested     800 MiB  160 % of what is allocatable\n"
        "  allocatable   500 MiB\n"
        "  too much      300 MiB\n"
        "  need          300 MiB\n"
        "  coming back       0 B\n"
        "  credit        400 MiB  1 victim\n"
        "\n"
        "rank  pod        own  priority  sub     used     asks            of\n"
        "*  1  spark/sub    0      5000   77  100 MiB  400 MiB  batch-memory\n"
        "   2  spark/own    3      5000    -  300 MiB  400 MiB  batch-memory\n"
        "* evicted\n"
        "\n"
        "no candidates:\n"
        "  spark/none: it has no label koordinator.sh/eviction-enabled=true\n"
    ) in page
    assert page.endswith(
        "MemoryEvict: skipped (invalid_config)\n"
        "  resourceUsedThresholdWithBE is unusable: set evictEnabledPriorityThreshold\n"
        "\n"
        "StallEvict: skipped (gate_off)"
    )
    assert "1. spark/sub (priority 5000, 400 MiB of kubernetes.io/batch-memory)" in " ".join(
        reported(allocatable()).split()
    )


def test_what_the_features_before_release_counts() -> None:
    plan = allocatable(used=820)
    page = plan_page(plan, 10)
    assert "  from others   400 MiB  victims of the features before\n" in page
    assert "  the victims of the features before it cover the need\n" in page
    assert "400 MiB come from the victims of the features before" in " ".join(reported(plan).split())


def test_what_distinguishes_candidates_of_one_priority() -> None:
    plan = node_plan_of(frame([pod("hog", anon=300), pod("calm", anon=10), pod("third", anon=9)], used=900))
    (feature,) = plan.features
    hog, calm, third = feature.candidates
    changed = (
        replace(hog, caused_ns=1_250_000_000, workload="spark/Job/etl", disruption="allowed"),
        replace(calm, workload="spark/Job/etl", disruption="blocked by spark/etl"),
        third,
    )
    plan = with_candidates(plan, feature, changed)
    assert (
        "rank  pod          priority     used    credit  growth/s  caused\n"
        "*  1  spark/hog        5000  300 MiB   300 MiB         -  1.25 s\n"
        "   2  spark/calm       5000  10.0 MiB  10.0 MiB        -       -\n"
    ).replace(" ", "") in plan_page(plan, 10).replace(" ", "")
    assert (
        "* evicted; caused: stalls of latency-sensitive pods on its account\n"
        "  rank 2: blocked by spark/etl\n"
        "  ranks 1, 2 are of spark/Job/etl"
    ) in plan_page(plan, 10)
    text = " ".join(reported(plan).split())
    assert "1. spark/hog (priority 5000, 300 MiB), on whose account others stalled 1.25 s, evicted" in text
    assert "2. spark/calm (priority 5000, 10.0 MiB), blocked by spark/etl, stays" in text


def with_candidates(plan: NodePlan, feature: FeaturePlan, candidates: tuple[object, ...]) -> NodePlan:
    return replace(plan, features=(replace(feature, candidates=candidates),))  # type: ignore[type-var]


def starving() -> NodePlan:
    return decide_node(test_cpu_evict.TestBestEffortSatisfaction().view(), EvictSettings())


def test_a_feature_that_judges_cpu_has_its_own_unit() -> None:
    page = plan_page(starving(), 2)
    assert (
        "BECPUEvict\n"
        "  may have      10 CPUs\n"
        "  used         9.9 CPUs  99 %, average of 60 s\n"
        "  threshold      9 CPUs  90 %\n"
        "  requested     20 CPUs  average of 60 s, satisfied to 50 %\n"
        "  lower         12 CPUs  60 %\n"
        "  upper         16 CPUs  80 %\n"
        "  need           6 CPUs\n"
        "  coming back    0 CPUs\n"
        "  credit         6 CPUs  1 victim\n"
        "\n"
        "rank  pod         priority      used    asks  share\n"
        "   1  spark/low       5000  3.9 CPUs  4 CPUs   97 %\n"
        "*  2  spark/busy      5500  4.5 CPUs  6 CPUs   75 %\n"
        "* evicted; 2 more candidates"
    ) in page
    text = " ".join(reported(starving()).split())
    assert "BECPUEvict: 6 CPUs were needed, one pod of 4 candidates would give 6 CPUs." in text
    assert "2. spark/busy (priority 5500, 6 CPUs of kubernetes.io/batch-cpu) evicted" in text
    assert "1. spark/large (priority 5000, 2.5 CPUs) evicted" in " ".join(reported(full()).split())


def full(now: int = 82_000) -> NodePlan:
    pods = [pod(name, labels=ENABLED) for name in ("small", "large")]
    view = cpu_node(
        cpus=100, pods=pods, be_pods_used={"uid-spark-small": 1500, "uid-spark-large": 2500}, node_used=now,
        strategy=test_cpu_evict.USAGE, gates={"CPUEvict": True}, window=test_cpu_evict.window(node_used=81_000),
    )  # fmt: skip
    return decide_node(view, EvictSettings())


def test_a_node_without_cpu_has_the_same_lines_as_one_without_memory() -> None:
    page = plan_page(full(), 1)
    assert (
        "CPUEvict\n"
        "  capacity     100 CPUs\n"
        "  used          81 CPUs  81 %, average of 60 s\n"
        "  used now      82 CPUs  of 100 CPUs\n"
        "  threshold     80 CPUs  80 %\n"
        "  lower         78 CPUs  78 %\n"
        "  need           3 CPUs\n"
        "  coming back    0 CPUs\n"
        "  credit         4 CPUs  2 victims\n"
        "\n"
        "rank  pod          priority      used    credit\n"
        "*  1  spark/large      5000  2.5 CPUs  2.5 CPUs\n"
        "* evicted; 1 more candidates"
    ) in page
    assert "used now" not in plan_page(full(now=81_000), 1)


def test_best_effort_pods_that_starve_otherwise_now() -> None:
    view = test_cpu_evict.TestBestEffortSatisfaction().view(limit=11, used=9950)
    page = plan_page(decide_node(view, EvictSettings()), 1)
    assert "  used now    9.95 CPUs  of 11 CPUs, 20 CPUs requested\n" in page
    assert "  need           5 CPUs\n" in page


def test_the_ladder_is_shown_where_it_is_used_or_asked_for() -> None:
    recorded = frame([pod("hog", anon=300, growth=1e6)], used=900)
    assert "ladder" not in plan_page(node_plan_of(recorded), 10)
    of_cpu = plan_page(full(), 10, with_ladder=True)
    assert "  * evict    evicts spark/large, spark/small: 4 CPUs come back" in of_cpu
    assert "    kill     kills the cgroup of spark/large, spark/small: 4 CPUs come back" in of_cpu
    of_requests = plan_page(starving(), 10, with_ladder=True)
    assert "    kill     kills the cgroup of spark/busy: 0 B come back" in of_requests  # its requests stay
    asked = plan_page(node_plan_of(recorded), 10, with_ladder=True)
    assert "  * evict    evicts spark/hog: 300 MiB come back" in asked
    assert "    freeze   freezes spark/hog: it grows no more and releases nothing" in asked
    used = node_plan_of(recorded, EvictSettings(ladder=LadderSettings(rungs=frozenset({Rung.BRAKE, Rung.EVICT}))))
    assert "  * brake    memory.high holds spark/hog at 285 MiB" in plan_page(used, 10)
    calm = plan_page(node_plan_of(frame([], used=1)), 10, with_ladder=True)
    assert calm.endswith("(* is used):\n  no victim")


def test_every_line_fits() -> None:
    for plan in (allocatable(), allocatable(820), starving(), full()):
        assert max(map(len, plan_page(plan, 10, with_ladder=True).splitlines())) <= 80
        assert max(map(len, reported(plan).splitlines())) <= 80
