"""Asks the agents of many nodes at the same time; one that does not answer costs its own row and nothing else.

What an agent recorded is fetched from its node to this machine.
"""

from __future__ import annotations

import concurrent.futures
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from koordebpf.errors import ConfigError, KoordebpfError, KubeError
from koordebpf.kube.remote.cluster import Cluster
from koordebpf.kube.remote.exec import output_of, run_in_pod
from koordebpf.kube.remote.pods import CONTAINER, RemotePod, agents_of
from koordebpf.tools.recorder.pack import MOST_SENT_BYTES, Incoming, unpack

# Why 32: a thousand nodes that take 0.1 s each are asked in 3 s, and the API server sees no flood.
_AT_ONCE: Final = 32
T = TypeVar("T")


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


class Unanswered(msgspec.Struct, frozen=True):
    """A node that was asked in vain, and why."""

    node: str
    reason: str


class Answers(msgspec.Struct, Generic[T], frozen=True):
    """What was answered, by node, and who did not answer. Both are in the order of the nodes' names."""

    given: dict[str, T]
    missing: tuple[Unanswered, ...]


def ask_all(agents: Mapping[str, RemotePod], ask: Callable[[RemotePod], T], *, within_s: float) -> Answers[T]:
    """Ask agents side by side, 32 at a time; who takes longer than `within_s` is named. `ask` must end by itself then.

    An error of koordebpf's own tree is an answer that is missing; any other escapes.
    """
    given: dict[str, T] = {}
    missing: dict[str, str] = {}
    pool = concurrent.futures.ThreadPoolExecutor(_AT_ONCE, "ask")
    until_s = time.monotonic() + within_s * math.ceil(len(agents) / _AT_ONCE)
    try:
        asked = {node: pool.submit(ask, pod) for node, pod in agents.items()}
        for node, answer in asked.items():
            try:
                given[node] = answer.result(max(until_s - time.monotonic(), 0))
            except TimeoutError:
                missing[node] = f"no answer within {within_s:g} s"
            except KoordebpfError as error:
                missing[node] = str(error)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return Answers(given, tuple(Unanswered(node, reason) for node, reason in missing.items()))


class Agents:
    """The agents of a cluster. `namespace`: theirs. `within_s`: for one command on one node.

    Raises:  KubeError: they cannot be listed.
    """

    def __init__(self, cluster: Cluster, namespace: str, within_s: float) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.within_s = within_s
        self.by_node = agents_of(cluster.transport, namespace)

    def output(self, pod: RemotePod, *command: str) -> bytes:
        """Return what a command of koordebpf prints in an agent's pod.

        Raises:  KubeError: it did not run, or failed.
        """
        return output_of(self.cluster, pod.place, CONTAINER, ("koordebpf", *command), self.within_s)
