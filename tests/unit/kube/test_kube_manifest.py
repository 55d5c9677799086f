from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from koordebpf.errors import ConfigError
from koordebpf.kube.sources.manifest import parse_manifests

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: spark-1
  namespace: be
  uid: uid-1
  creationTimestamp: 2026-11-21T12:00:00Z
  labels: {koordinator.sh/qosClass: BE}
spec:
  priority: 5500
  containers:
    - name: c
      resources: {limits: {memory: 2Gi, cpu: 1}}
status: {phase: Running}
"""
NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {capacity: {memory: 16Gi, cpu: 8}}\n"
NODESLO = """
apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {name: n1}
spec:
  resourceUsedThresholdWithBE: {enable: true, memoryEvictThresholdPercent: 70}
"""
CONFIG = """
apiVersion: v1
kind: ConfigMap
metadata: {name: slo-controller-config, namespace: koordinator-system}
data:
  resource-threshold-config: |
    {"clusterStrategy": {"enable": true}}
"""


def pod(name: str, uid: str | None = None, **more: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "be", "uid": uid if uid is not None else f"uid-{name}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, **more}


def text(document: object) -> bytes:
    return json.dumps(document).encode()


def refused(texts: dict[str, bytes]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_manifests(texts)
    return caught.value


def test_many_documents_in_one_file() -> None:
    found = parse_manifests({"all.yaml": "---\n".join(["", POD, NODE, NODESLO, CONFIG, ""]).encode()})
    (got,) = found.pods
    assert got.key == "be/spark-1"
    assert got.spec.priority == 5500
    assert got.metadata.creationTimestamp == "2026-11-21T12:00:00Z"
    assert got.spec.containers[0].resources is not None
    assert got.spec.containers[0].resources.limits == {"memory": "2Gi", "cpu": 1}
    assert found.node is not None
    assert found.node.status.capacity == {"memory": "16Gi", "cpu": 8}
    assert found.nodeslo is not None
    spec = msgspec.json.decode(found.nodeslo)["spec"]
    assert spec == {"resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 70}}
    assert found.slo_controller_config == {
        "resource-threshold-config": '{"clusterStrategy": {"enable": true}}\n',
    }


PDB = """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, namespace: be, generation: 1}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
status: {observedGeneration: 1, disruptionsAllowed: 0, currentHealthy: 1, desiredHealthy: 1, expectedPods: 1}
"""


def test_disruption_budgets_are_read_with_what_they_allow() -> None:
    other = PDB.replace("web", "db").replace("Allowed: 0", "Allowed: 2")
    found = parse_manifests({"a.yaml": f"{PDB}---{other}".encode()})
    assert found.pdbs is not None
    assert [(pdb.key, pdb.status.disruptionsAllowed) for pdb in found.pdbs] == [("be/web", 0), ("be/db", 2)]
    # That there are none is not the same as that none were given.
    assert parse_manifests({"a.yaml": POD.encode()}).pdbs is None


def test_a_disruption_budget_twice_names_both_places() -> None:
    with pytest.raises(ConfigError, match=r"b\.yaml\.metadata\.name: 'be/web': is there already in a\.yaml"):
        parse_manifests({"a.yaml": PDB.encode(), "b.yaml": PDB.encode()})


def test_where_cpus_are_placed() -> None:
    annotations = {"kubelet.koordinator.sh/cpu-manager-policy": '{"policy": "static"}'}
    document = {"apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology"}
    raw = json.dumps(document | {"metadata": {"name": "n1", "annotations": annotations}, "zones": []}).encode()
    topology = parse_manifests({"f.json": raw}).topology
    assert topology is not None
    assert topology.metadata.annotations == annotations
    with pytest.raises(ConfigError, match=r"is there already in f\.json"):
        parse_manifests({"f.json": raw, "g.json": raw})


def test_many_files_are_one_set() -> None:
    found = parse_manifests({"a.yaml": POD.encode(), "b.json": text(pod("other")), "n.yaml": NODE.encode()})
    assert [p.metadata.name for p in found.pods] == ["spark-1", "other"]
    assert found.node is not None


@pytest.mark.parametrize("kind", ["List", "PodList"])
def test_lists(kind: str) -> None:
    items = [pod("a"), pod("b")]
    if kind == "PodList":
        for item in items:  # as the API server writes them
            del item["kind"], item["apiVersion"]
    found = parse_manifests({"x": text({"apiVersion": "v1", "kind": kind, "items": items})})
    assert [p.metadata.name for p in found.pods] == ["a", "b"]


def test_list_of_lists_and_null_items() -> None:
    inner = {"apiVersion": "v1", "kind": "PodList", "items": [pod("a")]}
    empty = {"apiVersion": "v1", "kind": "PodList", "items": None}
    found = parse_manifests({"x": text({"apiVersion": "v1", "kind": "List", "items": [inner, empty]})})
    assert [p.metadata.name for p in found.pods] == ["a"]


@pytest.mark.parametrize("nothing", [b"", b"---\n---\n", b"# a comment\n"])
def test_nothing_is_no_error(nothing: bytes) -> None:
    found = parse_manifests({"x": nothing})
    assert found == parse_manifests({})
    assert (found.pods, found.node, found.nodeslo, found.slo_controller_config) == ((), None, None, None)


@pytest.mark.parametrize(
    ("document", "path", "rule"),
    [
        ({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {}}, "x", "must be Pod, Node"),
        ({"apiVersion": "v1alpha9", "kind": "NodeSLO"}, "x", "must be Pod, Node"),
        ({"kind": ["Pod"]}, "x", "must be Pod, Node"),
        ({"metadata": {}}, "x", "must be Pod, Node"),
        ({"apiVersion": "v1", "kind": "PodList", "items": {}}, "x.items", "must be a list"),
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": "x"}, "x.metadata.name", "slo-controller-config"),
        (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}},
            "x.metadata.name",
            "slo-controller-config",
        ),
    ],
)
def test_unknown_objects_name_path_and_rule(document: object, path: str, rule: str) -> None:
    error = refused({"x": text(document)})
    assert error.path == path
    assert rule in error.rule


@pytest.mark.parametrize(
    ("document", "path", "rule"),
    [
        (pod("a", uid=""), "x.items[1].metadata.uid", "pod be/a must have a UID"),
        (pod("a", spec={"priority": "high"}), "x.items[1]", "$.spec.priority"),
        (pod("a", spec=[]), "x.items[1]", "$.spec"),
        ({"apiVersion": "v1", "kind": "Pod"}, "x.items[1]", "metadata"),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": 3}, "x.items[1]", "$.metadata"),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": {"a": 1}}}, "x.items[1]", "$.metadata.name"),
        (5, "x.items[1]", "must be an object"),
        (None, "x.items[1]", "must be an object"),
        (pod("a", spec={"containers": 1}), "x.items[1]", "$.spec.containers"),
        (
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "slo-controller-config"}, "data": {"k": 1}},
            "x.items[1]",
            "$.data",
        ),
    ],
)
def test_one_bad_object_is_named_and_the_others_count(document: object, path: str, rule: str) -> None:
    items = [pod("before"), document, pod("after")]
    found = parse_manifests({"x": text({"apiVersion": "v1", "kind": "List", "items": items}), "n": NODE.encode()})
    assert [each.metadata.name for each in found.pods] == ["before", "after"]
    assert found.node is not None
    (bad,) = found.bad
    assert bad.path == path
    assert rule in bad.rule
    assert str(bad.error).startswith(f"{path}: ")


# As in Koordinator's manual of memory QoS, with a comment in the place of the value.
MANUAL = """
apiVersion: v1
kind: Pod
metadata:
  name: cache
  namespace: be
  uid: uid-cache
  creationTimestamp: null
  annotations: {koordinator.sh/memoryQOS: '{"policy": "auto"}'}
