"""The index: mkdir in any order, rmdir, renames, and the join with the pods."""

from __future__ import annotations

import pytest

from koordebpf.attribution.index import CgroupIndex, Rescan
from koordebpf.attribution.owner import OwnerKind
from koordebpf.attribution.tree_nodes import MAX_NESTED
from koordebpf.events.records import CgroupMkdir, CgroupRename, CgroupRmdir
from koordebpf.kube.cache.objects import ContainerStatus, ObjectMeta, OwnerReference, Pod, PodSpec, PodStatus

PAUSE, APP, SIDECAR = "0" * 64, "a" * 64, "b" * 64
ROOT, KUBEPODS, POD_ID, PAUSE_ID, APP_ID = 1, 10, 20, 21, 22
WALK = [
    (ROOT, 0, ""),
    (KUBEPODS, ROOT, "kubepods"),
    (POD_ID, KUBEPODS, "kubepods/podu-1"),
    (PAUSE_ID, POD_ID, f"kubepods/podu-1/{PAUSE}"),
    (APP_ID, POD_ID, f"kubepods/podu-1/{APP}"),
]


def mkdir(cgroup_id: int, parent_id: int, name: str, *, cut: bool = False) -> CgroupMkdir:
    return CgroupMkdir(0, cgroup_id, parent_id, 1, name, cut)


def rmdir(cgroup_id: int) -> CgroupRmdir:
    return CgroupRmdir(0, cgroup_id, 0, 1, "", False)


def rename(cgroup_id: int, name: str, *, cut: bool = False) -> CgroupRename:
    return CgroupRename(0, cgroup_id, 0, 1, name, cut)


def pod(
    uid: str = "u-1", *, containers: dict[str, str] | None = None, config_hash: str = "", phase: str = "Running"
) -> Pod:
    annotations, owner = None, None
    if config_hash:
        annotations = {"kubernetes.io/config.hash": config_hash, "kubernetes.io/config.mirror": config_hash}
        owner = [OwnerReference("Node", "n1")]
    statuses = [ContainerStatus(name, f"containerd://{each}") for each, name in (containers or {}).items()]
    meta = ObjectMeta(name=f"name-{uid}", namespace="default", uid=uid, annotations=annotations, ownerReferences=owner)
    return Pod(meta, spec=PodSpec(nodeName="n1"), status=PodStatus(phase=phase, containerStatuses=statuses))


def walked(pods: list[Pod] | None = None) -> CgroupIndex:
    index = CgroupIndex()
    index.replace_all(WALK)
    if pods is not None:
        index.set_pods(pods)
    return index


def kind(index: CgroupIndex, cgroup_id: int) -> OwnerKind | None:
    owner = index.owner(cgroup_id)
    return owner and owner.kind


def test_a_new_cgroup_is_owned_at_once() -> None:
    index = walked([pod(containers={APP: "app", SIDECAR: "sidecar"})])
    index.born(mkdir(23, POD_ID, SIDECAR))
    index.born(mkdir(24, 23, "init.scope"))
    owner = index.owner(23)
    assert owner is not None
    assert (owner.kind, owner.container_name, owner.pod_name) == (OwnerKind.CONTAINER, "sidecar", "name-u-1")
    assert owner.path == f"kubepods/podu-1/{SIDECAR}"
    assert kind(index, 24) is OwnerKind.NESTED
    assert index.subtree_pod(24) == "u-1"


def test_a_cgroup_before_its_parent_waits() -> None:
    index = walked()
    index.born(mkdir(32, 31, APP))
    index.born(mkdir(31, 30, "podu-2"))
    assert (index.orphans, index.owner(32), index.subtree_pod(32), index.pod_cgroup("u-2")) == (1, None, None, None)
    index.born(mkdir(30, KUBEPODS, "besteffort"))
    owner = index.owner(32)
    assert owner is not None and (owner.pod_uid, owner.kube_qos) == ("u-2", "BestEffort")
    assert (index.orphans, index.pod_cgroup("u-2")) == (0, 31)


def test_an_orphan_may_die() -> None:
    index = walked()
    index.born(mkdir(32, 31, APP))
    index.died(rmdir(32))
    assert (index.orphans, len(index)) == (0, len(WALK))
    index.born(mkdir(31, KUBEPODS, "podu-2"))
    assert 32 not in index


def test_a_death_takes_the_owner_and_the_pod_with_it() -> None:
    index = walked([pod()])
    assert kind(index, APP_ID) is OwnerKind.CONTAINER
    for cgroup_id in (APP_ID, PAUSE_ID, POD_ID):
        index.died(rmdir(cgroup_id))
        assert index.owner(cgroup_id) is None and index.subtree_pod(cgroup_id) is None
    assert index.pod_cgroups() == {}
    index.died(rmdir(POD_ID))  # twice changes nothing
    assert len(index) == 2


