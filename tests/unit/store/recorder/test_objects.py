"""What is recorded of pods and PodDisruptionBudgets, and how much a tenant gets."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from koordebpf.kube.cache.objects import ObjectMeta, Pod, PodDisruptionBudget, PodDisruptionBudgetSpec
from koordebpf.policy.decide_tick import decided_again
from koordebpf.policy.pod_keys import ANNOTATIONS
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
    assert len(whole) == 16
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
    objects, kept = RecordedObjects(), set()
    for second in range(200):
        (found,) = objects.pdbs((pdb({f"key-{second}": "x" * 8000}, allowed=second),), second * NS_PER_S)
        assert found.status.disruptionsAllowed == second
        kept.add(str(found.spec.selector))
    assert 5 < len(kept) < 12
    small, large = pdb({"app": "web"}, name="b"), pdb({"app": "x" * 8000}, name="c")
    assert objects.pdbs((small, large), 200 * NS_PER_S) == (small,)
    assert objects.pdbs((small, large), 10_000 * NS_PER_S) == (small, large)


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
