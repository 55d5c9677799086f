"""Every verb that deploy/ allows, on a real API server: all are used, and each one that is missing is missed."""

from __future__ import annotations

import contextlib
import copy
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
import yaml

from koordebpf.errors import KubeError
from koordebpf.kube.cache.reflector import Pace
from koordebpf.kube.clients.cnr_taints import CnrTaints
from koordebpf.kube.clients.deletions import PodDeletions
from koordebpf.kube.clients.evictions import KubeActions
from koordebpf.kube.clients.taints import NodeMarks
from koordebpf.kube.config_map import CONFIG_MAP
from koordebpf.kube.http.transport import open_cluster
from koordebpf.kube.sources.api import ApiSource, Wanted
from tests.cluster.accounts import resource_of
from tests.cluster.api import Object
from tests.cluster.binaries import Binaries
from tests.cluster.cnr import cnr, defined
from tests.cluster.control_plane import ControlPlane, control_plane
from tests.cluster.objects import AGENT, BASE, node, nodeslo, pod, running
from tests.cluster.topologies import defined as topologies_defined
from tests.contract.apiserver import until
from tests.support.patience import patience

_GROUP = "rbac.authorization.k8s.io"
_COMPONENTS = ("node-mark", "namespace-labels", "pod-deletion", "katalyst")
_FILES = (BASE / "rbac.yaml", *(BASE.parent / "components" / name / "rbac.yaml" for name in _COMPONENTS))
CONTROLLER = "koordebpf-controller"
TIMEOUT_S = 5.0
Pair = tuple[str, str]  # resource and verb
CONFIG_MAPS = {("configmaps", "list"), ("configmaps", "watch")}
# What is done once, and not by who reads.
ACTS = {
    ("pods/eviction", "create"), ("pods", "delete"), ("events", "create"),
    ("nodes", "get"), ("nodes", "patch"), ("nodes/status", "patch"),
    ("customnoderesources", "get"), ("customnoderesources", "patch"),
}  # fmt: skip


class Right(msgspec.Struct, frozen=True):
    """One verb of one rule, and the role that it is of."""

    account: str
    role: str
    kind: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.role}: {self.verb} {self.resource}"


