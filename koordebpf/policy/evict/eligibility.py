"""How many pods of the node an agent may evict at all, and why not the others: in a calm moment, before it is short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from koordebpf.policy.detect import be_cpu_evict, be_memory_evict, stall_evict
from koordebpf.policy.evict.all_features import FEATURES
from koordebpf.policy.evict.round import Round
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.strategy import Demand, Empty
from koordebpf.slo.pods.eviction import EVICTION_ENABLED_LABEL
from koordebpf.slo.pods.qos import QOS_LABEL
from koordebpf.state.view import FINISHED_PHASES, NodeView, PodView

# Codes of `Excluded` that last as long as the objects stay as they are; of one pod, and of several. Whom another reason
# keeps may be evicted later: it leaves, is young, was refused.
_LASTING: Final = {
    "unlabelled": ("has no label {BE}", "have no label {BE}"),
    "other_label": ("has another label {QOS}", "have another label {QOS}"),
    "label_unknown": ("has a label {QOS} that is not exactly 'BE'", "have a label {QOS} that is not exactly 'BE'"),
    "not_enabled": ("has no label {ENABLED}=true", "have no label {ENABLED}=true"),
    "priority": ("is above the priority threshold", "are above the priority threshold"),
    "policy": ("does not allow it by annotation", "do not allow it by annotation"),
    "static": ("is a static pod", "are static pods"),
    "own_pod": ("is this agent", "are this agent"),
    "system_critical": ("is system-critical", "are system-critical"),
    "protected_namespace": ("is in a protected namespace", "are in protected namespaces"),
    "protected_priority_class": ("has a protected priority class", "have protected priority classes"),
}
_BY_LABEL: Final = {be_memory_evict.FEATURE, stall_evict.FEATURE, be_cpu_evict.FEATURE}
_WORDS: Final = {"BE": f"{QOS_LABEL}=BE", "QOS": QOS_LABEL, "ENABLED": EVICTION_ENABLED_LABEL}
# Codes of a feature that is on and not judged, which last as long as the settings and the machine stay as they are.
_OFF: Final = {"strict", "no_capacity", "no_strategy", "enable_unset", "disabled", "invalid_config"}


class Eligibility(msgspec.Struct, frozen=True):
    """Pods that are not finished, how many of them may be evicted, now or later, and why not the others, by code.

    Where every feature that is on is skipped, `off` has the sentences that a plan gives for that, and all pods have the
    code of the first.
    """

    pods: int
    eligible: int
    reasons: Mapping[str, int]
    off: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        """Whether there are pods, and none of them may be evicted."""
        return self.pods > 0 and self.eligible == 0

    @property
    def sentence(self) -> str:
        """The numbers in words, the most frequent reason first."""
        order = [] if self.off else sorted(self.reasons.items(), key=lambda each: (-each[1], each[0]))
        kept = [f"{count} {_LASTING[code][count > 1].format(**_WORDS)}" for code, count in order]
        why = ", ".join(self.off or kept)
        return f"{self.eligible} of {self.pods} pods may be evicted{f': {why}' if why else ''}"


def eligibility(view: NodeView, settings: EvictSettings) -> Eligibility | None:
    """Return whom the features that are on may evict, by the reasons that a plan gives; None: no feature is on.

    A feature that the strategy switches off, or whose resource is not measured, evicts no pod.

    Args:
        view: the node, as `judged` returned it.
        settings: of eviction rounds.

    Cost:    as a plan in which every feature that is on has to choose.
    """
    features = [each for each in FEATURES if view.feature_gates.get(each.gate, False)]
    if not features:
        return None
    pods = [pod for pod in view.pods if pod.phase not in FINISHED_PHASES]
    demands = [demand for feature in features for demand in feature.decide(view, None, Empty(), settings).demands]
    able = [each for each in demands if each.relief.is_measured(view) and each.verdict.skipped not in _OFF]
    if not able:
        code = demands[0].verdict.skipped or "unmeasured"
        return Eligibility(len(pods), 0, {code: len(pods)} if pods else {}, _why_off(demands))
    current = Round(view, settings, dict.fromkeys(each.relief for each in able))
    reasons: dict[str, str] = {}
    eligible: set[str] = set()
    for demand in able:
        candidates, excluded = demand.rank(current)
        eligible |= {each.uid for each in candidates}
        for each in excluded:
            if each.code in _LASTING:
                reasons.setdefault(each.uid, each.code)
            else:
                eligible.add(each.uid)
    kept = [pod for pod in pods if pod.uid not in eligible]
    is_by_label = any(demand.verdict.feature in _BY_LABEL for demand in able)
    counts = Counter(reasons.get(pod.uid) or _unmentioned(pod, is_by_label=is_by_label) for pod in kept)
    return Eligibility(len(pods), len(pods) - len(kept), counts)


# Each sentence once; where they differ, with the name of its feature.
def _why_off(demands: Sequence[Demand]) -> tuple[str, ...]:
    by_feature = {each.verdict.feature: each.verdict.reason for each in demands}
    if len(said := set(by_feature.values())) == 1:
        return tuple(said)
    return tuple(f"{feature}: {reason}" for feature, reason in by_feature.items())


# A plan says nothing of pods that no reader expects among the candidates.
def _unmentioned(pod: PodView, *, is_by_label: bool) -> str:
    if not is_by_label:
        return "priority"
    return "other_label" if pod.koord_qos_label else "unlabelled"
