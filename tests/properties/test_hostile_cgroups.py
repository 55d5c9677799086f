"""Whatever directories a tenant makes, below its own pod or elsewhere, no other cgroup's pod is another one for it."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.kubelet_root import kubepods_paths
from koordebpf.events.records import CgroupMkdir, CgroupRename, CgroupRmdir
from koordebpf.kube.cache.objects import ContainerStatus, ObjectMeta, Pod, PodStatus
from tests.support.index_records import apply

UIDS = ["web", "hog", "evil"]
APP = "a" * 64
PODS = [
    Pod(
        ObjectMeta(name=uid, namespace="ns", uid=uid),
        status=PodStatus(containerStatuses=[ContainerStatus("app", f"containerd://{APP}")]),
    )
    for uid in [*UIDS, "late"]  # which has no cgroup yet
]
ROOTS = ["/", "/kubelet", "/my-pods", "/system.slice/docker-3f.scope/kubelet"]
NAMES = [
    "kubepods",
    "kubepods.slice",
    "x-kubepods.slice",
    "kubelet.slice",
    "kubelet-kubepods.slice",
    "besteffort",
    "kubepods-besteffort.slice",
    "system.slice",
    "containerd.service",
    "host-best-effort",
    APP,
    *(f"pod{each}" for each in [*UIDS, "late", "none"]),
    *(f"kubepods-pod{each}.slice" for each in [*UIDS, "late"]),
    *(f"kubepods-besteffort-pod{each}.slice:cri-containerd:{APP}" for each in [*UIDS, "late"]),
]


class Node(NamedTuple):
    """What root and the kubelet made: id → (parent, name), and where others may make what they like."""

    made: dict[int, tuple[int, str]]
    open_to_others: dict[int, str | None]  # id → whose pod it is in


def node(root: str, driver: str) -> Node:
    ids: dict[str, int] = {"": 1}
    made = {1: (0, "")}

    def make(path: str) -> int:
        above, _, name = path.rpartition("/")
        if path not in ids:
            parent_id = make(above)
            ids[path] = len(ids) + 1
            made[ids[path]] = (parent_id, name)
        return ids[path]

    others: dict[int, str | None] = {
        make(path): None
        for path in ("system.slice/any.service", "user.slice/user-1000.slice", "docker/3f", "a.slice/b.service/c")
    }
    top = kubepods_paths(root)[driver == "systemd"]
    for uid in UIDS:
        prefix = top.rpartition("/")[2].removesuffix(".slice")
        level = f"{top}/{prefix}-pod{uid}.slice" if driver == "systemd" else f"{top}/besteffort/pod{uid}"
        container = make(f"{level}/{APP}")
        if uid == "evil":
            others[container] = uid
    return Node(made, others)


def records_of(made: dict[int, tuple[int, str]]) -> list[CgroupMkdir]:
    return [CgroupMkdir(0, each, parent_id, 1, name, False) for each, (parent_id, name) in made.items() if parent_id]


def walk_of(made: dict[int, tuple[int, str]], order: list[int]) -> list[tuple[int, int, str]]:
    def path(cgroup_id: int) -> str:
        parent_id, name = made[cgroup_id]
        return f"{path(parent_id)}/{name}".lstrip("/") if parent_id else name

    # Parents first, and else in any order.
    ordered = sorted(made, key=lambda each: (path(each).count("/") + bool(path(each)), order[each % len(order)], each))
    return [(each, made[each][0], path(each)) for each in ordered]


class Hostile(NamedTuple):
    """One step of a tenant: what it does to which of the directories that it may change."""

    what: str
    which: int
    name: str


STEPS = st.lists(
    st.builds(
        Hostile,
        st.sampled_from(["mkdir"] * 4 + ["rename", "rmdir"]),
        st.one_of(st.integers(-3, -1), st.integers(0, 1_000)),  # the newest ones, so that trees grow deep
        st.sampled_from(NAMES),
    ),
    max_size=30,
)


def carried_out(steps: list[Hostile], of: Node) -> tuple[list[Any], dict[int, tuple[int, str]], dict[int, str | None]]:
    """Return the kernel's records of these steps, what is there then, and in whose pod the tenant's directories are."""
    made, whose, records = dict(of.made), dict(of.open_to_others), []
    own: dict[int, str | None] = {}
    next_id = max(made) + 1
    for step in steps:
        if step.what == "mkdir":
            parent_id = sorted(whose)[step.which % len(whose)]
            if (parent_id, step.name) in made.values():
                continue
            made[next_id] = (parent_id, step.name)
            own[next_id] = whose[next_id] = whose[parent_id]
            records.append(CgroupMkdir(0, next_id, parent_id, 1, step.name, False))
            next_id += 1
        elif own:
            cgroup_id = sorted(own)[step.which % len(own)]
            parent_id, name = made[cgroup_id]
            if step.what == "rename" and (parent_id, step.name) not in made.values():
                made[cgroup_id] = (parent_id, step.name)
                records.append(CgroupRename(0, cgroup_id, parent_id, 1, step.name, False))
            elif step.what == "rmdir" and all(each != cgroup_id for each, _ in made.values()):
                del made[cgroup_id], own[cgroup_id], whose[cgroup_id]
                records.append(CgroupRmdir(0, cgroup_id, parent_id, 1, name, False))
    return records, made, own


def answers(index: CgroupIndex, of: Node) -> Any:
    return (
        [(index.owner(each), index.subtree_pod(each), index.path(each)) for each in of.made],
        dict(index.pod_cgroups()),
        [index.pod_cgroup(pod.uid) for pod in PODS],
        index.cgroups_without_pod(),
        index.kubelet.path,
    )


def untouched(of: Node, root: str) -> Any:
    index = CgroupIndex(cgroup_root=root)
    index.replace_all(walk_of(of.made, [0]))
    index.set_pods(PODS)
    assert index.pod_cgroups().keys() == set(UIDS)
    return answers(index, of)


def check(index: CgroupIndex, of: Node, root: str, own: dict[int, str | None]) -> None:
    assert answers(index, of)[:4] == untouched(of, root)[:4]
    for cgroup_id, uid in own.items():
        owner = index.owner(cgroup_id)
        assert owner is not None and (index.subtree_pod(cgroup_id), owner.pod_uid) == (uid, uid)


DRIVERS = st.sampled_from(["cgroupfs", "systemd"])
FORGED = [Hostile("mkdir", 0, "kubepods"), Hostile("mkdir", -1, "podweb"), Hostile("mkdir", -2, "podlate")]


@given(st.sampled_from(ROOTS), DRIVERS, STEPS, st.booleans())
@example("/", "cgroupfs", FORGED, False)
@settings(max_examples=300, deadline=None)
def test_once_the_root_is_known(root: str, driver: str, steps: list[Hostile], is_given: bool) -> None:
    of = node(root, driver)
    index = CgroupIndex(cgroup_root=root if is_given else None)
    index.replace_all(walk_of(of.made, [0]))
    index.set_pods(PODS)
    records, made, own = carried_out(steps, of)
    for record in records:
        apply(index, record)
    check(index, of, root, own)
    index.replace_all(walk_of(made, [1, 0]))  # nor does a walk, as after records were lost
    check(index, of, root, own)


KNOWN = st.sampled_from(["given", "own pod", "learned before", "nothing"])


@given(st.sampled_from(ROOTS), DRIVERS, STEPS, KNOWN, st.booleans(), st.permutations(range(5)))
@example(ROOTS[-1], "cgroupfs", FORGED, "given", False, [0])
@example(ROOTS[-1], "cgroupfs", FORGED, "own pod", False, [0])
@example(ROOTS[-1], "systemd", FORGED, "learned before", False, [0])
@example("/", "systemd", FORGED, "nothing", True, [0])
@settings(max_examples=300, deadline=None)
def test_before_the_agent_starts(
    root: str, driver: str, steps: list[Hostile], known: str, are_pods_first: bool, order: list[int]
) -> None:
    if known == "nothing":
        root = "/"  # only the setting distinguishes a deeper one from a forged one
    of = node(root, driver)
    _, made, own = carried_out(steps, of)
    index = CgroupIndex(cgroup_root=root if known == "given" else None)
    if known == "own pod":
        # A reader of /proc knows its UID only once it is there.
        index.kubelet.own_pod_uid = "hog"
        made = {each: (parent, name) for each, (parent, name) in made.items() if each not in own or "hog" not in name}
        own = {each: uid for each, uid in own.items() if each in made}
        made = {each: place for each, place in made.items() if all_there(made, each)}
        own = {each: uid for each, uid in own.items() if each in made}
    elif known == "learned before":
        before = CgroupIndex()
        before.replace_all(walk_of(of.made, [0]))
        before.set_pods(PODS)
        index.kubelet.expected = before.kubelet.path
    if are_pods_first:
        index.set_pods(PODS)
    index.replace_all(walk_of(made, order))
    index.set_pods(PODS)
    check(index, of, root, own)


def all_there(made: dict[int, tuple[int, str]], cgroup_id: int) -> bool:
    while cgroup_id and cgroup_id in made:
        cgroup_id = made[cgroup_id][0]
    return not cgroup_id