def roles_of(account: str) -> list[Object]:
    """Return the roles that are bound to an account, with one verb a rule."""
    objects = [one for path in _FILES for one in yaml.safe_load_all(path.read_text()) if one]
    bound = {
        (one["roleRef"]["kind"], one["roleRef"]["name"])
        for one in objects
        if account in [subject["name"] for subject in one.get("subjects", ())]
    }
    roles = [copy.deepcopy(one) for one in objects if (one["kind"], one["metadata"]["name"]) in bound]
    for role in roles:
        role["rules"] = [
            rule | {"resources": [resource], "verbs": [verb]}
            for rule in role["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        ]
    return roles


def rights_of(account: str) -> list[Right]:
    return [
        Right(account, role["metadata"]["name"], role["kind"], rule["resources"][0], rule["verbs"][0])
        for role in roles_of(account)
        for rule in role["rules"]
    ]


def is_about(rule: Object, right: Right) -> bool:
    """Tell whether a rule of one verb allows what the right does."""
    return (rule["resources"], rule["verbs"]) == ([right.resource], [right.verb])


def comes_true(condition: Callable[[], object], timeout_s: float = 30) -> bool:
    """Tell whether it does. Now and then only: to ask is to read the whole audit log."""
    deadline = time.monotonic() + patience(timeout_s)
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


class Account:
    """An account of a test's own that may all that the one of deploy/ may, but for one right."""

    def __init__(self, cluster: ControlPlane, namespace: str, of: str, without: Right | None) -> None:
        self._cluster = cluster
        self._user = f"system:serviceaccount:{namespace}:{of}"
        self._made: list[Object] = []
        cluster.api.create(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": of, "namespace": namespace}}
        )
        for role in roles_of(of):
            if without and role["kind"] == without.kind:
                # Two components may allow the same.
                role["rules"] = [rule for rule in role["rules"] if not is_about(rule, without)]
            rules = role["rules"]
            self._bind(role, namespace, of)
            until(lambda rules=rules: all(self._may(rule, namespace) for rule in rules), "the rights")
        self.kubeconfig = cluster.service_account(namespace, of)

    def asked(self, *, only_refused: bool = False) -> set[Pair]:
        """Return what this account has asked for."""
        return {
            (resource_of(request), request["verb"])
            for request in self._cluster.requests()
            if request["user"]["username"] == self._user
            and resource_of(request)
            and (not only_refused or request["responseStatus"]["code"] == 403)
        }

    def waits_for(self, wanted: set[Pair], timeout_s: float) -> bool:
        """Tell whether the audit log has all of that within that time."""
        return comes_true(lambda: wanted <= self.asked(), timeout_s)

    def close(self) -> None:
        for one in self._made:
            self._cluster.api.delete(one)

    def _bind(self, of: Object, namespace: str, account: str) -> None:
        kind = of["kind"]
        # A Role is about the lease, which is in the test's namespace here.
        place = {"namespace": namespace} if kind == "Role" else {}
        metadata = {"name": f"{namespace}-{of['metadata']['name']}", **place}
        role = {"apiVersion": f"{_GROUP}/v1", "kind": kind, "metadata": metadata, "rules": of["rules"]}
        binding = {
            "apiVersion": f"{_GROUP}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
            "roleRef": {"apiGroup": _GROUP, "kind": kind, "name": metadata["name"]},
        }
        self._cluster.api.create(role, binding)
        self._made += [role, binding]

    # A role is known a moment after it was made.
    def _may(self, rule: Object, namespace: str) -> bool:
        resource, _, subresource = rule["resources"][0].partition("/")
        attributes = {
            "group": rule["apiGroups"][0],
            "resource": resource,
            "subresource": subresource,
            "verb": rule["verbs"][0],
            "name": rule.get("resourceNames", [""])[0],
            "namespace": namespace,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": self._user, "resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(self._cluster.api.call("POST", path, review)["status"]["allowed"])


@pytest.fixture(scope="module")
def topologies(cluster: ControlPlane) -> Iterator[None]:
    """The definition that Koordinator brings: what is not served cannot be watched."""
    with topologies_defined(cluster):
        yield


@pytest.fixture(scope="module")
def cnrs(cluster: ControlPlane) -> Iterator[None]:
    """The definition that Katalyst brings."""
    with defined(cluster):
        yield


@pytest.fixture(scope="module")
def bare(binaries: Binaries) -> Iterator[ControlPlane]:
    """A cluster that has no NodeSLOs: only there agents read the ConfigMap."""
    with control_plane(binaries.kubernetes) as plane:
        yield plane


def look_as_agent(account: Account, node_name: str, wanted: set[Pair]) -> None:
    """Read what an agent reads, until the audit log has it: a watch that was taken is, when it ends."""
    for hold_s in (0.5, 2, 8):
        pace, labels = Pace(first_s=0.05, cap_s=0.2), frozenset({"tier"})
        asked = Wanted(namespace_labels=labels, with_cnr=True)
        source = ApiSource(open_cluster(account.kubeconfig), node_name, pace, asked)
        try:
            source.start(lambda: None)
            account.waits_for({pair for pair in wanted if pair[1] == "list"}, 30)
            account.waits_for(wanted, hold_s)
        finally:
            source.close()
        if account.waits_for(wanted, 1):
            return


def act_as_agent(cluster: ControlPlane, account: Account, namespace: str, wanted: set[Pair]) -> None:
    """Do once everything for which an agent asks the API server, but for what it does without NodeSLOs."""
    where = cluster.api.create(node(f"{namespace}-node"))
    name = where["metadata"]["name"]
    one = cluster.api.create(pod("one", name, namespace=namespace))
    cluster.api.patch(one, {"status": running(one, secrets.token_hex(32))}, "status")
    actions = KubeActions(open_cluster(account.kubeconfig), name)
    marks = NodeMarks(open_cluster(account.kubeconfig), name)
    deletions = PodDeletions(open_cluster(account.kubeconfig))
    resource = cluster.api.create(cnr(name))
    taints = CnrTaints(open_cluster(account.kubeconfig), name, "test/")
    who = (namespace, "one", one["metadata"]["uid"])
    now = datetime.now(UTC)

    def record() -> None:
        actions.create_event(*who, reason="evictPodSuccess", message="it went", at=now, timeout_s=TIMEOUT_S)

    acts: list[Callable[[], object]] = [
        lambda: actions.evict(*who, timeout_s=TIMEOUT_S),
        lambda: deletions.delete(*who, timeout_s=TIMEOUT_S),
        record,
        lambda: marks.put("taint", at=now, timeout_s=TIMEOUT_S),
        lambda: marks.put("condition", at=now, timeout_s=TIMEOUT_S),
        lambda: taints.set_to({("test/a", "NoSchedule", "reclaimed_cores")}, at=now, timeout_s=TIMEOUT_S),
    ]
    try:
        for act in acts:
            with contextlib.suppress(KubeError):
                act()
        look_as_agent(account, name, wanted - ACTS)
    finally:
        for each in (actions, marks, deletions, taints):
            each.close()
        cluster.api.delete(where)
        cluster.api.delete(resource)


def granted(account: str) -> set[Pair]:
    return {(right.resource, right.verb) for right in rights_of(account)}


def act_as_controller(cluster: ControlPlane, account: Account, namespace: str, folder: Path) -> None:
    """Do once everything for which a controller asks the API server."""
    where = cluster.api.create(node(f"{namespace}-node"))
    name = where["metadata"]["name"]
    metadata = {"name": CONFIG_MAP.name, "namespace": CONFIG_MAP.namespace}
    config = cluster.api.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"resource-threshold-config": text(70)}}
    )
    command = [sys.executable, "-m", "koordebpf", "controller", "--listen=", f"--lease-namespace={namespace}"]

    def threshold() -> object:
        found = cluster.api.get(nodeslo(name))
        return found and found["spec"]["resourceUsedThresholdWithBE"]["memoryEvictThresholdPercent"]

    def is_refused() -> bool:
        return bool(account.asked(only_refused=True))

    def edit(value: str) -> None:
        cluster.api.patch(config, {"data": {"resource-threshold-config": value}})

    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--kubeconfig={account.kubeconfig}"], stderr=log)
    try:
        assert comes_true(lambda: threshold() == 70 or is_refused())
        edit(text(60))
        assert comes_true(lambda: threshold() == 60 or is_refused())
        edit(text(600))
        assert comes_true(lambda: ("events", "create") in account.asked() or is_refused())
    finally:
        process.terminate()
        process.wait(30)
        cluster.api.delete(config)
        cluster.api.delete(where)
        cluster.api.delete(nodeslo(name))