spec:
  nodeName: # the node on which it is to be tried
  priorityClassName:
  hostNetwork:
  volumes:
  containers:
  - name: c
    restartPolicy:
    resources: {requests: {memory: 2Gi, cpu: }, limits: }
status:
"""


def test_null_is_absent() -> None:
    (found,) = parse_manifests({"x": MANUAL.encode()}).pods
    assert (found.spec.nodeName, found.spec.priorityClassName, found.spec.hostNetwork) == ("", "", False)
    resources = found.spec.containers[0].resources
    assert resources is not None
    assert (resources.requests, resources.limits) == ({"memory": "2Gi"}, None)
    assert found.status.phase == ""
    assert found.metadata.annotations == {"koordinator.sh/memoryQOS": '{"policy": "auto"}'}


def test_null_in_place_of_what_is_required_is_as_if_it_were_left_out() -> None:
    with_null = parse_manifests({"x": text({"apiVersion": "v1", "kind": "Pod", "metadata": None})})
    without = parse_manifests({"x": text({"apiVersion": "v1", "kind": "Pod"})})
    assert with_null == without
    assert "metadata" in with_null.bad[0].rule


def test_same_uid_twice_names_both() -> None:
    error = refused({"one": text(pod("a", uid="u")), "two": text(pod("b", uid="u"))})
    assert error.path == "two.metadata.uid"
    assert "be/b has the UID of be/a in one" in error.rule


@pytest.mark.parametrize("document", [NODE, NODESLO, CONFIG])
def test_second_of_what_a_node_has_once_is_refused(document: str) -> None:
    error = refused({"one": document.encode(), "two": document.encode()})
    assert error.path == "two"
    assert "already in one" in error.rule


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b'{"kind": "Pod", ', "whole JSON"),
        (b"kind: Pod\nmetadata: {name: [", "whole YAML"),
        (b"kind: Pod\n\tmetadata: x", "whole YAML"),
        (b"\xff\xfe\x00", "whole YAML"),
        (b"key: \x00", "whole YAML"),
        (b"just words", "must be Pod"),
        (b"[1, 2]", "must be Pod"),
        (b"a: !!python/object/apply:os.system [true]", "whole YAML"),
        (b'{"a":' * 100_000, "maximum nesting depth"),
        (b"[" * 100_000, "maximum nesting depth"),
        (b"- " * 100_000, "maximum nesting depth"),
    ],
)
def test_unreadable_text_names_the_file(content: bytes, rule: str) -> None:
    error = refused({"x": content})
    assert error.path.startswith("x")
    assert rule in error.rule


@pytest.mark.parametrize(
    ("content", "rule"), [("  on: 1\n", "text for keys"), ("  a: &a [*a]\n", "as JSON could have it")]
)
def test_yaml_that_no_json_could_have_is_named(content: str, rule: str) -> None:
    found = parse_manifests({"x": f"{NODESLO}{content}".encode()})
    assert found.nodeslo is None
    assert rule in found.bad[0].rule


def test_key_that_is_there_twice_is_refused() -> None:
    # A forgotten line between two documents; YAML alone would drop the pod without a word.
    error = refused({"x": f"{POD}---{NODE}".encode()})
    assert "the key 'kind' is there twice" in error.rule


def test_merge_keys_and_anchors_are_yaml_as_usual() -> None:
    found = parse_manifests({"x": POD.replace("labels: {", "labels: &l {").encode() + b"x: {<<: {a: 1}, a: 2}\n"})
    assert len(found.pods) == 1


def test_document_number_is_named() -> None:
    error = refused({"x": f"{POD}---\nkind: Nonsense\n".encode()})
    assert error.path == "x document 2"


NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: be, labels: {tier: gold}}\n"


def test_namespaces_are_read_for_their_labels() -> None:
    (found,) = parse_manifests({"x": NAMESPACE.encode()}).namespaces or ()
    assert (found.metadata.name, found.metadata.labels) == ("be", {"tier": "gold"})
    assert parse_manifests({"x": POD.encode()}).namespaces is None
    assert "already in x" in refused({"x": NAMESPACE.encode(), "y": NAMESPACE.encode()}).rule
