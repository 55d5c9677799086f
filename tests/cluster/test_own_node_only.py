"""What deploy/components/own-node-only leaves to an agent that was compromised, on a real API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from koordebpf.errors import KubeConflict, KubeDenied, KubeGone
from koordebpf.kube.clients.deletions import PodDeletions
from koordebpf.kube.clients.evictions import KubeActions
from koordebpf.kube.clients.taints import NodeMarks
from koordebpf.kube.http.transport import open_cluster
from koordebpf.slo.katalyst import TAINT_PREFIX
from koordebpf.strategies.katalyst.taints import OWNED, KatalystTaints
from tests.cluster.api import Api, Object, Refused
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import BASE, NAMESPACE, documents, node
from tests.cluster.own_node import POLICIES, Tenant, client, client_of_node
from tests.contract.apiserver import until

TIMEOUT_S = 5.0
COMPONENTS = BASE.parent / "components"
MARKS = COMPONENTS / "node-mark/rbac.yaml"
DELETION = COMPONENTS / "pod-deletion/rbac.yaml"
KATALYST = COMPONENTS / "katalyst/rbac.yaml"
ALLOWED = {"koordebpf.io/eviction": "own-node"}
MERGE = "application/strategic-merge-patch+json"
POLICY = "ValidatingAdmissionPolicy"


@pytest.fixture(scope="module", autouse=True)
def policies(cluster: ControlPlane) -> Iterator[None]:
    """The component, in force."""
    made = [*documents(MARKS), *documents(DELETION), *documents(KATALYST), *documents(POLICIES)]
    cluster.api.create(*made)
    try:
        await_policies(cluster)
        yield
    finally:
        for each in made:
            cluster.api.delete(each)
    # Nor does it forget them at once, and the cluster is other tests' too.
    after = Tenant(cluster, "default")
    acts = KubeActions(open_cluster(after.kubeconfig(None)), after.here)
    until(lambda: not refusal(lambda: evict(acts, after.pod(after.here))), "the end of the policies of evictions")
    until(lambda: not refusal(lambda: record(acts, after.pod(after.here))), "the end of the policy of Events")
    until(
        lambda: "names no node" not in refusal(lambda: remove(acts, after.pod(after.here))),
        "the end of the policy of deletions",
    )
    acts.close()
    after.close()


# The API server looks for new policies each second; each of them is waited for.
def await_policies(cluster: ControlPlane) -> None:
    probe = Tenant(cluster, "default")
    acts = KubeActions(open_cluster(probe.kubeconfig(None)), probe.here)
    one = probe.pod(probe.here)
    until(lambda: "names no node" in refusal(lambda: evict(acts, one)), "the policy of evictions")
    until(lambda: "names no node" in refusal(lambda: record(acts, one)), "the policy of Events")
    # Of a pod that terminates already no policy is asked.
    until(lambda: "names no node" in refusal(lambda: remove(acts, probe.pod(probe.here))), "the policy of deletions")
    marks = NodeMarks(acts._transport, probe.here)

    # A taint that was put before the policy was in force is put no second time.
    def put_again() -> None:
        cluster.api.patch(node(probe.here), {"spec": {"taints": None}})
        marks.put("taint", at=datetime.now(UTC), timeout_s=TIMEOUT_S)

    until(lambda: "the token is for Node" in refusal(put_again), "the policy of marks")
    acts.close()
    probe.close()


@pytest.fixture
def tenant(cluster: ControlPlane, namespace: str) -> Iterator[Tenant]:
    cluster.api.patch({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, labelled(ALLOWED))
    tenant = Tenant(cluster, namespace)
    yield tenant
    tenant.close()


@pytest.fixture
def agent(tenant: Tenant) -> Iterator[KubeActions]:
    """The agent's own client with its own token: what it sends is what it always sends."""
    actions = KubeActions(open_cluster(tenant.kubeconfig(tenant.here)), tenant.here)
    yield actions
    actions.close()


