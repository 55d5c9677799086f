"""Which kubepods directory is the kubelet's: given, or learned once from where the node's pods are."""

from __future__ import annotations

import pytest

from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.kubelet_root import KubeletRoot, kubepods_paths, root_of
from koordebpf.attribution.owner import OwnerKind
from koordebpf.events.records import CgroupMkdir, CgroupRename, CgroupRmdir
from koordebpf.kube.cache.objects import ObjectMeta, Pod

KIND = "system.slice/docker-3f.scope/kubelet.slice/kubelet-kubepods.slice"
SERVICE = "system.slice/any.service/kubepods"


class Tree:
    """An index and the cgroups that were made in it, by path."""

    def __init__(self, cgroup_root: str | None = None, node: str = "") -> None:
        self.index = CgroupIndex(cgroup_root=cgroup_root)
        self.ids = {"": 1}
        self.index.replace_all([(1, 0, node)])

    def make(self, path: str) -> int:
        """Let a directory be born with those above it that are missing; return its id."""
        above, _, name = path.rpartition("/")
        if path not in self.ids:
            parent_id = self.make(above)
            self.ids[path] = len(self.ids) + 1
            self.index.born(CgroupMkdir(0, self.ids[path], parent_id, 1, name, False))
        return self.ids[path]

    def remove(self, path: str) -> None:
        """Let a directory die."""
        self.index.died(CgroupRmdir(0, self.ids.pop(path), 0, 1, "", False))

    def know(self, *uids: str) -> None:
        """Have these pods on the list."""
        self.index.set_pods([Pod(ObjectMeta(name=f"name-{uid}", namespace="ns", uid=uid)) for uid in uids])

    def pod_of(self, path: str) -> tuple[str | None, str | None]:
        """Return whose a cgroup is by both questions: `subtree_pod` and `owner`."""
        owner = self.index.owner(self.ids[path])
        return self.index.subtree_pod(self.ids[path]), owner and owner.pod_uid


@pytest.mark.parametrize(
    ("root", "paths"),
    [
        ("/", ("kubepods", "kubepods.slice")),
        ("/kubelet", ("kubelet/kubepods", "kubelet.slice/kubelet-kubepods.slice")),
        ("/a/b-c", ("a/b-c/kubepods", "a.slice/a-b_c.slice/a-b_c-kubepods.slice")),
    ],
)
def test_where_a_kubelet_with_this_root_has_its_pods(root: str, paths: tuple[str, str]) -> None:
    assert kubepods_paths(root) == paths
    assert [root_of(path) for path in paths] == [root[1:], root[1:].replace("-", "_")]


@pytest.mark.parametrize("path", ["any.service/x-kubepods.slice", "a-b.slice/a-b-kubepods.slice", "-kubepods.slice"])
def test_a_slice_where_systemd_would_not_have_it_is_no_kubelets(path: str) -> None:
    assert root_of(path) is None


@pytest.mark.parametrize("root", ["kubepods", "kubelet/kubepods", KIND, "custom.slice/custom-kubepods.slice"])
@pytest.mark.parametrize("is_first", [True, False], ids=["pods known first", "cgroups made first"])
def test_the_root_is_where_a_pod_of_the_list_is(root: str, is_first: bool) -> None:
    tree = Tree()
    if is_first:
        tree.know("u-1")
    prefix = root.rpartition("/")[2].removesuffix(".slice")
    own = f"{root}/{prefix}-podu_1.slice" if root.endswith(".slice") else f"{root}/besteffort/podu-1"
    assert tree.index.kubelet.path is None
    tree.make(own)
    if not is_first:
        tree.know("u-1")
    root_path = root_of(root)
    assert tree.index.kubelet.path == f"/{root_path}"
    assert tree.index.pod_cgroups() == {"u-1": tree.ids[own]}
    assert tree.index.problems == ()


def test_before_any_pod_is_known_every_kubepods_names_pods() -> None:
    tree = Tree()
    tree.make(f"{SERVICE}/podu-1")
    tree.make("kubepods/podu-2")
    assert {each.pod_uid for each in tree.index.cgroups_without_pod()} == {"u-1", "u-2"}
    tree.know("u-9")  # which is nowhere: the kubelet has yet to make it
    assert not tree.index.kubelet.is_known