def test_an_id_that_is_born_again_is_another_cgroup() -> None:
    index = walked()
    index.born(mkdir(POD_ID, ROOT, "system.slice"))
    assert kind(index, POD_ID) is OwnerKind.SYSTEM
    assert index.owner(APP_ID) is None
    assert (index.pod_cgroup("u-1"), index.subtree_pod(POD_ID)) == (None, None)


def test_a_rename_is_judged_with_all_below_it() -> None:
    index = walked()
    index.renamed(rename(POD_ID, "podu-9"))
    owner = index.owner(APP_ID)
    assert owner is not None and owner.pod_uid == "u-9" and owner.path == f"kubepods/podu-9/{APP}"
    assert (index.pod_cgroup("u-1"), index.pod_cgroup("u-9"), index.subtree_pod(APP_ID)) == (None, POD_ID, "u-9")


def test_a_rename_out_of_kubernetes() -> None:
    index = walked()
    index.renamed(rename(KUBEPODS, "other"))
    assert (kind(index, APP_ID), index.subtree_pod(APP_ID), index.cgroups_without_pod()) == (OwnerKind.SYSTEM, None, ())


def test_a_cut_name_is_pending_until_it_is_read() -> None:
    index = walked()
    index.born(mkdir(40, KUBEPODS, "podlong", cut=True))
    index.born(mkdir(41, 40, APP))
    assert index.pending_names() == (40,)
    assert index.add(40, KUBEPODS, "podlong-and-more")
    assert (index.pending_names(), index.subtree_pod(41)) == ((), "long-and-more")


def test_a_new_cgroup_without_a_parent_is_pending_until_the_walk() -> None:
    index = walked()
    index.born(mkdir(40, 0, "podu-4"))
    assert (index.pending_names(), index.owner(40)) == ((40,), None)
    assert index.replace_all([*WALK, (40, KUBEPODS, "kubepods/podu-4")]) == Rescan((40,), ())
    assert (index.pending_names(), index.pod_cgroup("u-4")) == ((), 40)


def test_a_walk_repairs_what_lost_records_left() -> None:
    index = walked()
    index.born(mkdir(50, KUBEPODS, "podgone"))
    index.died(rmdir(APP_ID))
    index.renamed(rename(PAUSE_ID, "x"))
    rescan = index.replace_all(WALK)
    assert (set(rescan.missing), rescan.extra) == ({APP_ID, PAUSE_ID}, (50,))
    assert index.replace_all(WALK) == Rescan((), ())
    assert len(index) == len(WALK)


def test_more_cgroups_than_the_cap_are_counted_and_refused() -> None:
    index = CgroupIndex(max_cgroups=len(WALK))
    index.replace_all(WALK)
    index.born(mkdir(60, POD_ID, SIDECAR, cut=True))
    assert (index.refused, len(index), index.owner(60)) == (1, len(WALK), None)
    index.died(rmdir(APP_ID))
    index.born(mkdir(61, POD_ID, SIDECAR))
    assert 61 in index


def test_a_rename_of_a_cgroup_that_was_missed_adds_it() -> None:
    index = CgroupIndex()
    index.replace_all(WALK)
    index.renamed(CgroupRename(0, 60, POD_ID, 3, SIDECAR, False))
    owner = index.owner(60)
    assert owner is not None and (owner.pod_uid, owner.container_id) == ("u-1", SIDECAR)
    index.renamed(CgroupRename(0, 61, 0, 3, "x", False))  # where it is cannot be known
    assert 61 not in index
    assert index.pending_names() == (61,)


def test_a_walk_decides_again_which_of_too_many_nested_cgroups_are_held() -> None:
    index = CgroupIndex()
    nested = [(100 + at, APP_ID, f"kubepods/podu-1/{APP}/n{at}") for at in range(MAX_NESTED + 5)]
    index.replace_all([*WALK, *nested])
    assert (len(index), index.refused) == (len(WALK) + MAX_NESTED, 5)
    others = [(9000 + at, APP_ID, f"kubepods/podu-1/{APP}/m{at}") for at in range(3)]
    index.replace_all([*WALK, *others])
    assert all(cgroup_id in index for cgroup_id, _, _ in others)
    assert len(index) == len(WALK) + 3


def test_a_static_pod_is_found_by_its_hash() -> None:
    index = CgroupIndex()
    index.replace_all([(1, 0, ""), (2, 1, "kubepods"), (3, 2, "kubepods/podhash1"), (4, 3, f"kubepods/podhash1/{APP}")])
    assert [each.pod_uid for each in index.cgroups_without_pod()] == ["hash1"]
    assert index.subtree_pod(4) == "hash1"
    index.set_pods([pod("mirror-uid", config_hash="hash1", containers={APP: "etcd"})])
    owner = index.owner(4)
    assert owner is not None and (owner.pod_uid, owner.pod_known, owner.container_name) == ("mirror-uid", True, "etcd")
    assert (index.subtree_pod(4), index.subtree_pod(3)) == ("mirror-uid", "mirror-uid")
    assert (index.pod_cgroups(), index.cgroups_without_pod()) == ({"mirror-uid": 3}, ())
    index.set_pods([])
    assert (index.subtree_pod(4), index.pod_cgroups()) == ("hash1", {})


