"""The state of every node's agent: what its pod and its metrics say."""

from __future__ import annotations

from koordebpf.errors import ConfigError, KubeError
from koordebpf.kube.remote.pods import RemotePod, node_names, page_of
from koordebpf.report.cluster.scraped import Scraped, scraped
from koordebpf.report.cluster.status import ClusterStatus, NodeState
from koordebpf.tools.cluster.asking import Agents, ask_all


def cluster_status(agents: Agents, wanted: tuple[str, ...] = ()) -> ClusterStatus:
    """Return the state of these nodes, of all where none is named; a node without an agent is among them.

    Raises:  KubeError: the Nodes cannot be listed. ConfigError: one that is named is not there.
    """
    names = node_names(agents.cluster.transport)
    if unknown := next((each for each in wanted if each not in names), None):
        raise ConfigError("NODE", unknown, "must be a Node of this cluster")
    names = [each for each in names if not wanted or each in wanted]
    asked = {node: pod for node, pod in agents.by_node.items() if node in names}
    answers = ask_all(asked, lambda pod: _metrics(agents, pod), within_s=agents.within_s)
    missing = {each.node: each.reason for each in answers.missing}
    return ClusterStatus(
        schema="koordebpf.status/v1",
        nodes=tuple(_state(name, asked.get(name), answers.given.get(name), missing.get(name, "")) for name in names),
    )


def _metrics(agents: Agents, pod: RemotePod) -> Scraped:
    port = pod.metrics_port
    if not port:
        raise KubeError("its pod has no port called http: --listen is empty, or the manifest is not ours", retry=False)
    return scraped(page_of(agents.cluster.transport, pod, port, "metrics", timeout_s=agents.within_s))


def _state(name: str, pod: RemotePod | None, said: Scraped | None, missing: str) -> NodeState:
    if pod is None:
        return NodeState(name)
    return NodeState(name, pod.metadata.name, pod.mode, pod.is_ready, pod.status.phase, said, missing)
