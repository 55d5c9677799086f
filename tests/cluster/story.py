"""The real node, pods on it that eat memory, and the agent that watches it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from koordebpf.units import MIB
from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.node import RealNode
from tests.cluster.objects import AGENT, DONE_EVENTS, NAMESPACE, nodeslo, pod
from tests.cluster.timeline import Follower
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent

NODE_BYTES = 3 << 30
_HOLD_S = 300
_NEVER_PERCENT = 95


class Story:
    """Pods and an agent on the node, in a namespace of their own.

    Its NodeSLO begins with a threshold that nothing reaches; `threshold()` lowers it.
    """

    def __init__(self, cluster: ControlPlane, node: RealNode, namespace: str, folder: Path) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.node = node
        self.namespace = namespace
        self.pods: dict[str, Follower] = {}
        self.agents: list[LiveAgent] = []
        self._folder = folder
        self._slo = nodeslo(node.name, memoryEvictThresholdPercent=_NEVER_PERCENT)
        self.api.delete(self._slo)
        self.api.create(self._slo)

    def add(
        self, name: str, mib: int, *, rate_mib_s: int = 0, change: Callable[[Object], None] | None = None, **more: Any
    ) -> Follower:
        """Create a pod that eats, after `change` of its manifest; return at once."""
        command = ("/bin/hog", "--mib", mib, "--rate-mib-s", rate_mib_s, "--hold", _HOLD_S)
        made = pod(name, self.node.name, *command, namespace=self.namespace, **more)
        if change is not None:
            change(made)
        self.pods[name] = Follower(self.api, self.node, made)
        return self.pods[name]

    def hold(self, name: str, mib: int, **more: Any) -> Follower:
        """Create a pod that eats; return when it has eaten."""
        follower = self.add(name, mib, **more)
        follower.wait_for("running")
        follower.wait_for_bytes(mib * MIB)
        return follower

    def agent(self, *arguments: object, kubeconfig: Path | None = None) -> LiveAgent:
        """Start the agent under its ServiceAccount, enforcing, by default by api; return it when it is ready."""
        kubeconfig = kubeconfig or self.cluster.service_account(NAMESPACE, AGENT)
        executor = () if "--executor" in arguments else ("--executor", "api")
        given = ["--source", "api", *executor, "--enforce", "--kubeconfig", kubeconfig]
        given += ["--node-name", self.node.name, "--node-cgroup", self.node.cgroup, *arguments]
        self.agents.append(LiveAgent(self._folder, *given))
        return self.agents[-1].becomes_ready()

    def threshold(self, **strategy: Any) -> None:
        """Change resourceUsedThresholdWithBE."""
        self.api.patch(self._slo, {"spec": {"resourceUsedThresholdWithBE": strategy}})

    def used_percent(self) -> int:
        """Return how much of the node is used, as the agent counts."""
        return self.node.used_bytes() * 100 // self.node.memory_bytes

    def evicted(self, name: str, number: int = 1) -> dict[str, Any]:
        """Wait for the audit line of the agent's plan `number`; check that it evicted this pod; return the line."""
        line = self.agents[-1].has_plan(number)
        done = [outcome for outcome in line["outcomes"] if outcome["result"] == "done"]
        assert [outcome["name"] for outcome in done] == [name], line["outcomes"]
        self.pods[name].take(done[0], line["decided_ns"])
        return line

    def is_gone(self, name: str) -> Follower:
        """Wait until object, processes and cgroup of the pod are gone."""
        follower = self.pods[name]
        self.until(
            lambda: {"terminating", "stopped", "deleted", "removed"} <= follower.seen_ns.keys(), f"{name} is gone"
        )
        return follower

    def still_run(self, *names: str) -> None:
        """Check that these pods were not touched."""
        running = {name for name in names if self.pods[name].is_running()}
        assert running == set(names), self._diagnostics()

    def events(self, name: str, count: int = 1) -> list[Object]:
        """Wait for the Events of koordebpf on what was done to a pod; return them in their order."""
        query = {"fieldSelector": f"involvedObject.name={name},{DONE_EVENTS}"}

        def find() -> list[Object] | None:
            found = self.api.items("v1", "Event", self.namespace, **query)
            return found if len(found) >= count else None

        found: list[Object] = until(find, f"{count} Events on {name}")
        return sorted(found, key=lambda event: str(event["metadata"]["name"]))

    def until(self, condition: Callable[[], Any], what: str, timeout_s: float = 60) -> Any:
        """Wait; if it does not come, say what the agent said."""
        try:
            return until(condition, what, timeout_s)
        except TimeoutError:
            raise AssertionError(f"{what}\n{self._diagnostics()}") from None

    def _diagnostics(self) -> str:
        seen = [f"{name} {line}" for name, follower in self.pods.items() for line in follower.lines()]
        return "\n".join([*seen, *(agent.log for agent in self.agents)])

    def close(self) -> None:
        """End the agents and remove the pods."""
        for agent in self.agents:
            agent.__exit__(None, None, None)
        for follower in self.pods.values():
            self.api.delete(follower.pod, gracePeriodSeconds=0)
        for follower in self.pods.values():
            if "cgroup" in follower.seen_ns:
                follower.wait_for("removed")
            follower.close()
        self.api.delete(self._slo)


def policy(*features: str) -> dict[str, str]:
    """Return the annotation by which a pod lets only these features evict it."""
    return {"koordinator.sh/eviction-policy": json.dumps(features)}