def test_once_it_is_learned_no_other_kubepods_names_a_pod() -> None:
    tree = Tree()
    tree.know("u-1", "u-2")
    tree.make("kubepods/podu-1")
    for path in (f"{SERVICE}/podu-2/app", f"{SERVICE}/besteffort/podu-1/app", f"{KIND}/kubelet-kubepods-podu_2.slice"):
        tree.make(path)
        assert tree.pod_of(path) == (None, None)
    assert tree.index.pod_cgroups() == {"u-1": tree.ids["kubepods/podu-1"]}
    assert tree.index.cgroups_without_pod() == ()
    tree.remove("kubepods/podu-1")
    assert tree.index.pod_cgroups() == {}
    owner = tree.index.owner(tree.ids[SERVICE])
    assert owner is not None and owner.kind is OwnerKind.SYSTEM


def test_what_was_taken_for_pods_until_then_has_no_owner() -> None:
    tree = Tree()
    tree.make(f"{SERVICE}/podu-1/app")
    tree.make(f"{SERVICE}/nested/kubepods/podu-2")
    assert tree.pod_of(f"{SERVICE}/podu-1/app") == ("u-1", "u-1")
    tree.make("kubepods/podu-1/app")
    tree.know("u-1")
    assert tree.index.kubelet.path == "/"
    assert tree.pod_of(f"{SERVICE}/podu-1/app") == tree.pod_of(f"{SERVICE}/nested/kubepods/podu-2") == (None, None)
    assert tree.index.pod_cgroup("u-1") == tree.ids["kubepods/podu-1"]


def test_of_several_roots_the_one_with_the_agents_own_pod_is_it() -> None:
    for own, expected in (("agent", "/system.slice/docker-3f.scope/kubelet"), (None, "/")):
        tree = Tree()
        tree.index.kubelet.own_pod_uid = own
        tree.make("kubepods/podu-1")
        tree.make(f"{KIND}/kubelet-kubepods-podu_1.slice")
        tree.make(f"{KIND}/kubelet-kubepods-podagent.slice")
        tree.know("u-1", "agent")
        assert tree.index.kubelet.path == expected


def test_of_several_roots_the_one_that_was_learned_before_is_it_if_pods_are_there() -> None:
    for before, expected in ((f"/{SERVICE.rpartition('/')[0]}",) * 2, ("/elsewhere", "/"), (None, "/")):
        tree = Tree()
        tree.index.kubelet.expected = before
        tree.make(f"{SERVICE}/podu-1")
        tree.make("elsewhere/kubepods")
        tree.make("kubepods/podu-1")
        tree.know("u-1")
        assert tree.index.kubelet.path == expected


def test_a_walk_judges_when_it_has_seen_all() -> None:
    index = CgroupIndex()
    index.set_pods([Pod(ObjectMeta(uid="u-1"))])
    forged = [(2, 1, "a.service"), (3, 2, "a.service/kubepods"), (4, 3, "a.service/kubepods/podu-1")]
    index.replace_all([(1, 0, ""), *forged, (5, 1, "kubepods"), (6, 5, "kubepods/podu-1")])
    assert (index.kubelet.path, index.pod_cgroup("u-1")) == ("/", 6)


def test_both_drivers_of_one_root_count() -> None:
    tree = Tree()
    tree.know("u-1", "u-2")
    tree.make("kubelet/kubepods/podu-1")
    new = "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podu_2.slice"
    tree.make(new)
    assert tree.index.pod_cgroup("u-2") == tree.ids[new]
    assert (tree.index.kubelet.path, tree.index.problems) == ("/kubelet", ())


def test_the_older_one_of_two_cgroups_of_a_pod_has_no_owner() -> None:
    tree = Tree()
    tree.know("u-1")
    old, new = "kubepods/podu-1/app", "kubepods.slice/kubepods-podu_1.slice/cri-containerd-0123456789ab.scope"
    tree.make(old)
    assert tree.pod_of(old) == ("u-1", "u-1")
    tree.make(new)
    assert (tree.pod_of(old), tree.pod_of(new)) == ((None, None), ("u-1", "u-1"))
    owner = tree.index.owner(tree.ids[old])
    assert owner is not None and (owner.kind, owner.path) == (OwnerKind.SYSTEM, old)
    tree.remove("kubepods.slice/kubepods-podu_1.slice")
    assert tree.pod_of(old) == ("u-1", "u-1")


