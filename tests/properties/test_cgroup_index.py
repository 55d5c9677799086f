"""After any mkdir, rmdir and renames the index equals one made by a fresh walk, whatever was asked between.

The kubelet's root is given: which one is learned depends on what was there first, see test_hostile_cgroups.py.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from koordebpf.attribution.index import CgroupIndex, Rescan
from koordebpf.events.records import CgroupMkdir, CgroupRename, CgroupRmdir
from koordebpf.kube.cache.objects import ContainerStatus, ObjectMeta, OwnerReference, Pod, PodSpec, PodStatus
from tests.support.index_records import apply

ROOT = 1
NAMES = [
    "kubepods",
    "besteffort",
    "burstable",
    "podu1",
    "podu2",
    "podhash",
    "a" * 64,
    "b" * 64,
    "init.scope",
    "system.slice",
]
PODS = [
    Pod(ObjectMeta(uid="u1"), status=PodStatus(containerStatuses=[ContainerStatus("app", "containerd://" + "a" * 64)])),
    Pod(
        ObjectMeta(
            uid="mirror",
            annotations={"kubernetes.io/config.hash": "hash", "kubernetes.io/config.mirror": "hash"},
            ownerReferences=[OwnerReference("Node", "n1")],
        ),
        spec=PodSpec(nodeName="n1"),
    ),
]


class Tree:
    """The file system's side: what is there, as id → (parent, name)."""

    def __init__(self) -> None:
        self.nodes = {ROOT: (0, "")}
        self.last_id = ROOT

    def path(self, cgroup_id: int) -> str:
        parent_id, name = self.nodes[cgroup_id]
        return f"{self.path(parent_id)}/{name}".lstrip("/") if parent_id else name

    def walk(self) -> list[tuple[int, int, str]]:
        return [(each, parent_id, self.path(each)) for each, (parent_id, _) in self.nodes.items()]

    def has(self, parent_id: int, name: str) -> bool:
        return (parent_id, name) in self.nodes.values()

    def leaves(self) -> list[int]:
        parents = {parent_id for parent_id, _ in self.nodes.values()}
        return [each for each in self.nodes if each not in parents and each != ROOT]


@st.composite
def histories(draw: st.DrawFn) -> tuple[Tree, list[CgroupMkdir | CgroupRmdir | CgroupRename]]:
    tree, records = Tree(), []
    for step in draw(st.lists(st.sampled_from(["mkdir", "mkdir", "mkdir", "rmdir", "rename"]), max_size=40)):
        name = draw(st.sampled_from(NAMES))
        if step == "mkdir":
            parent_id = draw(st.sampled_from(sorted(tree.nodes)))
            if not tree.has(parent_id, name):
                tree.last_id += 1
                tree.nodes[tree.last_id] = (parent_id, name)
                records.append(CgroupMkdir(0, tree.last_id, parent_id, 1, name, False))
        elif step == "rmdir" and (leaves := tree.leaves()):
            cgroup_id = draw(st.sampled_from(leaves))
            parent_id, old = tree.nodes.pop(cgroup_id)
            records.append(CgroupRmdir(0, cgroup_id, parent_id, 1, old, False))
        elif step == "rename" and len(tree.nodes) > 1:
            cgroup_id = draw(st.sampled_from(sorted(tree.nodes)[1:]))
            parent_id, _ = tree.nodes[cgroup_id]
            if not tree.has(parent_id, name):
                tree.nodes[cgroup_id] = (parent_id, name)
                records.append(CgroupRename(0, cgroup_id, parent_id, 1, name, False))
    return tree, records


def answers(index: CgroupIndex, ids: range) -> tuple[object, ...]:
    return (
        [(index.owner(each), index.subtree_pod(each), index.path(each)) for each in ids],
        dict(index.pod_cgroups()),
        sorted(each.cgroup_id for each in index.cgroups_without_pod()),
        (len(index), index.orphans, index.pending_names()),
    )


def fresh(tree: Tree) -> CgroupIndex:
    index = CgroupIndex(cgroup_root="/")
    index.set_pods(PODS)
    index.replace_all(tree.walk())
    return index


@given(histories(), st.booleans(), st.integers(0, 40))
@settings(deadline=None)
def test_records_equal_a_walk(history: tuple[Tree, list], asks: bool, pods_at: int) -> None:
    tree, records = history
    index = CgroupIndex(cgroup_root="/")
    index.replace_all([(ROOT, 0, "")])
    ids = range(tree.last_id + 2)
    for at, record in enumerate(records):
        if at == pods_at:
            index.set_pods(PODS)
        apply(index, record)
        if asks:
            answers(index, ids)  # what is kept from an answer must not outlive its truth
    index.set_pods(PODS)
    assert answers(index, ids) == answers(fresh(tree), ids)
    assert index.replace_all(tree.walk()) == Rescan((), ())


@given(histories(), st.data())
@settings(deadline=None)
def test_mkdirs_in_any_order_equal_a_walk(history: tuple[Tree, list], data: st.DataObject) -> None:
    tree, _ = history
    index = CgroupIndex(cgroup_root="/")
    index.set_pods(PODS)
    created = [
        CgroupMkdir(0, each, parent_id, 1, name, False) for each, (parent_id, name) in tree.nodes.items() if parent_id
    ]
    order = data.draw(st.permutations([None, *created]))
    for record in order:
        if record is None:
            index.add(ROOT, 0, "")
        else:
            index.born(record)
    ids = range(tree.last_id + 2)
    assert answers(index, ids) == answers(fresh(tree), ids)


@given(histories(), st.data())
@settings(deadline=None)
def test_a_walk_repairs_any_loss(history: tuple[Tree, list], data: st.DataObject) -> None:
    tree, records = history
    index = CgroupIndex(cgroup_root="/")
    index.set_pods(PODS)
    index.replace_all([(ROOT, 0, "")])
    for record in records:
        if data.draw(st.booleans()):
            apply(index, record)
    index.replace_all(tree.walk())
    ids = range(tree.last_id + 2)
    assert answers(index, ids) == answers(fresh(tree), ids)