@pytest.fixture
def forged(tenant: Tenant) -> Api:
    """An attacker with the token of the agent on node `here`."""
    return client(tenant, tenant.here)


def labelled(labels: dict[str, str | None]) -> Object:
    return {"metadata": {"labels": labels}}


def evict(actions: KubeActions, one: Object) -> None:
    metadata = one["metadata"]
    actions.evict(metadata["namespace"], metadata["name"], metadata["uid"], timeout_s=TIMEOUT_S)


def remove(actions: KubeActions, one: Object, grace_s: int | None = None) -> None:
    metadata = one["metadata"]
    deletions = PodDeletions(actions._transport)
    deletions.delete(metadata["namespace"], metadata["name"], metadata["uid"], timeout_s=TIMEOUT_S, grace_s=grace_s)


def record(actions: KubeActions, one: Object) -> None:
    metadata = one["metadata"]
    actions.create_event(
        metadata["namespace"], metadata["name"], metadata["uid"],
        reason="evictPodSuccess", message="it went", at=datetime.now(UTC), timeout_s=TIMEOUT_S,
    )  # fmt: skip


def record_on_node(actions: KubeActions, name: str) -> None:
    actions.create_event(
        "", name, name,
        reason="EvictionSoon", message="soon", at=datetime.now(UTC), timeout_s=TIMEOUT_S, about="Node",
    )  # fmt: skip


def refusal(act: Callable[[], object]) -> str:
    """Return what the API server says against it, empty: nothing."""
    try:
        act()
    except (KubeDenied, Refused) as refused:
        return str(refused)
    except KubeConflict:
        return ""
    return ""