def test_unknown_on_either_side_stays_visible() -> None:
    index = walked([pod("u-2"), pod("u-3", phase="Succeeded")])
    (stray,) = index.cgroups_without_pod()
    assert (stray.cgroup_id, stray.pod_uid, stray.pod_known, stray.path) == (POD_ID, "u-1", False, "kubepods/podu-1")


def test_the_sandbox_is_the_oldest_and_only_one_without_a_status() -> None:
    index = walked([pod(containers={APP: "app"})])
    assert (kind(index, PAUSE_ID), kind(index, APP_ID)) == (OwnerKind.SANDBOX, OwnerKind.CONTAINER)
    # A second unknown one: which of them is the sandbox is unknown.
    index.born(mkdir(23, POD_ID, SIDECAR))
    assert (kind(index, PAUSE_ID), kind(index, 23)) == (OwnerKind.CONTAINER, OwnerKind.CONTAINER)
    index.set_pods([pod(containers={APP: "app", SIDECAR: "sidecar"})])
    assert kind(index, PAUSE_ID) is OwnerKind.SANDBOX
    index.died(rmdir(23))
    index.died(rmdir(APP_ID))
    assert kind(index, PAUSE_ID) is OwnerKind.CONTAINER


def test_a_container_whose_status_is_late_is_no_sandbox() -> None:
    index = CgroupIndex()
    index.replace_all(
        [*WALK[:3], (APP_ID, POD_ID, f"kubepods/podu-1/{APP}"), (23, POD_ID, f"kubepods/podu-1/{SIDECAR}")]
    )
    index.set_pods([pod(containers={APP: "app"})])
    assert kind(index, 23) is OwnerKind.CONTAINER


def test_the_pod_reports_new_container_names() -> None:
    index = walked([pod()])
    first = index.owner(APP_ID)
    assert first is not None and first.container_name is None
    index.set_pods([pod(containers={APP: "app"})])
    second = index.owner(APP_ID)
    assert second is not None and second.container_name == "app"


def test_a_node_cgroup_is_the_root_of_its_tree() -> None:
    top = f"kubepods/podouter/{SIDECAR}"
    index = CgroupIndex()
    index.replace_all([(5, 4, top), (6, 5, f"{top}/kubepods"), (7, 6, f"{top}/kubepods/podinner")])
    assert (kind(index, 5), kind(index, 7), index.pod_cgroup("inner")) == (OwnerKind.ROOT, OwnerKind.POD, 7)
    assert index.path(7) == f"{top}/kubepods/podinner"


def test_what_a_cgroup_lies_in() -> None:
    index = walked()
    index.born(mkdir(32, 31, APP))
    assert index.above(APP_ID) == (POD_ID, KUBEPODS) and index.above(KUBEPODS) == ()
    assert index.above(ROOT) == () and index.above(32) == () and index.above(99) == ()


def test_kubepods_itself_may_be_the_node() -> None:
    index = CgroupIndex()
    index.replace_all([(5, 4, "kubepods/besteffort"), (6, 5, "kubepods/besteffort/podu-1")])
    owner = index.owner(6)
    assert owner is not None and (owner.kind, owner.kube_qos) == (OwnerKind.POD, "BestEffort")


def test_a_host_application_with_a_path_of_its_own() -> None:
    index = CgroupIndex({"yarn/nm": "yarn"})
    index.replace_all([(1, 0, ""), (2, 1, "yarn"), (3, 2, "yarn/nm"), (4, 3, "yarn/nm/e1")])
    assert (kind(index, 2), kind(index, 3), kind(index, 4)) == (
        OwnerKind.SYSTEM,
        OwnerKind.HOST_APPLICATION,
        OwnerKind.HOST_APPLICATION,
    )


def test_of_two_cgroups_of_one_pod_the_younger_counts() -> None:
    index = walked([pod()])
    index.born(mkdir(70, KUBEPODS, "burstable"))
    index.born(mkdir(71, 70, "podu-1"))
    assert index.pod_cgroups() == {"u-1": 71}
    index.died(rmdir(71))
    assert index.pod_cgroups() == {"u-1": POD_ID}


