"""Fetches what an agent recorded, from its node to this machine."""

from __future__ import annotations

import tempfile
from pathlib import Path

from koordebpf.errors import ConfigError, KubeError
from koordebpf.kube.remote.exec import run_in_pod
from koordebpf.kube.remote.pods import CONTAINER, RemotePod
from koordebpf.tools.cluster.asking import Agents
from koordebpf.tools.recorder.pack import MOST_SENT_BYTES, Incoming, unpack


def agent_on(agents: Agents, node: str) -> RemotePod:
    """Return the agent of a node.

    Raises:  ConfigError: it has none.
    """
    found = agents.by_node.get(node)
    if found is None:
        known = ", ".join(list(agents.by_node)[:5]) or "none"
        raise ConfigError("NODE", node, f"must be a node with an agent in {agents.namespace}; there are: {known}")
    return found


def fetch_recording(agents: Agents, node: str, folder: Path, *, most_bytes: int = MOST_SENT_BYTES) -> int:
    """Write a node's recording into a new folder; return the bytes that it has. The node may send `most_bytes`.

    Raises:  ConfigError: the folder is there already, or the node has no agent. KubeError: none comes, or more.
    """
    agent = agent_on(agents, node)
    if folder.exists():
        raise ConfigError(str(folder), None, "must be a new folder")
    # Beside it: what the disk has no room for is found out before anything is made.
    with tempfile.TemporaryFile(dir=folder.absolute().parent) as sent:
        command = ("koordebpf", "recording", "pack")
        incoming = Incoming(sent, most_bytes, node)
        ended = run_in_pod(agents.cluster, agent.place, CONTAINER, command, incoming.write, within_s=agents.within_s)
        if ended.exit_code:
            raise KubeError(f"{node}: {ended.stderr.strip() or f'exit code {ended.exit_code}'}", retry=False)
        sent.seek(0)
        return unpack(sent, folder)
