"""What is recorded of pods and PodDisruptionBudgets, and how much a tenant gets."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from koordebpf.decision.decide_tick import decided_again
from koordebpf.decision.frames import ANNOTATIONS
from koordebpf.kube.cache.objects import (
    Container,
    ContainerStatus,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodCondition,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    ResourceRequirements,
    Volume,
)
from koordebpf.store.recorder.objects import RecordedObjects
from koordebpf.store.recorder.ring import RingFolder, Run
from koordebpf.store.recorder.rounds import RoundEncoder
from koordebpf.store.recorder.values import Pace
from koordebpf.units import KIB, MIB, NS_PER_S
from tests.support.values.builders import pod
from tests.support.values.rounds import tick_at, wall_ns

KEYS = frozenset({"koordinator.sh/eviction-policy", "koordinator.sh/cpuBurst"})
POLICY, BURST = sorted(KEYS, reverse=True)
RUN = Run("0123abcd", "node-1")


def with_text(
    name: str = "a",
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    namespace: str = "tenant",
) -> Pod:
    made = pod(name, namespace=namespace).pod
    return replace(made, metadata=replace(made.metadata, annotations=annotations, labels=labels))


def recorded(objects: RecordedObjects, *pods: Pod, second: float = 0) -> tuple[Pod, ...]:
    return objects.pods(pods, KEYS, int(second * NS_PER_S))


def test_pods_with_what_decisions_read_are_the_same_pods() -> None:
    pods = (pod("a").pod, with_text("b", {POLICY: "[]"}, {"team": "x", "koordinator.sh/qosClass": "BE"}))
    assert all(one is other for one, other in zip(recorded(RecordedObjects(), *pods), pods, strict=True))


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        (POLICY, "x" * 4096, "x" * 4096),
        (POLICY, "x" * 4097, "sha256:8bf26a54a1ec2ba1 of 4097 characters"),
        ("kubectl.kubernetes.io/last-applied-configuration", "{}", None),
        ("vault/token", "s.TOKEN", None),
        ("x.koordinator.sh/a", "x", None),
        ("plain", "x", None),
    ],
)
def test_of_annotations_those_are_recorded_that_decisions_read(key: str, value: str, kept: str | None) -> None:
    (found,) = recorded(RecordedObjects(), with_text(annotations={key: value, BURST: "{}"}))
    annotations = found.metadata.annotations
    assert annotations is not None and annotations.pop(BURST) == "{}"
    shown = annotations.get(key)
    if kept is not None and kept.startswith("sha256:"):
        assert shown is not None and shown.startswith("sha256:") and shown.endswith(kept.partition(" ")[2])
    else:
        assert shown == kept


def test_a_pod_has_16_kib_of_annotations_and_of_labels() -> None:
    keys = frozenset(f"koordinator.sh/{number}" for number in range(60))
    many = with_text(annotations=dict.fromkeys(keys, "x" * 1000), labels={f"l{at}": "x" * 60 for at in range(500)})
    labels = {**(many.metadata.labels or {}), "koordinator.sh/qosClass": "BE"}
    many = replace(many, metadata=replace(many.metadata, labels=labels))
    (found,) = RecordedObjects().pods((many,), keys, 0)
    annotations = found.metadata.annotations or {}
    assert annotations.keys() == keys
    assert 10 < sum(len(value) == 1000 for value in annotations.values()) < 17
    kept = found.metadata.labels or {}
    assert 200 < len(kept) < 300 and kept["koordinator.sh/qosClass"] == "BE"


def test_a_namespace_has_128_kib_at_once_and_the_others_have_theirs() -> None:
    large = [with_text(f"t{at}", {POLICY: "x" * 4000, BURST: "y" * 4000}, {"app": "x"}) for at in range(100)]
    other = with_text("web", {POLICY: "x" * 4000}, namespace="other")
    found = recorded(RecordedObjects(), *large, other)
    whole = [each for each in found[:-1] if len((each.metadata.annotations or {})[POLICY]) == 4000]
    assert len(whole) == 20
    assert all((each.metadata.labels, len(each.metadata.annotations or {})) == ({"app": "x"}, 2) for each in found[:-1])
    assert found[-1] is other


def test_one_that_changes_all_the_time_is_recorded_as_it_was_until_there_is_enough_again() -> None:
    objects, seen = RecordedObjects(), []
    quiet = with_text("web", {POLICY: "quiet"}, namespace="other")
    for second in range(2000):
        changing = with_text("t", {POLICY: f"{second:04}" * 1000})
        found = recorded(objects, changing, quiet, second=second)
        seen.append((found[0].metadata.annotations or {})[POLICY][:4])
        assert found[1] is quiet
    changes = sum(one != other for one, other in itertools.pairwise(seen))
    assert 10 + 20 <= changes <= 10 + 22  # 64 KiB at once and 64 bytes a second, in parts of 6 KiB
    quiet = replace(quiet, metadata=replace(quiet.metadata, annotations={POLICY: "another"}))
    assert recorded(objects, changing, quiet, second=2000)[1] is quiet
    # What it says last is recorded in the end, though nothing changes any more.
    pods = (changing, quiet)
    assert objects.pods(pods, KEYS, 2001 * NS_PER_S)[0] is not changing
    found = objects.pods(pods, KEYS, 2200 * NS_PER_S)
    assert found[0] is changing
    assert objects.pods(pods, KEYS, 2201 * NS_PER_S) is found


def test_what_is_no_text_is_recorded_as_it_is_now() -> None:
    objects = RecordedObjects()
    recorded(objects, with_text("t", {POLICY: "0" * 4000}))
    for second in range(1, 30):
        recorded(objects, with_text("t", {POLICY: str(second % 10) * 4000}), second=1)
    leaving = with_text("t", {POLICY: "x" * 4000})
    leaving = replace(leaving, metadata=replace(leaving.metadata, deletionTimestamp="2027-01-15T08:00:00Z"))
    (found,) = recorded(objects, leaving, second=1)
    assert found.metadata.deletionTimestamp == "2027-01-15T08:00:00Z"
    assert (found.metadata.annotations or {})[POLICY] != "x" * 4000


def test_new_pods_of_a_namespace_without_anything_left_are_recorded_in_short() -> None:
    objects = RecordedObjects()
    recorded(objects, pod("other").pod)
    text = {POLICY: "x" * 4000, BURST: "{}"}
    labels = {"koordinator.sh/qosClass": "BE", **{f"label-{at}": "x" * 60 for at in range(50)}}
    pods = [with_text(f"t{at}", text, labels) for at in range(40)]
    found = recorded(objects, *pods, second=1)
    whole = [each for each in found if each.metadata.annotations == text]
    assert 5 < len(whole) < 15
    short = found[-1].metadata
    assert (short.annotations or {})[BURST] == "{}" and len((short.annotations or {})[POLICY]) < 64
    assert (short.labels or {})["koordinator.sh/qosClass"] == "BE" and 5 < len(short.labels or {}) < 20


def test_usual_pods_that_come_and_go_cost_their_namespace_nothing() -> None:
    objects = RecordedObjects()
    for second in range(2000):
        each = with_text(f"job-{second}", {POLICY: "[]"}, {"app": "spark", "koordinator.sh/qosClass": "BE"})
        assert recorded(objects, each, second=second) == (each,)
    changed = with_text("job-1999", {POLICY: "x" * 4000})
    assert recorded(objects, changed, second=2000) == (changed,)


def pdb(selector: dict[str, str], *, allowed: int = 0, name: str = "a") -> PodDisruptionBudget:
    meta = ObjectMeta(name=name, namespace="tenant", uid=f"uid-{name}")
    made = PodDisruptionBudget(meta, PodDisruptionBudgetSpec({"matchLabels": selector}))
    return replace(made, status=replace(made.status, disruptionsAllowed=allowed))


def test_of_budgets_that_change_all_the_time_the_status_is_recorded() -> None:
    objects, kept, allowed = RecordedObjects(), set(), []
    for second in range(200):
        (found,) = objects.pdbs((pdb({f"key-{second}": "x" * 8000}, allowed=second),), second * NS_PER_S)
        allowed.append(found.status.disruptionsAllowed)
        kept.add(str(found.spec.selector))
    assert 5 < len(kept) < 12
    assert allowed[:9] == list(range(9))  # eight changes at once
    assert len(set(allowed)) < 30
    small, large = pdb({"app": "web"}, name="b"), pdb({"app": "x" * 8000}, name="c")
    assert objects.pdbs((small, large), 200 * NS_PER_S) == (small,)
    assert objects.pdbs((small, large), 10_000 * NS_PER_S) == (small, large)


def test_a_status_is_recorded_eight_times_at_once_and_then_as_its_namespace_pays_for_it() -> None:
    objects, seen = RecordedObjects(), []
    for second in range(2000):
        (found,) = objects.pdbs((pdb({"app": "web"}, allowed=second),), second * NS_PER_S)
        seen.append(found.status.disruptionsAllowed)
    # 2 KiB each, of 64 KiB at once and 64 bytes a second, and one each five minutes
    assert 8 + 29 + 50 < len(set(seen)) < 8 + 35 + 75
    assert objects.pdbs((pdb({"app": "web"}, allowed=7),), 5000 * NS_PER_S)[0].status.disruptionsAllowed == 7


def changing(each: Pod, second: int, field: str) -> Pod:
    """Change what is no annotation and no label."""
    meta, spec, status = each.metadata, each.spec, each.status
    text = f"{second:06}" * 2000
    match field:
        case "owner":
            owners = [OwnerReference("Job", text, f"u{at}", at == 0) for at in range(30)]
            return replace(each, metadata=replace(meta, ownerReferences=owners))
        case "owners":
            owners = [OwnerReference("Job", f"j{second}", f"u{at}") for at in range(900)]
            return replace(each, metadata=replace(meta, ownerReferences=owners))
        case "generation":
            return replace(each, metadata=replace(meta, generation=second))
        case "requests":
            asked = ResourceRequirements(requests={"cpu": f"{second}m"})
            return replace(each, spec=replace(spec, containers=[Container("c", asked)]))
        case "volumes":
            return replace(each, spec=replace(spec, volumes=[Volume(name=text)]))
        case "gates":
            conditions = [PodCondition(f"a.io/{at}", "True", f"{second}") for at in range(200)]
            return replace(each, status=replace(status, conditions=conditions))
        case "readiness":
            conditions = [PodCondition("Ready", "True" if second % 2 else "False")]
            return replace(each, status=replace(status, conditions=conditions))
        case "containers":
            states = [ContainerStatus(f"c{at}", f"containerd://{second:064}{at}") for at in range(100)]
            return replace(each, status=replace(status, containerStatuses=states))
    raise ValueError(field)


FREE_FIELDS = ["owner", "owners", "generation", "requests", "volumes", "gates", "readiness", "containers"]


@pytest.mark.parametrize("field", FREE_FIELDS)
def test_whatever_a_tenant_changes_each_second_takes_from_its_budget(field: str) -> None:
    objects = RecordedObjects()
    quiet = with_text("web", {POLICY: "quiet"}, namespace="other")
    each, sizes, rounds = with_text("t"), [], 0
    found = recorded(objects, each, quiet)
    for second in range(1, 500):
        before, found = found, recorded(objects, changing(each, second, field), quiet, second=second)
        assert found[1] is quiet
        if found != before:
            rounds += 1
            sizes.append(len(msgspec.json.encode(found[0])))
    assert sum(sizes) + 2 * KIB * rounds <= 64 * KIB + 64 * 500 + (8 + 2) * 6 * KIB
    assert rounds <= (64 * KIB + 64 * 500) / (2 * KIB) + 8 + 2


def test_of_owners_and_conditions_those_are_recorded_that_decisions_read() -> None:
    owners = [OwnerReference("ReplicaSet", "other", "1"), OwnerReference("Node", "n1", "2")]
    owners.append(OwnerReference("Job", "x" * 300, "3", True))
    conditions = [PodCondition("Initialized", "True"), PodCondition("Ready", "True"), PodCondition("a.io/b", "True")]
    each = with_text()
    each = replace(each, metadata=replace(each.metadata, ownerReferences=owners))
    each = replace(each, status=replace(each.status, conditions=conditions))
    (found,) = recorded(RecordedObjects(), each)
    kept = [(owner.kind, owner.name[:7], owner.controller) for owner in found.metadata.ownerReferences or ()]
    assert kept == [("Job", "sha256:", True), ("Node", "n1", None)]
    assert found.status.conditions == [PodCondition("Ready", "True")]


def test_the_start_of_a_usual_pod_costs_its_namespace_nothing() -> None:
    objects = RecordedObjects()
    recorded(objects, pod("other").pod)
    spend(objects)
    for number in range(20):
        each = with_text(f"job-{number}")
        for step in range(6):
            states = [ContainerStatus("c", f"containerd://{step:064}")]
            each = replace(each, status=replace(each.status, phase="Running", containerStatuses=states))
            assert recorded(objects, each, second=1 + number) == (each,)


def spend(objects: RecordedObjects) -> None:
    """Use up what the namespace may change at once."""
    for step in range(20):
        recorded(objects, with_text("spending", {POLICY: f"{step:04}" * 1000}), second=0)


def test_of_a_flood_of_changes_that_a_pod_ends_is_recorded_and_its_status_at_times() -> None:
    objects = RecordedObjects()
    recorded(objects, with_text("t", {POLICY: "first"}))
    spend(objects)
    leaving = with_text("t", {POLICY: "x" * 4000})
    states = [ContainerStatus("c", "containerd://1")]
    leaving = replace(
        leaving,
        metadata=replace(leaving.metadata, deletionTimestamp="2027-01-15T08:00:00Z", deletionGracePeriodSeconds=30),
        status=replace(leaving.status, phase="Failed", containerStatuses=states),
    )
    found = objects.pods((with_text("t", {POLICY: "first"}), with_text("spending")), KEYS, 0)
    (found, *_) = objects.pods((leaving, with_text("spending")), KEYS, 1)
    assert (found.status.phase, found.metadata.deletionGracePeriodSeconds) == ("Failed", 30)
    # THEN a shorter grace period each second is no change that is recorded
    for second in range(2, 40):
        shorter = replace(leaving, metadata=replace(leaving.metadata, deletionGracePeriodSeconds=40 - second))
        (found, *_) = objects.pods((shorter, with_text("spending")), KEYS, second)
    assert found.metadata.deletionGracePeriodSeconds == 30


def test_a_new_pod_with_many_containers_is_recorded_with_the_first_ones_and_says_so() -> None:
    objects = RecordedObjects()
    recorded(objects, pod("other").pod)
    spend(objects)
    containers = [Container(f"c{at}", ResourceRequirements(requests={"cpu": "1"})) for at in range(300)]
    each = with_text("t")
    each = replace(each, spec=replace(each.spec, containers=containers))
    (found,) = recorded(objects, each, second=0)
    assert [one.name for one in found.spec.containers] == [f"c{at}" for at in range(16)]
    assert found.notKept == "of each list all but 16"


def test_under_settings_that_read_others_all_is_recorded_again() -> None:
    objects, pods = RecordedObjects(), (with_text("t", {"team/skip": "x", POLICY: "[]"}),)
    assert objects.pods(pods, KEYS, 0)[0].metadata.annotations == {POLICY: "[]"}
    assert objects.pods(pods, KEYS | {"team/skip"}, 1) == pods


@pytest.mark.parametrize("is_read", [False, True])
def test_30_pods_of_a_tenant_that_change_16_kib_each_second_leave_an_hour_to_the_others(
    tmp_path: Path, is_read: bool
) -> None:
    chance, encoder = random.Random(7), RoundEncoder()
    keys = sorted(ANNOTATIONS)[:4] if is_read else [f"x{at}.koordinator.sh/a" for at in range(4)]
    tick, changing = tick_at(0, pods=20), [pod(f"t{at}", namespace="tenant").pod for at in range(30)]
    decision, seconds = decided_again(tick), 200
    with RingFolder(tmp_path, RUN, 64 * MIB) as ring:
        for second in range(seconds):
            text = [{key: chance.randbytes(2000).hex() for key in keys} for _ in changing]
            pods = [
                replace(each, metadata=replace(each.metadata, annotations=its))
                for each, its in zip(changing, text, strict=True)
            ]
            now = tick_at(second, pods=20, seed=second)
            now = replace(now, frame=replace(now.frame, pods=(*now.frame.pods, *pods)))
            ring.add(Pace.SECONDS, encoder.encode(now, decision, wall_ns(second)), b"", [])
        assert ring.reach_s(wall_ns(seconds)) == {Pace.SECONDS: seconds}
        # Of the 12 MiB that an hour has.
        first = 128 * KIB
        assert (ring.bytes_on_disk - first) * 3600 / seconds < 8 * MIB
