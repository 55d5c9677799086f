"""Whose hash is believed, and what is said of the others."""

from __future__ import annotations

import pytest

from koordebpf.attribution.static_pods import cgroup_names, is_api_uid
from koordebpf.kube.cache.objects import ObjectMeta, OwnerReference, Pod, PodSpec

HASH, MIRROR = "kubernetes.io/config.hash", "kubernetes.io/config.mirror"
MD5 = "d0141ec4c1df7a3c9f9d3b6b4d2f8c5a"
OWNER = OwnerReference("Node", "n1", "uid-of-n1", True)


def pod(uid: str, *, owner: OwnerReference | None = None, node: str = "n1", **annotations: str) -> Pod:
    named = {HASH if key == "hash" else MIRROR: value for key, value in annotations.items()}
    meta = ObjectMeta(
        name=uid, namespace="ns", uid=uid, annotations=named or None, ownerReferences=[owner] if owner else None
    )
    return Pod(meta, spec=PodSpec(nodeName=node))


def mirror(uid: str, name: str = MD5) -> Pod:
    return pod(uid, owner=OWNER, hash=name, mirror=name)


def test_the_hash_of_a_mirror_pod_of_its_node_is_its_cgroups_name() -> None:
    names = cgroup_names([pod("a"), mirror("m")])
    assert names.uids == {"a": "a", "m": "m", MD5: "m"}
    assert (names.hashes, names.problems) == ({"m": MD5}, ())


@pytest.mark.parametrize(
    "claimant",
    [
        pod("m", hash=MD5),
        pod("m", hash=MD5, mirror=MD5),
        pod("m", owner=OWNER, hash=MD5),
        pod("m", owner=OWNER, hash=MD5, mirror="x"),
        pod("m", owner=OwnerReference("Node", "n2"), hash=MD5, mirror=MD5),
        pod("m", owner=OwnerReference("ReplicaSet", "n1"), hash=MD5, mirror=MD5),
        pod("m", owner=OwnerReference("Node", ""), node="", hash=MD5, mirror=MD5),
        mirror("m", ""),
        mirror("m", "../x"),
        mirror("m", "a" * 129),
    ],
)
def test_a_hash_that_is_not_the_kubelets_names_nothing(claimant: Pod) -> None:
    assert cgroup_names([claimant]).uids == {"m": "m"}


def test_an_uid_is_always_its_own_pods() -> None:
    for pods in ([pod("web"), mirror("evil", "web")], [mirror("evil", "web"), pod("web")]):
        names = cgroup_names(pods)
        assert (names.uids, names.hashes) == ({"web": "web", "evil": "evil"}, {})
        assert names.problems == (
            "pod ns/evil: annotation kubernetes.io/config.hash is 'web', which is the UID of pod ns/web:"
            " it does not count",
        )


def test_a_hash_that_two_claim_has_no_owner() -> None:
    names = cgroup_names([mirror("a"), mirror("b"), mirror("c"), mirror("d")])
    assert names.hashes == {} and MD5 not in names.uids
    (problem,) = names.problems
    assert problem.startswith("pod ns/a: ") and problem.endswith("as do ns/b, ns/c: it counts for none of them")


def test_many_claims_are_few_short_sentences() -> None:
    pods = [pod(f"u{n}-{'x' * 300}") for n in range(300)]
    pods += [mirror(f"evil-{n}", f"u{n}-{'x' * 300}") for n in range(300)]
    problems = cgroup_names(pods).problems
    assert len(problems) == 9 and problems[-1] == "292 more pods claim the cgroup of another one"
    assert len(problems[0].partition(", which is")[0]) < 200


def test_the_form_of_an_api_servers_uid() -> None:
    assert is_api_uid("3f6f1c2e-8a0b-4e6e-9d3f-0123456789ab")
    assert not is_api_uid(MD5)
    assert not is_api_uid("3f6f1c2e-8a0b-4e6e-9d3f-0123456789ab\n")


def test_a_pod_whose_hash_is_its_own_uid_claims_nothing() -> None:
    for each in (mirror("m", "m"), pod("m", hash="m")):
        names = cgroup_names([each])
        assert (names.uids, names.hashes, names.problems) == ({"m": "m"}, {}, ())
