"""Whose exemptions from eviction count: what a pod's owner wrote is honoured where the operator says so."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping

from koordebpf.decide.evict.credit import credit_bytes
from koordebpf.decide.evict.disruption import Disruptions
from koordebpf.decide.evict.settings import EvictSettings, ExemptionSettings
from koordebpf.decide.plan import Candidate, Excluded
from koordebpf.detect import be_cpu_evict, be_memory_evict
from koordebpf.slo.eviction import EVICTION_POLICY_ANNOTATION, allows_eviction
from koordebpf.slo.priority import BANDS
from koordebpf.slo.qos import QOS_LABEL
from koordebpf.state.view import FINISHED_PHASES, NodeView, PodView
from koordebpf.units import NS_PER_S

_BY_LABEL = frozenset({be_memory_evict.FEATURE, be_cpu_evict.FEATURE})
_BEST_EFFORT_BANDS = tuple(band for band in BANDS if band.name in ("koord-batch", "koord-free"))


def is_honoured(namespaces: frozenset[str], namespace: str) -> bool:
    """Tell whether one of the names or patterns (`*` any text, `?` one character) is the namespace."""
    return "*" in namespaces or _pattern(namespaces).fullmatch(namespace) is not None


def is_best_effort(pod: PodView, exemptions: ExemptionSettings) -> bool:
    """Tell whether a pod may go as a best-effort one: by its label, or where that does not count, by spec.priority.

    spec.priority is what an administrator grants by PriorityClass and ResourceQuota; koordinator.sh/priority-class is a
    label as well and does not count here.
    """
    return pod.koord_qos == "BE" or (not is_honoured(exemptions.qos_labels, pod.namespace) and _is_low(pod))


def not_honoured(pod: PodView, candidate: Candidate, feature: str, exemptions: ExemptionSettings) -> list[Excluded]:
    """Return what would keep a candidate from going, or from going at once, if it were honoured in its namespace."""
    namespace, policy, found = pod.namespace, pod.eviction_policy, []
    is_by_label = feature in _BY_LABEL and not is_honoured(exemptions.qos_labels, namespace)
    if is_by_label and pod.koord_qos != "BE":
        label = f"{QOS_LABEL}={pod.koord_qos_label}" if pod.koord_qos_label else f"no {QOS_LABEL}"
        found.append(("qos_label", f"its label ({label}): by its priority {pod.priority} it is best-effort"))
    is_kept = policy is not None and not allows_eviction(policy, feature)
    if is_kept and not is_honoured(exemptions.policies, namespace):
        found.append(("policy", f"its annotation {EVICTION_POLICY_ANNOTATION}, which does not list {feature}"))
    if pod.terms.grace_s > 1 and not is_honoured(exemptions.grace_periods, namespace):
        found.append(("grace_period", f"its grace period of {pod.terms.grace_s} s"))
    is_blocked = (candidate.disruption or "").startswith("blocked")
    if is_blocked and not is_honoured(exemptions.budgets, namespace):
        found.append(("budget", f"its PodDisruptionBudget ({candidate.disruption})"))
    return [
        Excluded(pod.uid, namespace, pod.name, code, f"{why}, is not honoured in namespace {namespace}")
        for code, why in found
    ]


def exempt_bytes(view: NodeView, settings: EvictSettings) -> Mapping[str, int]:
    """Return the memory of pods that BEMemoryEvict would take if what their owners wrote did not count, by reason.

    A pod with two reasons counts in both. Bytes.

    Cost:    2 µs a pod, and what PodDisruptionBudgets take.
    """
    exemptions, sums = settings.exemptions, Counter(policy=0, budget=0, grace_period=0, qos_label=0)
    disruptions = Disruptions(view.pdbs if view.executor == "api" and settings.obey_pdbs else ())
    for pod in view.pods:
        if pod.memory is None or pod.phase in FINISHED_PHASES:
            continue
        held = credit_bytes(pod)
        if not is_best_effort(pod, exemptions):
            if _is_low(pod):
                sums["qos_label"] += held
            continue
        if pod.eviction_policy is not None and is_honoured(exemptions.policies, pod.namespace):
            sums["policy"] += 0 if allows_eviction(pod.eviction_policy, be_memory_evict.FEATURE) else held
        answer = disruptions.foretell(pod)
        if answer is not None and not answer.is_allowed and is_honoured(exemptions.budgets, pod.namespace):
            sums["budget"] += held
        has_long_grace = pod.terms.grace_s * NS_PER_S > settings.pending_max_ns
        is_capped = settings.max_grace_seconds is not None or not is_honoured(exemptions.grace_periods, pod.namespace)
        if view.executor == "api" and has_long_grace and not is_capped:
            sums["grace_period"] += held
    return sums


def _is_low(pod: PodView) -> bool:
    return pod.priority is not None and any(band.lowest <= pod.priority <= band.highest for band in _BEST_EFFORT_BANDS)


@functools.lru_cache(16)
def _pattern(namespaces: frozenset[str]) -> re.Pattern[str]:
    as_text = (re.escape(name).replace(r"\*", ".*").replace(r"\?", ".") for name in sorted(namespaces))
    return re.compile("|".join(as_text) or r"(?!)")