def send(api: Api, one: Object, options: Object | None, version: str = "policy/v1") -> None:
    """Send an Eviction with these deleteOptions."""
    metadata = {"name": one["metadata"]["name"], "namespace": one["metadata"]["namespace"]}
    body: Object = {"apiVersion": version, "kind": "Eviction", "metadata": metadata}
    if options is not None:
        body["deleteOptions"] = options
    api.call("POST", f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/eviction", body)


def exactly(one: Object, **more: object) -> Object:
    return {"preconditions": {"uid": one["metadata"]["uid"]}, **more}


class TestEvictions:
    def test_the_agent_evicts_on_its_own_node_as_before(self, tenant: Tenant, agent: KubeActions) -> None:
        one = tenant.pod(tenant.here)
        evict(agent, one)
        assert not tenant.is_there(one)
        tenant.cluster.api.delete(one, gracePeriodSeconds=0)
        with pytest.raises(KubeGone, match="not found"):
            evict(agent, one)

    def test_no_pod_of_another_node_can_be_evicted(self, tenant: Tenant, agent: KubeActions) -> None:
        tenant.pod(tenant.here)
        one = tenant.pod(tenant.elsewhere)
        with pytest.raises(KubeDenied, match=f"denied request: the pod does not run on {tenant.here}$") as denied:
            evict(agent, one)
        assert denied.value.by_policy
        assert tenant.is_there(one)

    def test_another_nodes_token_is_for_that_node(self, tenant: Tenant) -> None:
        one = tenant.pod(tenant.here)
        with pytest.raises(Refused, match=f"the pod does not run on {tenant.elsewhere}"):
            send(client(tenant, tenant.elsewhere), one, exactly(one))
        assert tenant.is_there(one)

    def test_a_token_that_is_bound_to_nothing_is_refused(self, tenant: Tenant) -> None:
        one = tenant.pod(tenant.here)
        with pytest.raises(Refused, match="the token names no node"):
            send(client(tenant, None), one, exactly(one))
        assert tenant.is_there(one)

    def test_a_token_that_is_bound_to_the_node_alone_is_refused(self, tenant: Tenant) -> None:
        one = tenant.pod(tenant.here)
        with pytest.raises(Refused, match="the token names no node"):
            send(client_of_node(tenant), one, exactly(one))
        assert tenant.is_there(one)

    @pytest.mark.parametrize("version", ["policy/v1", "policy/v1beta1"])
    @pytest.mark.parametrize("options", [None, {}, {"preconditions": {}}, {"preconditions": {"uid": ""}}], ids=str)
    def test_a_name_alone_is_refused(self, options: Object | None, version: str, tenant: Tenant, forged: Api) -> None:
        one = tenant.pod(tenant.here)
        with pytest.raises(Refused, match=r"preconditions\.uid is missing"):
            send(forged, one, options, version)
        assert tenant.is_there(one)

    def test_the_name_of_another_nodes_pod_is_none_of_its_own(self, tenant: Tenant, forged: Api) -> None:
        mine, one = tenant.pod(tenant.here), tenant.pod(tenant.elsewhere)
        with pytest.raises(Refused, match="the pod does not run on"):
            send(forged, one, exactly(mine))
        assert tenant.is_there(one)

    @pytest.mark.parametrize("grace_s", [0, -1])
    def test_a_pod_is_not_taken_away_before_its_processes_ended(
        self, grace_s: int, tenant: Tenant, forged: Api
    ) -> None:
        one = tenant.pod(tenant.here)
        with pytest.raises(Refused, match="gracePeriodSeconds must be at least 1"):
            send(forged, one, exactly(one, gracePeriodSeconds=grace_s))
        assert tenant.is_there(one)

    def test_a_shorter_grace_period_is_allowed(self, tenant: Tenant, forged: Api) -> None:
        one = tenant.pod(tenant.here)
        send(forged, one, exactly(one, gracePeriodSeconds=1))
        assert not tenant.is_there(one)

    @pytest.mark.parametrize("namespace", ["kube-system", NAMESPACE])
    def test_no_label_opens_these_namespaces(self, namespace: str, tenant: Tenant, forged: Api) -> None:
        whole = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        tenant.cluster.api.patch(whole, labelled(ALLOWED))
        one = tenant.pod(tenant.here, namespace)
        try:
            with pytest.raises(Refused, match=f"no pod of namespace {namespace} is ever evicted"):
                send(forged, one, exactly(one))
        finally:
            tenant.cluster.api.patch(whole, labelled(dict.fromkeys(ALLOWED)))
        assert tenant.is_there(one)

    def test_a_namespace_that_was_not_opened_stays_closed(self, tenant: Tenant, forged: Api) -> None:
        one = tenant.pod(tenant.here, "default")
        with pytest.raises(Refused, match=r"namespace default has no label koordebpf\.io/eviction=own-node"):
            send(forged, one, exactly(one))
        assert tenant.is_there(one)

    def test_where_any_node_is_allowed_the_rest_holds(self, tenant: Tenant, forged: Api) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": tenant.namespace}}
        tenant.cluster.api.patch(namespace, labelled({"koordebpf.io/eviction": "any-node"}))
        one, another = tenant.pod(tenant.elsewhere), tenant.pod(tenant.elsewhere)
        # The API server knows of the label a moment later.
        until(lambda: not refusal(lambda: send(forged, one, exactly(one))), "an eviction on another node")
        with pytest.raises(Refused, match=r"preconditions\.uid is missing"):
            send(forged, another, None)
        critical = tenant.pod(tenant.elsewhere, priority="system-node-critical")
        with pytest.raises(Refused, match="the pod is system-critical"):
            send(forged, critical, exactly(critical))
        assert tenant.is_there(critical)

    def test_system_critical_pods_stay(self, tenant: Tenant, forged: Api) -> None:
        one = tenant.pod(tenant.here, priority="system-node-critical")
        with pytest.raises(Refused, match="the pod is system-critical"):
            send(forged, one, exactly(one))
        assert tenant.is_there(one)

    def test_no_other_is_asked_for_any_of_it(self, tenant: Tenant) -> None:
        one = tenant.pod(tenant.elsewhere)
        send(tenant.cluster.api, one, None)
        assert not tenant.is_there(one)


def send_deletion(api: Api, one: Object, options: Object | None) -> None:
    """Send a DELETE with these DeleteOptions."""
    metadata = one["metadata"]
    body = None if options is None else {"apiVersion": "v1", "kind": "DeleteOptions", **options}
    api.call("DELETE", f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}", body)


class TestDeletions:
    def test_the_agent_deletes_on_its_own_node(self, tenant: Tenant, agent: KubeActions) -> None:
        one = tenant.pod(tenant.here)
        remove(agent, one, grace_s=1)
        assert not tenant.is_there(one)

    @pytest.mark.parametrize("label", ["own-node", "any-node"])
    def test_no_pod_of_another_node_can_be_deleted(self, label: str, tenant: Tenant, agent: KubeActions) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": tenant.namespace}}
        tenant.cluster.api.patch(namespace, labelled({"koordebpf.io/eviction": label}))
        one = tenant.pod(tenant.elsewhere)
        with pytest.raises(KubeDenied, match=f"the pod does not run on {tenant.here}$"):
            remove(agent, one)
        assert tenant.is_there(one)

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            (None, r"preconditions\.uid is missing"),
            ({}, r"preconditions\.uid is missing"),
            ({"gracePeriodSeconds": 0}, "gracePeriodSeconds must be at least 1"),
        ],
        ids=str,
    )
    def test_what_is_refused_of_evictions_is_refused_of_deletions(
        self, options: Object | None, why: str, tenant: Tenant, forged: Api
    ) -> None:
        one = tenant.pod(tenant.here)
        sent = exactly(one, **options) if options and "gracePeriodSeconds" in options else options
        with pytest.raises(Refused, match=why):
            send_deletion(forged, one, sent)
        assert tenant.is_there(one)

    def test_namespaces_that_were_not_opened_and_critical_pods_stay(self, tenant: Tenant, forged: Api) -> None:
        closed = tenant.pod(tenant.here, "default")
        with pytest.raises(Refused, match="namespace default has no label"):
            send_deletion(forged, closed, exactly(closed))
        critical = tenant.pod(tenant.here, priority="system-node-critical")
        with pytest.raises(Refused, match="the pod is system-critical"):
            send_deletion(forged, critical, exactly(critical))
        assert tenant.is_there(closed)
        assert tenant.is_there(critical)

    def test_no_other_is_asked_for_any_of_it(self, tenant: Tenant) -> None:
        one = tenant.pod(tenant.elsewhere)
        send_deletion(tenant.cluster.api, one, {})
        assert not tenant.is_there(one)


