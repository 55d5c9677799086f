"""Where commands on a node get the names of its pods from: the agent that runs there, files, or a server."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.kube.sources.base import Source
from koordebpf.kube.sources.file import FileSource
from koordebpf.report.http.local_socket import agent_socket, asked
from koordebpf.report.known import KnownObjects
from koordebpf.units import NS_PER_S

_EVERY_NS: Final = 2 * NS_PER_S  # Why: a person sees a new pod's name within two seconds, for 0.1 ms of the agent
_FAILED_NS: Final = 10 * NS_PER_S  # until the next try where no agent answers
_ERRORS = (ConfigError, OSError, http.client.HTTPException, msgspec.DecodeError)


class AgentSource:
    """Pods, Node and NodeSLO as the agent on this node knows them; it is asked each 2 s, in the caller's thread.

    An agent that ends leaves what it said last in force, with a problem.
    """

    name = "agent"

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._version = ""
        self._due_ns = 0
        self._state = ClusterState(version=0, synced_at_ns=0)

    def start(self, wake: Callable[[], None]) -> None:
        """Ask for the first time. `wake` is not used.

        Raises:  ConfigError: no agent answers.
        """
        del wake
        try:
            self._ask(time.monotonic_ns())
        except ConfigError:
            raise
        except _ERRORS as error:
            raise ConfigError("--source", "agent", f"needs an agent that runs here: {error}") from error

    def refresh(self, now_ns: int) -> None:
        """Ask again, where it is time."""
        if now_ns < self._due_ns:
            return
        try:
            self._ask(now_ns)
        except _ERRORS as error:
            self._due_ns = now_ns + _FAILED_NS
            problem = f"the agent does not answer: {error}"
            if self._state.problems != (problem,):
                version = self._state.version + 1
                self._state = msgspec.structs.replace(self._state, version=version, problems=(problem,))

    def nudge(self) -> None:
        """Ask at the next look: a cgroup was made."""
        self._due_ns = min(self._due_ns, time.monotonic_ns() + _EVERY_NS // 4)

    def state(self) -> ClusterState:
        """Return what the agent said last."""
        return self._state

    def close(self) -> None:
        """Do nothing: no thread, no open socket."""

    def _ask(self, now_ns: int) -> None:
        raw = asked(agent_socket(self._run_dir), f"known?version={self._version}")
        known = msgspec.json.decode(raw, type=KnownObjects)
        self._due_ns = now_ns + _EVERY_NS
        if known.pods is None:
            self._state = msgspec.structs.replace(self._state, synced_at_ns=now_ns, problems=())
            return
        self._version = known.version
        self._state = ClusterState(
            version=self._state.version + 1,
            synced_at_ns=now_ns,
            pods=known.pods,
            node=known.node,
            nodeslo=None if isinstance(known.nodeSLO, msgspec.UnsetType) else known.nodeSLO,
            slo_controller_config=known.sloControllerConfig,
        )


def named_source(files: tuple[Path, ...], wanted: str | None, run_dir: Path, given: Mapping[str, Any]) -> Source | None:
    """Return where names come from, not started; None: there are none.

    Args:
        files: of --pods.
        wanted: `agent`, `file`, `kubelet` or `api`; None: the files, else the agent that runs here, if one does.
        run_dir: below which agents have their sockets.
        given: further settings of an agent, for a server.
    Raises:  ConfigError: what is wanted lacks something.
    """
    if wanted in ("api", "kubelet"):
        from koordebpf.agent.lifecycle.open_source import open_source
        from koordebpf.configuration.checked import agent_config

        return open_source(agent_config({**given, "source": wanted, "files": files}))
    if files:
        return FileSource(files)
    if wanted == "file":
        raise ConfigError("--source", "file", "needs --pods FILE")
    if wanted == "agent":
        return AgentSource(run_dir)
    try:
        agent_socket(run_dir)
    except _ERRORS:
        return None
    return AgentSource(run_dir)
