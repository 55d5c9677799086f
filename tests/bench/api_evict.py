"""From the decision to the eviction's arrival at the API server, over TLS, by the agent's own executor."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.api import ApiExecutor
from koordebpf.kube.clients.evictions import KubeActions
from koordebpf.kube.http.transport import open_cluster
from koordebpf.policy.plan import Candidate, Holding, Victim
from koordebpf.state.amount import MEMORY
from koordebpf.state.outcome import Result
from tests.bench.api_server import NODE, ApiServer, api_pod, certificate
from tests.bench.figure import figure
from tests.bench.report import Report
from tests.contract.apiserver import until

_METHOD = "ApiExecutor.submit() → the request read at a TLS server on loopback"


def api_evict(report: Report) -> None:
    """Evict pods one by one over a connection that is there, and each over a new one."""
    n, cold = (100, 10) if report.quick else (1_000, 50)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ApiServer(folder, [api_pod(0)], tls=certificate(folder)) as server:
            warm = _series(server, n)
            report.add(figure("API eviction: decision → request there", "ms", warm[1:], _METHOD, reach_p99=20))
        with ApiServer(folder, [api_pod(0)], tls=certificate(folder)) as server:
            first = [_series(server, 1, begin=number)[0] for number in range(cold)]
            report.add(
                figure("  the first one, its connection made", "ms", first, f"{_METHOD}; TCP and TLS too", reach_p99=20)
            )


def _series(server: ApiServer, n: int, begin: int = 0) -> list[float]:
    outcomes = OutcomeQueue(lambda: None)
    actions = KubeActions(open_cluster(server.kubeconfig), NODE)
    executor = ApiExecutor(actions, outcomes, enforce=True)
    decided: dict[str, int] = {}
    try:
        for number in range(begin, begin + n):
            victim = _victim(number)
            decided[victim.candidate.name] = time.monotonic_ns()
            executor.submit(victim, decided[victim.candidate.name])
            (outcome,) = until(outcomes.drain, "the answer")
            if outcome.result is not Result.DONE:
                raise RuntimeError(outcome.detail)
    finally:
        executor.close()
        actions.close()
    arrived = server.ask(do="arrived")["arrived"]
    return [(arrived[name] - at_ns) / 1e6 for name, at_ns in decided.items()]


def _victim(number: int) -> Victim:
    candidate = Candidate(1, f"uid-{number}", "be", f"worker-{number}", None, 5000, (Holding(MEMORY, 1, 1),), 1)
    return Victim(candidate, "evicted", "why")