class TestEvents:
    def test_the_agent_records_as_before(self, tenant: Tenant, agent: KubeActions) -> None:
        one = tenant.pod(tenant.here)
        record(agent, one)
        query = {"fieldSelector": f"involvedObject.uid={one['metadata']['uid']}"}
        (event,) = tenant.cluster.api.items("v1", "Event", tenant.namespace, **query)
        assert event["reportingInstance"] == tenant.here

    def test_of_nodes_it_records_on_its_own_alone(self, tenant: Tenant, agent: KubeActions) -> None:
        said_of_other = f"involvedObject must be a Pod or Node {tenant.here}"
        for name, said in ((tenant.here, ""), (tenant.elsewhere, said_of_other)):
            refused = refusal(lambda name=name: record_on_node(agent, name))  # type: ignore[misc]
            assert (said in refused, bool(refused)) == (True, bool(said))

    def test_none_is_in_another_nodes_name(self, tenant: Tenant) -> None:
        one = tenant.pod(tenant.here)
        other = KubeActions(open_cluster(tenant.kubeconfig(tenant.elsewhere)), tenant.here)
        with pytest.raises(KubeDenied, match=f"reportingInstance must be {tenant.elsewhere}"):
            record(other, one)
        other.close()

    @pytest.mark.parametrize("kind", ["Deployment", "Secret", "PersistentVolume", ""])
    def test_none_is_about_anything_else(self, kind: str, tenant: Tenant, forged: Api) -> None:
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "e", "namespace": tenant.namespace},
            "involvedObject": {"kind": kind, "name": tenant.here, "namespace": tenant.namespace},
            "source": {"component": "koordebpf", "host": tenant.here},
            "reportingComponent": "koordebpf",
            "reportingInstance": tenant.here,
        }
        with pytest.raises(Refused, match=f"involvedObject must be a Pod or Node {tenant.here}"):
            forged.create(event)

    def test_none_is_in_anothers_name(self, tenant: Tenant, forged: Api) -> None:
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "e", "namespace": tenant.namespace},
            "involvedObject": {"namespace": tenant.namespace},
            "source": {"component": "kubelet", "host": tenant.here},
            "reportingComponent": "kubelet",
            "reportingInstance": tenant.here,
        }
        with pytest.raises(Refused, match="reportingComponent must be koordebpf"):
            forged.create(event)


