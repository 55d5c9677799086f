"""Sandboxes' cgroups outside of pods, as Kata and CRI-O make them: whose they are, and whose not."""

from __future__ import annotations

import pytest

from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.owner import OwnerKind
from koordebpf.attribution.paths import place_of_path
from koordebpf.events.records import CgroupMkdir, CgroupRename, CgroupRmdir
from koordebpf.kube.cache.objects import ObjectMeta, Pod

ID, OTHER = "8564224395a4fbf7f2792baa22ee16dfc8f8e862e20342d3b2bcc211a3939af6", "f" * 64
POD, TWO, OUTSIDE = 20, 30, 40
OUTSIDE_PATHS = [
    "kata_overhead/{}", "kata_overhead.slice/kata-{}.scope", "kata-{}.scope", "kata_{}", "crio-{}.scope",
    "cri-containerd-{}.scope", "system.slice/kata-{}.scope",
]  # fmt: skip
IN_POD = ["kata_{}", "kata-{}.scope", "crio-{}.scope", "cri-containerd-{}.scope", "{}"]


def index_of(outside: str, *in_pods: tuple[int, str]) -> CgroupIndex:
    """Return one with two pods, `outside` and what is right below the pods."""
    index = CgroupIndex()
    rows = [(1, 0, ""), (10, 1, "kubepods"), (POD, 10, "kubepods/poda"), (TWO, 10, "kubepods/podb")]
    *above, name = outside.split("/")
    rows += [(39, 1, above[0])] if above else []
    rows.append((OUTSIDE, 39 if above else 1, "/".join((*above, name))))
    paths = {POD: "kubepods/poda", TWO: "kubepods/podb"}
    rows += [(50 + at, pod, f"{paths[pod]}/{name}") for at, (pod, name) in enumerate(in_pods)]
    index.replace_all(rows)
    index.set_pods([Pod(ObjectMeta(uid, "team", uid)) for uid in "ab"])
    return index


@pytest.mark.parametrize("outside", OUTSIDE_PATHS)
@pytest.mark.parametrize("in_pod", IN_POD)
def test_it_is_the_pods_that_has_the_same_id_below_its_own_cgroup(outside: str, in_pod: str) -> None:
    index = index_of(outside.format(ID), (POD, in_pod.format(ID)), (TWO, in_pod.format(OTHER)))
    assert index.sandboxes() == {OUTSIDE: POD}
    assert set(index.subtree_roots()) == {10, OUTSIDE}
    # Its tasks are the system's for everything else.
    owner = index.owner(OUTSIDE)
    assert owner is not None
    assert (owner.kind, index.subtree_pod(OUTSIDE)) == (OwnerKind.SYSTEM, None)


@pytest.mark.parametrize(
    "outside",
    ["{}", "docker-{}.scope", "crio-conmon-{}.scope", "kata_overhead/x", "kata_overhead/{}0", "x/kata_{}",
     "user.slice/kata-{}.scope", "kubepods/kata_{}", "kata_overhead/a/{}"],
)  # fmt: skip
def test_other_names_and_places_are_no_sandboxes(outside: str) -> None:
    assert place_of_path(outside.format(ID)).sandbox_id is None


def test_an_id_that_two_pods_bear_is_no_pods() -> None:
    index = index_of(f"kata_overhead/{ID}", (POD, f"kata_{ID}"), (TWO, ID))
    assert index.sandboxes() == {}
    assert set(index.subtree_roots()) == {10}
    index.died(CgroupRmdir(0, 51, TWO, 3, "", False))
    assert index.sandboxes() == {OUTSIDE: POD}


def test_an_id_that_is_deeper_in_a_pod_is_not_the_pods() -> None:
    index = index_of(f"kata_overhead/{ID}", (POD, OTHER))
    index.born(CgroupMkdir(0, 60, 50, 4, f"kata_{ID}", False))
    assert index.sandboxes() == {}


def test_it_follows_what_is_made_and_removed() -> None:
    index = index_of("kata_overhead/x", (POD, f"kata_{ID}"))
    assert index.sandboxes() == {}
    index.born(CgroupMkdir(0, 41, 39, 2, ID, False))
    assert index.sandboxes() == {41: POD}
    index.renamed(CgroupRename(0, 50, POD, 3, f"kata_{OTHER}", False))
    assert index.sandboxes() == {}
    index.renamed(CgroupRename(0, 50, POD, 3, f"kata_{ID}", False))
    assert index.sandboxes() == {41: POD}
    index.died(CgroupRmdir(0, 41, 39, 2, "", False))
    assert index.sandboxes() == {}
    index.born(CgroupMkdir(0, 42, 39, 2, ID, False))
    index.died(CgroupRmdir(0, POD, 10, 2, "", False))
    assert index.sandboxes() == {}


def test_it_is_a_strays_as_well() -> None:
    index = index_of(f"crio-{ID}.scope", (POD, f"crio-{ID}.scope"))
    index.set_pods([])
    assert index.sandboxes() == {OUTSIDE: POD}