@pytest.mark.parametrize("root", ["/", "/kubelet", "/my-pods"])
def test_a_given_root_is_the_only_one_from_the_first_moment(root: str) -> None:
    tree = Tree(root)
    for path in kubepods_paths(root):
        tree.make(path)
    first = f"{kubepods_paths(root)[0]}/podu-1"
    for path in (first, f"{SERVICE}/podu-2", "elsewhere/kubepods/podu-3"):
        tree.make(path)
    tree.know("u-1", "u-2", "u-3")
    assert (tree.index.kubelet.path, tree.index.pod_cgroups()) == (root, {"u-1": tree.ids[first]})


def test_a_given_root_without_kubepods_is_said_with_what_to_do() -> None:
    tree = Tree("/custom")
    (problem,) = tree.index.problems
    assert "there is neither custom/kubepods nor custom.slice/custom-kubepods.slice" in problem
    assert "leave it out" in problem
    tree.make("kubepods/podu-1")
    tree.know("u-1")
    assert tree.index.pod_cgroups() == {}
    assert "there is one below /" in tree.index.problems[0]
    assert tree.index.problems[1].startswith("kubepods is not below the kubelet's cgroup root /custom")
    tree.make("custom/kubepods")
    assert len(tree.index.problems) == 1


def test_a_second_root_is_said_as_long_as_it_is_there() -> None:
    tree = Tree()
    tree.know("u-1")
    tree.make("kubepods/podu-1")
    tree.make(f"{SERVICE}/podu-1")
    (problem,) = tree.index.problems
    assert problem.startswith(f"{SERVICE} is not below the kubelet's cgroup root /: no cgroup in it counts")
    assert "--cgroup-root (node.cgroupRoot) to /system.slice/any.service" in problem
    tree.remove(f"{SERVICE}/podu-1")
    tree.remove(SERVICE)
    assert tree.index.problems == ()


def test_a_directory_that_is_renamed_to_kubepods_is_one() -> None:
    tree = Tree()
    tree.know("u-1")
    tree.make("kubepods/podu-1")
    tree.make("any.service/x/podu-1")
    tree.index.renamed(CgroupRename(0, tree.ids["any.service/x"], 0, 1, "kubepods", False))
    assert len(tree.index.problems) == 1
    assert tree.pod_of("any.service/x/podu-1") == (None, None)


def test_thousands_of_them_are_one_sentence_and_bounded() -> None:
    tree = Tree()
    tree.know("u-1")
    tree.make("kubepods/podu-1")
    for number in range(3_000):
        tree.make(f"any.service/{'x' * 200}{number}/kubepods")
    assert len(tree.index.problems) == 5 and max(map(len, tree.index.problems)) < 500
    assert len(tree.index.kubelet.others) == 64


def test_a_node_that_is_kubepods_itself_is_its_own_root() -> None:
    tree = Tree(node="kubepods/besteffort")
    tree.make("podu-1")
    tree.make("x/kubepods/podu-2")
    tree.know("u-1", "u-2")
    assert tree.index.pod_cgroups() == {"u-1": tree.ids["podu-1"]}
    assert len(tree.index.problems) == 1


def test_a_root_is_below_the_node_not_below_the_mount() -> None:
    tree = Tree("/kubelet", node="docker/3f")
    tree.make("kubelet/kubepods/podu-1")
    tree.know("u-1")
    assert tree.index.pod_cgroups() == {"u-1": tree.ids["kubelet/kubepods/podu-1"]}


def test_containers_whose_path_is_their_name_are_in_the_root_or_in_a_runtimes_cgroup() -> None:
    tree = Tree()
    tree.know("u-1")
    tree.make("kubepods.slice/kubepods-podu_1.slice")
    name = "kubepods-podu_1.slice:cri-containerd:3f"
    for path in (name, f"system.slice/containerd.service/{name}", f"runtime.slice/k3s-agent.service/{name}"):
        tree.make(path)
        assert tree.pod_of(path) == ("u-1", "u-1")
    for above in ("system.slice/any.service", "any.service/x.slice/containerd.service", "system.slice", "docker/3f"):
        tree.make(f"{above}/{name}")
        assert tree.pod_of(f"{above}/{name}") == (None, None)


def test_nothing_is_learned_twice() -> None:
    kubelet = KubeletRoot()
    assert kubelet.is_kubepods(5, "kubepods") and kubelet.is_kubepods(6, "x/kubepods")
    assert kubelet.learn({5: {"u-1"}}) == (6,)
    assert kubelet.learn({6: {"u-1"}}) == ()
    assert kubelet.path == "/"
