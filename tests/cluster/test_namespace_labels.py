"""Exemptions by labels of namespaces, on a real API server: with the right of deploy/components, and without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from koordebpf.collect.cluster_view import ClusterView, frame_of
from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.kube.cache.reflector import Pace
from koordebpf.kube.http.transport import open_cluster
from koordebpf.kube.sources.api import ApiSource, Wanted
from koordebpf.policy.decide import decide
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import Plan
from koordebpf.state.build import view_of_frame
from koordebpf.state.measured import Measured, MemoryParts, NodeMeasure, PodMeasure
from koordebpf.state.pods.namespaces import ExemptionSettings, LabelExpression, NamespaceSelector, asked_labels
from koordebpf.units import GIB, MIB
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import AGENT, BASE, nodeslo, pod
from tests.contract.apiserver import until

RIGHT = BASE.parent / "components/namespace-labels/rbac.yaml"
PAID = frozenset({NamespaceSelector({"tier": "gold"}, (LabelExpression("trial", "DoesNotExist"),))})
SETTINGS = EvictSettings(exemptions=ExemptionSettings(policies=PAID))
Opens = Callable[[Path], ApiSource]


@pytest.fixture
def opened(cluster: ControlPlane, node_name: str, namespace: str) -> Iterator[Opens]:
    """Open a source by its kubeconfig; it has seen a pod whose annotation lets nothing evict it."""
    sources: list[ApiSource] = []

    def open_source(kubeconfig: Path) -> ApiSource:
        labels = asked_labels(SETTINGS.exemptions)
        pace = Pace(first_s=0.1, cap_s=1.0, slow_s=0.2)
        sources.append(ApiSource(open_cluster(kubeconfig), node_name, pace, Wanted(namespace_labels=labels)))
        sources[-1].start(lambda: None)
        state = sources[-1].state
        until(lambda: state().synced_at_ns and state().pods and state().nodeslo, "first sight")
        return sources[-1]

    spared = {"koordinator.sh/eviction-policy": "[]"}
    cluster.api.create(pod("spared", node_name, namespace=namespace, annotations=spared))
    yield open_source
    for source in sources:
        source.close()


@pytest.fixture(autouse=True)
def slo(cluster: ControlPlane, node_name: str) -> Iterator[None]:
    """The node's NodeSLO, gone afterwards: the controllers of other tests write none while they find one like it."""
    made = cluster.api.create(nodeslo(node_name, enable=True, memoryEvictThresholdPercent=80))
    yield
    cluster.api.delete(made)


@pytest.fixture
def allowed(cluster: ControlPlane, namespace: str) -> Iterator[Path]:
    """An account of the test's own with the agents' rights and that of the component."""
    made = []
    cluster.api.create(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": AGENT, "namespace": namespace}}
    )
    for path in (BASE / "rbac.yaml", RIGHT):
        for one in yaml.safe_load_all(path.read_text()):
            name = one["metadata"]["name"]
            if path == RIGHT and one["kind"] == "ClusterRole":
                made.append(cluster.api.create(one))
            if one["kind"] == "ClusterRoleBinding" and one["subjects"][0]["name"] == AGENT:
                subject = {"kind": "ServiceAccount", "name": AGENT, "namespace": namespace}
                bound = one | {"metadata": {"name": f"{namespace}-{name}"}, "subjects": [subject]}
                made.append(cluster.api.create(bound))
    yield cluster.service_account(namespace, AGENT)
    for one in made:  # of the whole cluster, which is other tests' too
        cluster.api.delete(one)


def plan_of(source: ApiSource) -> Plan:
    """Decide on what the source knows, and 900 MiB of use by the pods; the way is that of a written frame."""
    state = source.state()
    known = ClusterView(labels_max_age_ns=1 << 60)
    known.refresh_namespaces(state, 1)
    memory = MemoryParts(512 * MIB, 0, 512 * MIB, 0, 0, 0)
    pods = tuple(PodMeasure(each.uid, at + 1, memory) for at, each in enumerate(state.pods))
    measured = Measured(1, 0, NodeMeasure("machine", 3 * GIB, 2800 * MIB), pods)
    recorded = frame_of(
        replace(state, namespaces=known.namespaces), measured, feature_gates={"BEMemoryEvict": True}, executor="api"
    )
    running = [replace(each, status=replace(each.status, phase="Running")) for each in recorded.pods]
    recorded = decode_frame(encode_frame(replace(recorded, pods=tuple(running))), "frame")
    return decide(view_of_frame(recorded), SETTINGS)


def victims_of(source: ApiSource) -> list[str]:
    return [victim.candidate.name for victim in plan_of(source).victims]


def test_a_label_of_the_namespace_changes_the_victim(
    cluster: ControlPlane, allowed: Path, opened: Opens, namespace: str
) -> None:
    source = opened(allowed)
    until(lambda: source.state().namespaces, "its namespace")
    assert source.state().problems == ()
    assert victims_of(source) == ["spared"]
    (feature,) = plan_of(source).features
    assert [each.code for each in feature.not_honoured][:1] == ["policy"]
    where = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    for labels, counts in (({"tier": "gold"}, True), ({"trial": "1"}, False), ({"trial": None}, True)):
        cluster.api.patch(where, {"metadata": {"labels": labels}})
        until(lambda: victims_of(source) == ([] if counts else ["spared"]), str(labels))  # noqa: B023
    assert plan_of(source).undecided_namespaces == ()


def test_without_the_right_every_exemption_counts_and_both_say_so(
    agent_kubeconfig: Path, opened: Opens, namespace: str
) -> None:
    source = opened(agent_kubeconfig)
    until(lambda: any("namespaces" in each for each in source.state().problems), "the refusal")
    assert not source.state().is_denied
    assert victims_of(source) == []
    assert plan_of(source).undecided_namespaces == (namespace,)
