"""Runtime hooks on any pod: they never fail, every value may be written, and no container has more than its pod."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koordebpf.policy.reconcile import DesiredState, wanted_values
from koordebpf.slo.pods.cpu_placement import SharePool
from koordebpf.slo.spec import NodeSLOSpec
from koordebpf.state.pods.hook_pods import HookPod, PodDirectory, annotated_pod
from koordebpf.strategies.hooks.adjust import UNLIMITED, HookRules, Setting, container_adjustment, pod_adjustment
from koordebpf.strategies.hooks.decide import pod_writes
from koordebpf.strategies.hooks.values import HOOKS
from tests.support.values.hooks import batch, hook_pod_of

AMOUNTS = st.integers(0, 9_000)
BATCH = st.builds(batch, AMOUNTS, AMOUNTS, st.integers(0, 1 << 40))
NATIVE = st.fixed_dictionaries({}, optional={
    "requests": st.fixed_dictionaries({}, optional={"cpu": st.sampled_from(["1", "500m", "x", 0.5])}),
    "limits": st.fixed_dictionaries({}, optional={
        "cpu": st.sampled_from(["1", "500m", "-1", "1e30"]), "memory": st.sampled_from(["1Gi", "", "1e99", 5])
    }),
})  # fmt: skip
NAMES = st.sampled_from(["a", "b", "c"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
).map(json.dumps)
ANNOTATIONS = st.dictionaries(
    st.sampled_from([
        "node.koordinator.sh/extended-resource-spec", "scheduling.koordinator.sh/resource-status",
        "koordinator.sh/cpuQOS", "koordinator.sh/oom-score-adj", "koordinator.sh/oom-score-adj-spec",
    ]),
    JSON | st.text(max_size=30) | st.sampled_from([
        '{"containers": {"a": {"limits": {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "1Gi"}}}}',
        '{"cpuset": "0-3"}', '{"cpuset": "0-90", "numaNodeResources": [{"node": 0, "resources": {"cpu": "1"}}]}', "500",
    ]),
    max_size=4,
)  # fmt: skip
QOS = st.sampled_from(["BE", "LS", "LSR", "LSE", "SYSTEM", ""])
RULES = st.builds(
    HookRules,
    hooks=st.frozensets(st.sampled_from(HOOKS)),
    is_quota_off=st.booleans(),
    normalization_ratio=st.none() | st.floats(1.01, 100),
    shared_pools=st.none() | st.just((SharePool(0, 0, (0, 1)), SharePool(0, 1, (2, 3)))),
    system_cpus=st.just(frozenset()) | st.just(frozenset({3, 70})),
    kubelet_policy=st.sampled_from(["", "none", "static"]),
    online=st.none() | st.just(frozenset(range(4))),
    qos=st.none() | st.just(NodeSLOSpec().resourceQOSStrategy),
    unsets_quota=st.booleans(),
    idles_best_effort=st.booleans(),
)


@st.composite
def pods(draw: st.DrawFn) -> HookPod:
    def group() -> Any:
        return draw(st.dictionaries(NAMES, BATCH | NATIVE, max_size=2))

    main, init, sidecars = group(), group(), group()
    pod = hook_pod_of(
        draw(QOS),
        {"main": {}, **main},
        init={f"init-{name}": each for name, each in init.items()},
        sidecars={f"side-{name}": each for name, each in sidecars.items()},
        annotations=draw(ANNOTATIONS),
        kube_qos=draw(st.sampled_from(["BestEffort", "Burstable", "Guaranteed", ""])),
    )
    return annotated_pod(pod) if draw(st.booleans()) else pod


def value(setting: Setting[int] | None) -> int | None:
    return None if setting is None else setting.value


@given(pods(), RULES)
def test_every_value_may_be_written(pod: HookPod, rules: HookRules) -> None:
    directory = PodDirectory(
        pod.uid, "kubepods/pod", {f"id-{each.name}": f"kubepods/pod/{each.name}" for each in pod.containers}
    )
    made = pod_writes(pod, directory, rules)
    # Raises where a file is wanted to hold what it cannot, or two values.
    wanted_values(DesiredState("", tuple(each.write for each in made.writes)))
    assert {each.hook for each in made.writes} <= rules.hooks
    assert all(each.source for each in made.writes)
    assert all(problem.startswith("pod team/web: ") for problem in made.problems)
    assert made == pod_writes(pod, directory, rules)


@given(pods(), RULES)
def test_no_container_has_more_than_its_pod(pod: HookPod, rules: HookRules) -> None:
    of_pod = pod_adjustment(pod, rules)
    for container in pod.containers:
        made = container_adjustment(pod, container, rules)
        for name in ("cfs_quota_us", "memory_limit_bytes"):
            limit, own = value(getattr(of_pod, name)), value(getattr(made, name))
            if limit is not None and limit != UNLIMITED and own is not None:
                assert own != UNLIMITED
                assert own <= limit


@given(pods())
def test_a_quota_is_at_least_what_the_kernel_takes(pod: HookPod) -> None:
    rules = HookRules(hooks=frozenset(HOOKS), normalization_ratio=99.0)
    made = [pod_adjustment(pod, rules), *(container_adjustment(pod, each, rules) for each in pod.containers)]
    quotas = [value(each.cfs_quota_us) for each in made]
    assert all(quota is None or quota == UNLIMITED or quota >= 1000 for quota in quotas)