class TestMarks:
    @pytest.fixture
    def marks(self, tenant: Tenant) -> Iterator[NodeMarks]:
        marks = NodeMarks(open_cluster(tenant.kubeconfig(tenant.here)), tenant.here)
        yield marks
        marks.close()

    def test_the_agent_marks_its_own_node_as_before(self, tenant: Tenant, marks: NodeMarks) -> None:
        other = {"key": "team", "value": "a", "effect": "NoSchedule"}
        tenant.cluster.api.patch(node(tenant.here), {"spec": {"taints": [other]}})
        for mark in ("taint", "condition"):
            assert marks.put(mark, at=datetime.now(UTC), timeout_s=TIMEOUT_S)  # type: ignore[arg-type]
        assert marks.remove(timeout_s=TIMEOUT_S)
        now = tenant.cluster.api.get(node(tenant.here))
        assert now is not None
        assert now["spec"]["taints"] == [other]

    @pytest.mark.parametrize("mark", ["taint", "condition"])
    def test_no_other_node_is_marked(self, mark: Any, tenant: Tenant) -> None:
        other = NodeMarks(open_cluster(tenant.kubeconfig(tenant.here)), tenant.elsewhere)
        with pytest.raises(KubeDenied, match=f"the token is for Node {tenant.here}"):
            other.put(mark, at=datetime.now(UTC), timeout_s=TIMEOUT_S)
        other.close()

    @pytest.mark.parametrize("subresource", ["", "/status"])
    @pytest.mark.parametrize(
        "change",
        [
            {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
            {"metadata": {"finalizers": ["a.example/b"]}},
        ],
        ids=lambda change: next(iter(change["metadata"])),
    )
    def test_metadata_stay(self, change: Object, subresource: str, tenant: Tenant, forged: Api) -> None:
        with pytest.raises(Refused, match="only the taint and the condition of koordebpf"):
            forged.call("PATCH", f"/api/v1/nodes/{tenant.here}{subresource}", change, MERGE)

    @pytest.mark.parametrize("subresource", ["", "/status"])
    @pytest.mark.parametrize("value", ["b", "new", None])
    def test_annotations_stay(self, value: str | None, subresource: str, tenant: Tenant, forged: Api) -> None:
        tenant.cluster.api.patch(node(tenant.here), {"metadata": {"annotations": {"a": "old"}}})
        key = "another" if value == "new" else "a"
        with pytest.raises(Refused, match=r"of annotations only koordebpf\.io/katalyst-taints may be changed"):
            change = {"metadata": {"annotations": {key: value}}}
            forged.call("PATCH", f"/api/v1/nodes/{tenant.here}{subresource}", change, MERGE)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"spec": {"unschedulable": True}}, "only the taint and the condition of koordebpf"),
            ({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}, "of taints only"),
            ({"spec": {"taints": [{"key": "koordebpf.io/memory-pressure", "effect": "NoExecute"}]}}, "NoExecute"),
        ],
    )
    def test_the_rest_of_its_spec_stays(self, change: Object, said: str, tenant: Tenant, forged: Api) -> None:
        tenant.cluster.api.patch(node(tenant.here), {"spec": {"taints": None}})
        with pytest.raises(Refused, match=said):
            forged.call("PATCH", f"/api/v1/nodes/{tenant.here}", change, MERGE)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"capacity": {"memory": "1Ti"}}, "only the taint and the condition of koordebpf"),
            ({"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}, "only the taint and the condition"),
            ({"conditions": [{"type": "Ready", "status": "False"}]}, "of conditions only"),
        ],
    )
    def test_the_rest_of_its_status_stays(self, change: Object, said: str, tenant: Tenant, forged: Api) -> None:
        with pytest.raises(Refused, match=said):
            forged.call("PATCH", f"/api/v1/nodes/{tenant.here}/status", {"status": change}, MERGE)


