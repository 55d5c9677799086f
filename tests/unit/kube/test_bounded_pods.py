"""Whatever a tenant writes into its pods: they are known, in bounded memory, with what decisions read by name."""

from __future__ import annotations

import itertools
import json
import string
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from koordebpf.kube.cache.bounded_pods import MAX_POD, BoundedPods
from koordebpf.kube.cache.objects import Pod
from koordebpf.kube.cache.store import Table, decode_pod
from koordebpf.units import KIB, MIB

LARGE = 1_400_000  # bytes: etcd takes 1.5 MiB
QOS, BURST = "koordinator.sh/qosClass", "koordinator.sh/cpuBurst"
KEYS = frozenset({QOS, BURST})


def pod(name: str = "p", version: int = 1, **meta: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "be", "uid": f"uid-{name}", "resourceVersion": str(version), **meta},
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "qosClass": "BestEffort"},
    }


def raw(each: dict[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(each, separators=(",", ":"), ensure_ascii=False).encode())


def short_keys(count: int) -> list[str]:
    letters = itertools.product(string.ascii_lowercase, repeat=4)
    return ["".join(each) for each in itertools.islice(letters, count)]


def of_spec(name: str, **spec: Any) -> dict[str, Any]:
    made = pod(name)
    made["spec"] |= spec
    return made


def of_status(name: str, **status: Any) -> dict[str, Any]:
    made = pod(name)
    made["status"] |= status
    return made


AMOUNTS = {"requests": {"cpu": "1"}, "limits": {"memory": "1"}}
FLOODS: dict[str, Callable[[str], dict[str, Any]]] = {
    "labels": lambda name: pod(name, labels={QOS: "BE", **dict.fromkeys(short_keys(110_000), "")}),
    "long labels": lambda name: pod(name, labels={QOS: "BE", **{f"l{at}": "x" * 63 for at in range(18_000)}}),
    "annotations": lambda name: pod(name, annotations={BURST: "{}", **dict.fromkeys(short_keys(80_000), "")}),
    "wide text": lambda name: pod(name, annotations={f"a{at}": "\U0001f600" + "x" * 60_000 for at in range(4)}),
    "owners": lambda name: pod(
        name, ownerReferences=[{"kind": "a", "name": "b", "uid": f"{at}"} for at in range(36_000)]
    ),
    "an owner": lambda name: pod(name, ownerReferences=[{"kind": "a", "name": "b" * LARGE, "uid": "c"}]),
    "containers": lambda name: of_spec(
        name, containers=[{"name": f"c{at}", "resources": AMOUNTS} for at in range(14_000)]
    ),
    "resources": lambda name: of_spec(
        name, initContainers=[{"name": "c", "resources": {"limits": {f"a/{at}": "1" for at in range(100_000)}}}]
    ),
    "resources of the pod": lambda name: of_spec(
        name, resources={"requests": {f"hugepages-{at}": "1" for at in range(60_000)}}
    ),
    "volumes": lambda name: of_spec(name, volumes=[{"name": f"v{at}", "emptyDir": {}} for at in range(40_000)]),
    "a path": lambda name: of_spec(name, volumes=[{"name": "v", "hostPath": {"path": "/" * LARGE}}]),
    "conditions": lambda name: of_status(
        name,
        conditions=[
            *({"type": f"gate.io/{at}", "status": "True"} for at in range(30_000)),
            {"type": "Ready", "status": "True"},
        ],
    ),
    "statuses": lambda name: of_status(name, containerStatuses=[{"name": f"c{at}"} for at in range(60_000)]),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
def test_no_pod_keeps_more_than_its_bound_and_none_is_lost(flood: Callable[[str], dict[str, Any]]) -> None:
    pods, given = BoundedPods(KEYS), [raw(flood(f"p{at}")) for at in range(3)]
    table = pods.table()
    tracemalloc.start()
    try:
        table.replace_read([table.read(each) for each in given], "1")
        kept = tracemalloc.get_traced_memory()[0] / len(given)
    finally:
        tracemalloc.stop()
    assert kept < MAX_POD + 16 * KIB  # of its place in the table
    assert [each.key for each in table.objects] == ["be/p0", "be/p1", "be/p2"]
    for each, said in zip(table.objects, table.problems.values(), strict=True):
        assert said == f"pods: {each.key} has more than 192 KiB: {each.notKept} are not kept"
        assert (each.spec.nodeName, each.status.phase) == ("n1", "Running")


def test_that_is_a_tenth_of_an_agents_memory_for_110_of_them() -> None:
    assert 110 * MAX_POD < 256 * MIB / 10


def the(flood: str) -> Pod:
    pods = BoundedPods(KEYS)
    (found,) = pods_of(pods.table(), FLOODS[flood]("p"))
    return found


def pods_of(table: Table[Pod], *given: dict[str, Any]) -> tuple[Pod, ...]:
    table.replace([raw(each) for each in given], "1")
    return table.objects


def test_what_decisions_read_by_name_is_kept_before_others() -> None:
    for flood in ("labels", "long labels"):
        assert (the(flood).metadata.labels or {})[QOS] == "BE"
    assert (the("annotations").metadata.annotations or {})[BURST] == "{}"
    # AND a large one of these hides no other
    (found,) = pods_of(
        BoundedPods(KEYS).table(), pod(labels={QOS: "BE"}, annotations={BURST: "x" * 250_000, QOS: "shared"})
    )
    assert found.metadata.annotations == {QOS: "shared"}
    assert found.metadata.labels == {QOS: "BE"}
    assert found.notKept == "1 of 2 annotations"


def test_what_it_asks_for_and_has_is_kept_beside_any_text_and_its_controller() -> None:
    owners = [{"kind": "a", "name": "b", "uid": f"{at}"} for at in range(36_000)]
    owners.append({"kind": "Job", "name": "j", "uid": "u", "controller": True})
    made = pod(ownerReferences=owners, labels=dict.fromkeys(short_keys(30_000), ""))
    made["spec"]["containers"] = [{"name": "c", "resources": AMOUNTS}]
    (found,) = pods_of(BoundedPods(KEYS).table(), made)
    assert found.spec.containers[0].resources == msgspec.convert(AMOUNTS, type(found.spec.containers[0].resources))
    assert found.metadata.ownerReferences and found.metadata.ownerReferences[0].name == "j"


def test_of_conditions_kubelets_own_are_kept_first() -> None:
    assert next(each.type for each in the("conditions").status.conditions or ()) == "Ready"


@pytest.mark.parametrize("managed", [100, 5_000, 200_000])
def test_usual_pods_are_as_they_were_read(managed: int) -> None:
    made = pod(
        labels={f"app.kubernetes.io/{at}": "x" * 40 for at in range(12)},
        annotations={"kubectl.kubernetes.io/last-applied-configuration": "y" * 60_000},
        managedFields=["z" * managed],
    )
    table = BoundedPods(KEYS).table()
    assert pods_of(table, made) == (decode_pod(raw(made)),)
    assert table.problems == {}


def test_a_watch_has_the_same_bound_and_a_pod_that_shrinks_is_whole_again() -> None:
    pods = BoundedPods(KEYS)
    table = pods.table()
    pods_of(table, pod())
    for made, is_cut in ((FLOODS["labels"]("p"), True), (pod("p", labels={QOS: "LS"}), False)):
        made["metadata"]["resourceVersion"] = str(int(table.version) + 1)
        event = pods.event(json.dumps({"type": "MODIFIED", "object": made}).encode())
        assert event is not None
        assert table.apply_decoded(*event)
        assert [bool(each.notKept) for each in table.objects] == [is_cut]
        assert bool(table.problems) == is_cut
    assert table.objects[0].metadata.labels == {QOS: "LS"}
    assert pods.event(b'{"type":"BOOKMARK","object":{}}') is None
