from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from koordebpf.kube.cache.objects import Pod
from koordebpf.policy.decide_tick import decided_again
from koordebpf.store.recorder.annotations import bounded
from koordebpf.store.recorder.rounds import RoundEncoder
from tests.support.values.builders import pod
from tests.support.values.rounds import tick_at


def with_annotations(**annotations: Any) -> Pod:
    made = pod("a").pod
    return replace(made, metadata=replace(made.metadata, annotations=annotations))


def kept(annotations: dict[str, str]) -> set[str]:
    (found,) = bounded((with_annotations(**annotations),))
    return set(found.metadata.annotations or {})


def test_pods_with_few_annotations_are_the_same_pods() -> None:
    pods = (pod("a").pod, with_annotations(**{"koordinator.sh/eviction-policy": "[]", "example.com/x": "y" * 256}))
    assert all(one is other for one, other in zip(bounded(pods), pods, strict=True))


@pytest.mark.parametrize(
    ("key", "length", "is_kept"),
    [
        ("example.com/x", 257, False),
        ("plain", 257, False),
        ("koordinator.sh/x", 4096, True),
        ("scheduling.koordinator.sh/resource-status", 4096, True),
        ("kubectl.kubernetes.io/last-applied-configuration", 4097, False),
        ("notkoordinator.sh.example.com/x", 300, False),
    ],
)
def test_a_long_value_is_left_out(key: str, length: int, is_kept: bool) -> None:
    assert kept({key: "x" * length, "koordinator.sh/y": ""}) == {"koordinator.sh/y"} | ({key} if is_kept else set())


def test_of_many_the_longest_are_left_out() -> None:
    many = {f"koordinator.sh/{number}": "x" * (1000 + number) for number in range(60)}
    found = kept(many | {"koordinator.sh/eviction-policy": "[]"})
    assert "koordinator.sh/eviction-policy" in found
    assert 10 < len(found) < 20
    assert sum(len(key) + len(many.get(key, "")) for key in found) <= 16 << 10


def test_a_tenants_long_annotation_changes_no_record_of_others() -> None:
    encoder, tick = RoundEncoder(), tick_at(1, used_mib=900)
    noisy = with_annotations(**{"example.com/noise": "x" * 200_000})
    tick = replace(tick, frame=replace(tick.frame, pods=(*tick.frame.pods, noisy)))
    made = encoder.encode(tick, decided_again(tick), 1)
    assert len(made.objects_raw) < 20_000
    # The objects stay what they are as long as the pods are: they are looked at once.
    assert encoder.encode(tick, decided_again(tick), 2).objects is made.objects