PRESSURE = f"{TAINT_PREFIX}MemoryPressure"
MINE = {"key": PRESSURE, "effect": "NoSchedule"}
FOREIGN = {"key": f"{TAINT_PREFIX}Foreign", "value": "a", "effect": "NoSchedule"}
LIST = f"{PRESSURE}:NoSchedule"
FOREIGN_LIST = f"{TAINT_PREFIX}Foreign:NoSchedule"


class TestKatalystTaints:
    """Of the taints with Katalyst's prefix those that the agent has set, which the Node's annotation lists."""

    @pytest.fixture
    def mine(self, tenant: Tenant) -> Iterator[KatalystTaints]:
        taints = KatalystTaints(open_cluster(tenant.kubeconfig(tenant.here)), tenant.here, TAINT_PREFIX)
        yield taints
        taints.close()

    def put(self, api: Api, tenant: Tenant, taints: list[Object], listed: str | None, subresource: str = "") -> None:
        change = {"metadata": {"annotations": {OWNED: listed}}, "spec": {"taints": taints or None}}
        api.call("PATCH", f"/api/v1/nodes/{tenant.here}{subresource}", change, MERGE)

    def now(self, tenant: Tenant) -> tuple[list[Object], str | None]:
        found: Any = tenant.cluster.api.get(node(tenant.here))
        return found["spec"].get("taints", []), found["metadata"].get("annotations", {}).get(OWNED)

    def test_the_agent_sets_and_removes_its_own_as_before(self, tenant: Tenant, mine: KatalystTaints) -> None:
        self.put(tenant.cluster.api, tenant, [FOREIGN], None)
        both = {(PRESSURE, "NoSchedule"), (f"{TAINT_PREFIX}Disk", "PreferNoSchedule")}
        assert mine.set_to(both, timeout_s=TIMEOUT_S)
        assert len(self.now(tenant)[0]) == 3
        assert mine.set_to({(PRESSURE, "NoSchedule")}, timeout_s=TIMEOUT_S)
        assert self.now(tenant) == ([FOREIGN, MINE], LIST)
        assert mine.set_to((), timeout_s=TIMEOUT_S)
        assert self.now(tenant) == ([FOREIGN], None)

    def test_what_an_administrator_took_away_is_no_obstacle(self, tenant: Tenant, mine: KatalystTaints) -> None:
        mine.set_to({(PRESSURE, "NoSchedule")}, timeout_s=TIMEOUT_S)
        self.put(tenant.cluster.api, tenant, [], LIST)
        marks = NodeMarks(open_cluster(tenant.kubeconfig(tenant.here)), tenant.here)
        assert marks.put("taint", at=datetime.now(UTC), timeout_s=TIMEOUT_S)
        assert marks.remove(timeout_s=TIMEOUT_S)
        marks.close()
        assert mine.set_to((), timeout_s=TIMEOUT_S)
        assert self.now(tenant) == ([], None)

    def test_no_other_node_is_tainted(self, tenant: Tenant) -> None:
        other = KatalystTaints(open_cluster(tenant.kubeconfig(tenant.here)), tenant.elsewhere, TAINT_PREFIX)
        with pytest.raises(KubeDenied, match=f"the token is for Node {tenant.here}"):
            other.set_to({(PRESSURE, "NoSchedule")}, timeout_s=TIMEOUT_S)
        other.close()

    @pytest.mark.parametrize(
        ("taints", "listed", "said"),
        [
            ([], None, "is another component's"),
            ([{**FOREIGN, "value": "b"}], None, "is another component's"),
            ([FOREIGN], FOREIGN_LIST, "only taints that the agent has set itself"),
            ([], FOREIGN_LIST, "is another component's"),
            ([FOREIGN, MINE], None, r"must be in koordebpf\.io/katalyst-taints"),
            ([FOREIGN], LIST, "only taints that the agent has set itself"),
            ([FOREIGN, {"key": "team", "effect": "NoSchedule"}], "team:NoSchedule", "of taints only"),
            (
                [FOREIGN, {**MINE, "effect": "NoExecute"}],
                f"{PRESSURE}:NoExecute",
                "no taint may have the effect NoExec",
            ),
        ],
    )
    def test_those_of_others_stay_and_are_not_taken_over(
        self, taints: list[Object], listed: str | None, said: str, tenant: Tenant, forged: Api
    ) -> None:
        self.put(tenant.cluster.api, tenant, [FOREIGN], None)
        with pytest.raises(Refused, match=said):
            self.put(forged, tenant, taints, listed)
        assert self.now(tenant) == ([FOREIGN], None)

    def test_none_is_kept_on_the_list_for_another_component_to_lose(self, tenant: Tenant, forged: Api) -> None:
        self.put(tenant.cluster.api, tenant, [], None)
        self.put(forged, tenant, [MINE], LIST)
        with pytest.raises(Refused, match="only taints that the agent has set itself"):
            self.put(forged, tenant, [], LIST)
        with pytest.raises(Refused, match="only taints that the agent has set itself"):
            self.put(forged, tenant, [], f"{LIST},{FOREIGN_LIST}", "/status")