def test_a_pods_nested_cgroups_do_not_use_up_the_other_pods() -> None:
    index = CgroupIndex(max_cgroups=MAX_NESTED + 100)
    index.replace_all(WALK)
    first = 1_000
    for cgroup_id in range(first, first + 65_536):
        index.born(mkdir(cgroup_id, APP_ID, f"c{cgroup_id}"))
    assert index.refused == 65_536 - MAX_NESTED
    for cgroup_id in range(100_000, 105_000):  # below those that were refused: their parents are unknown
        index.born(mkdir(cgroup_id, first + 60_000, f"c{cgroup_id}"))
    index = CgroupIndex()
    index.replace_all(WALK)
    for cgroup_id in range(first, first + 65_536):
        index.born(mkdir(cgroup_id, cgroup_id - 1 if cgroup_id % 100 else APP_ID, "n"))
    held = len(index)
    assert held <= len(WALK) + 2 * MAX_NESTED and index.orphans <= MAX_NESTED
    index.born(mkdir(200_000, KUBEPODS, "podu-2"))
    index.born(mkdir(200_001, 200_000, SIDECAR))
    index.born(mkdir(200_002, 200_001, "init.scope"))
    assert (index.pod_cgroup("u-2"), kind(index, 200_001), kind(index, 200_002)) == (
        200_000,
        OwnerKind.CONTAINER,
        OwnerKind.NESTED,
    )
    index.born(mkdir(200_003, POD_ID, SIDECAR))  # one more container of the same pod is none of its nested ones
    assert kind(index, 200_003) is OwnerKind.CONTAINER


def test_a_walk_of_a_pod_with_too_many_stops_and_finds_those_that_are_left() -> None:
    index = CgroupIndex()
    many = [(cgroup_id, APP_ID, f"kubepods/podu-1/{APP}/c{cgroup_id}") for cgroup_id in range(1_000, 10_000)]
    other = [(200_000, KUBEPODS, "kubepods/podu-2")]
    index.replace_all([*WALK, *many, *other])
    assert len(index) == len(WALK) + MAX_NESTED + 1 and index.pod_cgroup("u-2") == 200_000
    assert index.is_closed(APP_ID) and not index.is_closed(POD_ID) and not index.is_closed(200_000)
    assert index.is_closed(9_999)  # it was refused
    for cgroup_id in range(1_000, 1_100):
        index.died(rmdir(cgroup_id))
    assert not index.is_closed(APP_ID)
    index.replace_all([*WALK, *many[-10:], *other])
    assert len(index) == len(WALK) + 10 + 1 and not index.is_closed(APP_ID)


def test_a_chain_within_a_container_is_held_to_a_depth() -> None:
    index = walked()
    parent_id = APP_ID
    for cgroup_id in range(1_000, 1_100):
        index.born(mkdir(cgroup_id, parent_id, "n"))
        parent_id = cgroup_id
    # Of 24 levels the container is the first.
    assert index.refused == 1 and index.owner(1_022) is not None
    assert index.owner(1_023) is None


def test_a_logins_own_cgroups_are_no_pods() -> None:
    index = walked([pod()])
    users = "user.slice/user-1000.slice/user@1000.service"
    slices = f"{users}/x.slice/x-kubepods.slice/x-kubepods-podu_1.slice"
    parent_id = ROOT
    for number, name in enumerate(slices.split("/")):
        index.born(mkdir(100 + number, parent_id, name))
        parent_id = 100 + number
    index.born(mkdir(110, 102, f"kubepods-podu_1.slice:cri-containerd:{SIDECAR}"))
    assert index.pod_cgroup("u-1") == POD_ID
    assert {index.subtree_pod(each) for each in (*range(100, 106), 110)} == {None}
    assert {kind(index, each) for each in (*range(100, 106), 110)} == {OwnerKind.SYSTEM}


@pytest.mark.parametrize(
    "names", ["kubepods/besteffort/podu-1", "kubepods.slice/kubepods-podu_1.slice", f"x.slice/kubepods/podu-1/{APP}"]
)
def test_nor_are_they_before_the_kubelet_has_a_root(names: str) -> None:
    levels = f"user.slice/user-1000.slice/{names}".split("/")
    walk = [(ROOT, 0, ""), *((100 + at, 99 + at, "/".join(levels[: at + 1])) for at in range(len(levels)))]
    walk[1] = (100, ROOT, "user.slice")
    index = CgroupIndex()
    index.replace_all(walk)
    index.set_pods([pod(containers={APP: "app"})])
    assert dict(index.pod_cgroups()) == {}
    assert {index.subtree_pod(cgroup_id) for cgroup_id, _, _ in walk} == {None}
    assert index.kubelet.path is None


def test_of_two_at_the_same_height_the_younger_one_is_it() -> None:
    index = walked([pod()])
    index.born(mkdir(100, ROOT, "kubepods.slice"))
    index.born(mkdir(101, 100, "kubepods-podu_1.slice"))
    assert (index.pod_cgroup("u-1"), index.subtree_pod(101), index.subtree_pod(POD_ID)) == (101, "u-1", None)