def text(percent: int) -> str:
    return json.dumps({"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": percent}})


def end_of(account: Account, wanted: set[Pair]) -> tuple[set[Pair], set[Pair]]:
    """Return what was asked and what of it was refused, once the log has what is wanted: it is behind the answers."""
    account.waits_for(wanted, 10)
    account.close()
    return account.asked(), account.asked(only_refused=True)


def read_without_nodeslos(bare: ControlPlane, without: Right | None) -> tuple[set[Pair], set[Pair]]:
    namespace = f"t-{secrets.token_hex(4)}"
    bare.add_namespace(namespace)
    account = Account(bare, namespace, AGENT, without)
    where = bare.api.create(node(f"{namespace}-node"))
    wanted = {(without.resource, without.verb)} if without else CONFIG_MAPS
    look_as_agent(account, where["metadata"]["name"], wanted)
    return end_of(account, wanted)


def act_on(
    cluster: ControlPlane, namespace: str, of: str, without: Right | None, folder: Path
) -> tuple[set[Pair], set[Pair]]:
    account = Account(cluster, namespace, of, without)
    if of == AGENT:
        wanted = {(without.resource, without.verb)} if without else granted(AGENT) - CONFIG_MAPS
        act_as_agent(cluster, account, namespace, wanted)
    else:
        wanted = {(without.resource, without.verb)} if without else granted(CONTROLLER)
        act_as_controller(cluster, account, namespace, folder)
    return end_of(account, wanted)


@pytest.mark.slow
def test_all_that_agents_are_allowed_is_used_and_nothing_is_refused(
    cluster: ControlPlane, bare: ControlPlane, topologies: None, cnrs: None, namespace: str, tmp_path: Path
) -> None:
    asked, refused = act_on(cluster, namespace, AGENT, None, tmp_path)
    asked_there, refused_there = read_without_nodeslos(bare, None)
    assert (refused, refused_there) == (set(), set())
    assert asked | asked_there == granted(AGENT)


def test_all_that_controllers_are_allowed_is_used_and_nothing_is_refused(
    cluster: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    asked, refused = act_on(cluster, namespace, CONTROLLER, None, tmp_path)
    assert refused == set()
    assert asked == granted(CONTROLLER)


@pytest.mark.slow
@pytest.mark.parametrize("right", [right for right in rights_of(AGENT) if right.resource != "configmaps"], ids=str)
def test_a_right_of_agents_that_is_missing_is_missed(
    right: Right, cluster: ControlPlane, topologies: None, cnrs: None, namespace: str, tmp_path: Path
) -> None:
    _, refused = act_on(cluster, namespace, AGENT, right, tmp_path)
    assert refused == {(right.resource, right.verb)}


@pytest.mark.slow
@pytest.mark.parametrize("right", [right for right in rights_of(AGENT) if right.resource == "configmaps"], ids=str)
def test_a_right_of_agents_that_is_missing_without_nodeslos_is_missed(right: Right, bare: ControlPlane) -> None:
    _, refused = read_without_nodeslos(bare, right)
    assert refused == {(right.resource, right.verb)}


@pytest.mark.slow
@pytest.mark.parametrize("right", rights_of(CONTROLLER), ids=str)
def test_a_right_of_controllers_that_is_missing_is_missed(
    right: Right, cluster: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    _, refused = act_on(cluster, namespace, CONTROLLER, right, tmp_path)
    assert refused == {(right.resource, right.verb)}
