"""Memory QoS on any pods: it never fails, every value may be written, and no level protects less than those below."""

from __future__ import annotations

import json
import math
from collections import defaultdict

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.reconcile import DesiredState, wanted_values
from koordebpf.state.pods.hook_pods import PodDirectory
from koordebpf.strategies.memory_qos.decide import WantedOfNode
from koordebpf.strategies.memory_qos.values import MemoryPod, MemoryQosMeasured, MemoryQosRules, MemoryQosView
from koordebpf.units import PAGE_BYTES
from tests.support.values.memory_qos import memory_pod_of, memory_qos

PERCENT = st.integers(0, 100)
FIELDS = st.fixed_dictionaries({}, optional={
    "enable": st.booleans(), "minLimitPercent": PERCENT, "lowLimitPercent": PERCENT, "throttlingPercent": PERCENT,
    "wmarkRatio": PERCENT, "wmarkScalePermill": st.integers(1, 1000), "wmarkMinAdj": st.integers(-25, 50),
    "priorityEnable": st.integers(0, 1), "priority": st.integers(0, 12), "oomKillGroup": st.integers(0, 1),
    "pageCacheLimitPercent": PERCENT, "pageCacheLimitSize": st.sampled_from(["1Gi", 0, "x", "9E", "10E", "1Mi"]),
    "pageCacheEnable": st.booleans(), "pageCacheLimitEnable": st.integers(0, 1),
    "pageCacheLimitSync": st.integers(0, 1), "pageCacheReclaimSync": st.booleans(),
})  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
OWN = st.none() | FIELDS | JSON.map(json.dumps) | st.text(max_size=30) | st.builds(
    lambda fields, policy: {**fields, "policy": policy}, FIELDS, st.sampled_from(["none", "auto", "default", "", "x"])
)  # fmt: skip
QUANTITY = st.sampled_from(["1Gi", "100Mi", "1", "x", "-1", "1e30", "0", 12345, "7E", 0.5])
RESOURCES = st.fixed_dictionaries({}, optional={
    part: st.dictionaries(st.sampled_from(["memory", "kubernetes.io/batch-memory"]), QUANTITY, max_size=2)
    for part in ("requests", "limits")
})  # fmt: skip
CONTAINERS = st.dictionaries(st.sampled_from(["a", "b"]), RESOURCES, max_size=2)
PODS = st.lists(
    st.builds(
        memory_pod_of, st.sampled_from(["BE", "LS", "LSR", "LSE", "SYSTEM", ""]), CONTAINERS, OWN,
        init=st.dictionaries(st.sampled_from(["i", "j"]), RESOURCES, max_size=2),
        sidecars=st.dictionaries(st.sampled_from(["s"]), RESOURCES, max_size=1),
        kube_qos=st.sampled_from(["Guaranteed", "Burstable", "BestEffort"]),
        uid=st.sampled_from([f"uid-{number}" for number in range(20)]),
    ),
    max_size=4, unique_by=lambda pod: pod.uid,
)  # fmt: skip
MEMORY = sorted(each for each in CgroupFile if each.controller == "memory")
RULES = st.builds(
    MemoryQosRules,
    qos=st.none() | st.builds(memory_qos, lsr=FIELDS, ls=FIELDS, be=FIELDS, system=FIELDS),
    files=st.frozensets(st.sampled_from(MEMORY)) | st.just(frozenset(MEMORY)),
    allocatable_bytes=st.none() | st.integers(0, 1 << 45),
    soft_limits=st.booleans(),
    most_priority=st.integers(0, 12),
    weaker_annotations=st.sampled_from([False, False, True]),
)
_ABOVE = {"Guaranteed": "kubepods", "Burstable": "kubepods/burstable", "BestEffort": "kubepods/besteffort"}


def view_of(pods: list[MemoryPod]) -> MemoryQosView:
    directories = []
    for pod in pods:
        path = f"{_ABOVE[pod.kube_qos]}/pod{pod.uid}"
        directories.append(
            PodDirectory(pod.uid, path, {each.id: f"{path}/{each.name}" for each in pod.containers if each.id})
        )
    return MemoryQosView(MemoryQosMeasured(tuple(directories), _ABOVE), tuple(pods))


GIB = {"requests": {"memory": "1Gi"}}
_GIB_OF_BATCH = {"requests": {"kubernetes.io/batch-memory": "1Gi"}}
_ALL_OF_BATCH = {"limits": {"kubernetes.io/batch-memory": "7E"}}