def test_without_the_rights_of_the_component_its_taints_are_refused(tenant: Tenant, forged: Api) -> None:
    (binding,) = (each for each in documents(KATALYST) if each["kind"] == "ClusterRoleBinding")
    taints, api = TestKatalystTaints(), tenant.cluster.api
    taints.put(api, tenant, [FOREIGN, MINE], LIST)
    api.delete(binding)
    try:
        # The API server knows of the right a moment longer.
        until(lambda: "of taints only" in refusal(lambda: put_another(forged, tenant)), "the end of the right")
        for left in ([FOREIGN], [MINE], [FOREIGN, {**MINE, "value": "b"}]):
            with pytest.raises(Refused, match="of taints only"):
                taints.put(forged, tenant, left, LIST)
        # AND the mark of koordebpf is put beside them.
        marks = NodeMarks(open_cluster(tenant.kubeconfig(tenant.here)), tenant.here)
        assert marks.put("taint", at=datetime.now(UTC), timeout_s=TIMEOUT_S)
        assert marks.remove(timeout_s=TIMEOUT_S)
        marks.close()
        assert taints.now(tenant) == ([FOREIGN, MINE], LIST)
    finally:
        api.create(binding)
    until(lambda: not refusal(lambda: put_another(forged, tenant)), "the right")


def put_another(api: Api, tenant: Tenant) -> None:
    """Ask for one more of Katalyst's taints, as a dry run."""
    another = {"key": f"{TAINT_PREFIX}Disk", "effect": "NoSchedule"}
    change = {
        "metadata": {"annotations": {OWNED: f"{LIST},{another['key']}:NoSchedule"}},
        "spec": {"taints": [FOREIGN, MINE, another]},
    }
    api.call("PATCH", f"/api/v1/nodes/{tenant.here}?dryRun=All", change, MERGE)


def test_the_policies_are_right_by_their_types(cluster: ControlPlane) -> None:
    for one in documents(POLICIES):
        if one["kind"] == POLICY:
            status = until(lambda one=one: (cluster.api.get(one) or {}).get("status"), "the types are checked")
            assert "expressionWarnings" not in status.get("typeChecking", {}), one["metadata"]["name"]
