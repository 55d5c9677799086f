"""The Pods that plugins are given are those of a real API server, field by field."""

from __future__ import annotations

import msgspec

from koordebpf.kube.cache.objects import Pod
from koordebpf.kube.clients.protobuf import decode
from koordebpf.kube.http.transport import open_cluster
from koordebpf.kube.plugins.pods import POD_TABLE, PodMessages, pod_bytes
from tests.cluster.control_plane import ControlPlane
from tests.cluster.objects import node, pod
from tests.contract.apiserver import until


def test_they_are_as_the_server_has_them_and_what_the_agent_keeps_has_the_same_fields(
    cluster: ControlPlane, namespace: str
) -> None:
    name = f"{namespace}-node"
    on = cluster.api.create(node(name))
    spec = pod("one", name, "sleep", "1") | {"metadata": {"name": "one", "namespace": namespace, "labels": {"a": "b"}}}
    made = cluster.api.create(spec)
    kept = msgspec.convert(made, Pod, strict=False)
    messages = PodMessages(open_cluster(cluster.admin_kubeconfig), name, rest_s=0.05)
    try:
        given = messages.of([kept], 1)
        assert given == {kept.uid: pod_bytes(kept)}, "before the list is there"
        until(lambda: messages.of([kept], 1) != given, lambda: f"the list is read: {messages.problem}")
        whole = messages.of([kept], 1)[kept.uid]
        assert len(whole) > len(given[kept.uid])
        of_server, of_agent = decode(POD_TABLE, "Pod", whole), decode(POD_TABLE, "Pod", given[kept.uid])
        for each in (of_server, of_agent):
            each["metadata"]["labels"].sort(key=lambda entry: entry["key"])
            for container in each["spec"]["containers"]:
                container["resources"] = container["resources"] or None
        assert of_agent == of_server
        assert of_server["spec"]["containers"][0]["name"]
        assert of_server["metadata"]["labels"] == [{"key": "a", "value": "b"}]
    finally:
        messages.close()
        cluster.api.delete(made)
        cluster.api.delete(on)