@given(PODS, RULES)
@example(
    [memory_pod_of("LS", {"a": GIB}, init={"i": GIB}, kube_qos="Guaranteed", uid="uid-1")],
    MemoryQosRules(qos=memory_qos(ls={"minLimitPercent": 1}), files=frozenset(MEMORY)),
)
@example(
    [memory_pod_of("BE", {"a": _GIB_OF_BATCH, "b": _ALL_OF_BATCH}, kube_qos="Guaranteed", uid="uid-1")],
    MemoryQosRules(qos=memory_qos(be={"minLimitPercent": 1}), files=frozenset(MEMORY)),
)
def test_every_value_may_be_written_and_no_level_protects_less_than_those_below(pods, rules):
    view = view_of(pods)
    writes, problems = WantedOfNode().of(view, rules)
    wanted = wanted_values(DesiredState("a test", writes))  # ConfigError: a value that its file cannot hold
    assert all(len(each) < 600 for each in problems)
    ends_early = {  # init containers run one after the other, and before the others
        f"{directory.path}/{container.name}"
        for pod, directory in zip(pods, view.measured.pods, strict=True)
        for container in pod.containers
        if container.name in ("i", "j")
    }
    for file in (CgroupFile.MEMORY_MIN, CgroupFile.MEMORY_LOW):
        below: dict[str, int] = defaultdict(int)
        for (path, each), value in wanted.items():
            if each is file and path not in ends_early:
                below[path.rpartition("/")[0]] += value or 0
        below.pop("", None)
        for path, value in below.items():
            assert wanted[path, file] >= value, (path, file)
    # What throttles is never less than what is protected from it.
    for (path, each), value in wanted.items():
        if each is CgroupFile.MEMORY_HIGH and value is not None:
            assert value >= (wanted.get((path, CgroupFile.MEMORY_MIN)) or 0)


@given(PODS, RULES, OWN)
def test_an_annotation_changes_no_other_pod(pods, rules, own):
    before, _ = WantedOfNode().of(view_of(pods), rules)
    stranger = memory_pod_of("LS", {"a": {"requests": {"memory": "1Gi"}}}, own, uid="uid-stranger")
    after, _ = WantedOfNode().of(view_of([*pods, stranger]), rules)

    def of_pods(writes):
        others = (each for each in writes if "/pod" in each.path and "stranger" not in each.path)
        return {(each.path, each.file): each.value for each in others}

    assert of_pods(after) == of_pods(before)


_NOT_WRITTEN = {
    **dict.fromkeys(("high", "ratio", "cache"), (math.inf,)),
    **dict.fromkeys(("scale", "adj", "group", "sync"), (0,)),
}


# What limits a pod for the others' sake, larger values first; a file that is not written holds what the kernel gives.
def limits_of(pod: MemoryPod, rules: MemoryQosRules) -> dict[tuple[str, str], tuple[float, ...]]:
    writes, _ = WantedOfNode().of(view_of([pod]), rules)
    values = {(each.path, each.file): each.value for each in writes}
    paths = {path for path, _ in values if "/pod" in path}
    found: dict[tuple[str, str], tuple[float, ...]] = {}
    for path in paths:
        high = values.get((path, CgroupFile.MEMORY_HIGH))
        page_cache = [values.get((path, CgroupFile(f"memory.pagecache_limit.{name}"))) for name in ("size", "sync")]
        is_on = values.get((path, CgroupFile.MEMORY_PAGECACHE_ENABLE))
        found |= {
            (path, "high"): (math.inf if high is None else high // PAGE_BYTES,),
            (path, "ratio"): (values.get((path, CgroupFile.MEMORY_WMARK_RATIO)) or math.inf,),
            (path, "scale"): (-(values.get((path, CgroupFile.MEMORY_WMARK_SCALE)) or 0),),
            (path, "adj"): (-(values.get((path, CgroupFile.MEMORY_WMARK_MIN_ADJ)) or 0),),
            (path, "group"): (-(values.get((path, CgroupFile.MEMORY_OOM_GROUP)) or 0),),
            (path, "cache"): (page_cache[0] if is_on and page_cache[0] else math.inf,),
            (path, "sync"): (-(page_cache[1] or 0) if is_on else 0,),
        }
    return found


@given(PODS, RULES)
def test_no_annotation_lifts_a_limit_of_its_class(pods, rules):
    rules = replace(rules, weaker_annotations=False, soft_limits=False)
    for pod in pods:
        own, of_class = limits_of(pod, rules), limits_of(replace(pod, own=None), rules)
        for place, limit in of_class.items():
            assert own.get(place, _NOT_WRITTEN[place[1]]) <= limit, place
