"""Which pods cause the stalls of latency-sensitive ones, by the ledger. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from koordebpf.slo.pods import qos
from koordebpf.state.measured import LedgerView
from koordebpf.state.view import PodView


def is_latency_sensitive(pod: PodView) -> bool:
    """Judge a pod as `slo.pods.qos` judges its QoS classes."""
    return qos.is_latency_sensitive(pod.koord_qos, pod.kube_qos)


def caused_stalls(ledger: LedgerView | None, pods: Collection[PodView]) -> Mapping[str, int]:
    """Return uid → nanoseconds that latency-sensitive pods stalled on account of that pod, themselves left out.

    Cost:    30 ns a pod, and nothing while no pod stalls.
    """
    if ledger is None or not ledger.rows:
        return {}
    stalled = {row.victim.uid for row in ledger.rows}
    victims = {pod.uid for pod in pods if pod.uid in stalled and is_latency_sensitive(pod)}
    caused: Counter[str] = Counter()
    for row in ledger.rows:
        cause, victim = row.cause.uid, row.victim.uid
        if cause is not None and victim in victims and cause != victim:
            caused[cause] += row.ns
    return caused


def largest_cause_ns(ledger: LedgerView | None, pods: Collection[PodView]) -> int:
    """Return what latency-sensitive pods stalled on account of the largest cause of whatever kind, or of themselves.

    A pod that is gone is none any more, nor is a limit of the victim's own.
    """
    known = {pod.uid: pod for pod in pods}
    caused: Counter[str] = Counter()
    for row in ledger.rows if ledger is not None else ():
        victim, cause = known.get(row.victim.uid or ""), row.cause
        is_gone = cause.kind == "pod" and cause.uid not in known
        if victim is None or not is_latency_sensitive(victim):
            continue
        if cause.kind != "own limit" and not is_gone:
            caused[cause.uid or cause.id] += row.ns
    return max(caused.values(), default=0)
