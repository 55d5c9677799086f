"""What plugins outside the process answer, from bytes to values. Whatever cannot be used is a problem in a sentence.

A plugin is another program: its numbers, names and texts are checked, and bounded, before a frame has them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from koordebpf.errors import DecodeError
from koordebpf.kube.clients.protobuf import decode
from koordebpf.kube.plugins.messages import (
    GREATER_THAN,
    HARD_MET,
    LESS_THAN,
    NODE_CONDITION,
    NOT_MET,
    PLUGIN_MESSAGES,
    SOFT_MET,
)
from koordebpf.kube.plugins.pods import uid_of
from koordebpf.state.katalyst.answers import (
    Condition,
    ConditionKind,
    EvictAsked,
    Met,
    Operator,
    PluginAnswer,
    Threshold,
    TopPods,
)

_LONGEST = 500  # characters of a text. Why: it is in an Event, whose message may have 1,024
_MOST_PODS = 2000  # Why: four times what a kubelet may run
_MET: Mapping[int, Met] = {SOFT_MET: "soft", HARD_MET: "hard"}
_OPERATORS: Mapping[int, Operator] = {LESS_THAN: "less_than", GREATER_THAN: "greater_than"}

Answered = bytes | Exception  # of one call; an error: why there is none


def thresholds_answer(plugin: str, met: Answered, evict: Answered) -> PluginAnswer:
    """Return what ThresholdMet and GetEvictPods of a plugin said; of a call that failed, why."""
    problems: list[str] = []
    threshold: Threshold | None = None
    asked: tuple[EvictAsked, ...] = ()
    conditions: tuple[Condition, ...] = ()
    try:
        threshold = _threshold(_decoded("ThresholdMetResponse", met))
    except (DecodeError, OSError) as error:
        problems.append(f"ThresholdMet: {error}")
    try:
        asked, conditions = _evict_pods(_decoded("GetEvictPodsResponse", evict))
    except (DecodeError, OSError) as error:
        problems.append(f"GetEvictPods: {error}")
    return PluginAnswer(plugin, threshold, asked, conditions, problem="; ".join(problems) or None)


def top_answer(plugin: str, top: Answered) -> PluginAnswer:
    """Return what GetTopEvictionPods of a plugin said."""
    try:
        found = _decoded("GetTopEvictionPodsResponse", top)
        return PluginAnswer(plugin, top=TopPods(_uids(found["target_pods"]), _grace_s(found["deletion_options"])))
    except (DecodeError, OSError) as error:
        return PluginAnswer(plugin, top=TopPods(()), problem=f"GetTopEvictionPods: {error}")


def _decoded(message: str, answered: Answered) -> dict[str, Any]:
    if isinstance(answered, Exception):
        raise DecodeError(str(answered))
    return decode(PLUGIN_MESSAGES, message, answered)


def _threshold(found: Mapping[str, Any]) -> Threshold | None:
    met = found["met_type"]
    if met == NOT_MET:
        return None
    if met not in _MET:
        raise DecodeError(f"met_type {met} is none of 0, 1 and 2")
    for name in ("threshold_value", "observed_value"):
        if not math.isfinite(found[name]):
            raise DecodeError(f"{name} {found[name]} is no number")
    if (operator := _OPERATORS.get(found["threshold_operator"])) is None:
        raise DecodeError(f"threshold_operator {found['threshold_operator']} is neither 0 nor 1")
    return Threshold(
        _MET[met],
        _text(found["eviction_scope"]),
        found["threshold_value"],
        found["observed_value"],
        operator,
        found["grace_period_seconds"],
        _condition(found["condition"]),
        _uids(found["candidate_pods"]),
    )


def _evict_pods(found: Mapping[str, Any]) -> tuple[tuple[EvictAsked, ...], tuple[Condition, ...]]:
    asked = found["evict_pods"]
    if len(asked) > _MOST_PODS:
        raise DecodeError(f"{len(asked)} pods are more than {_MOST_PODS}")
    condition = _condition(found["condition"])
    return tuple(
        EvictAsked(_uid(each["pod"]), _text(each["reason"]), each["force_evict"], _grace_s(each["deletion_options"]))
        for each in asked
        if each["pod"]  # Katalyst skips an entry without one, too
    ), (condition,) if condition else ()


def _condition(found: Mapping[str, Any] | None) -> Condition | None:
    if found is None or not found["met_condition"]:
        return None
    kind: ConditionKind = "node" if found["condition_type"] == NODE_CONDITION else "cnr"
    return Condition(_text(found["condition_name"]), kind, tuple(map(_text, found["effects"][:10])))


def _grace_s(found: Mapping[str, Any] | None) -> int | None:
    return None if found is None else int(found["grace_period_seconds"])


def _uids(pods: Sequence[bytes]) -> tuple[str, ...]:
    if len(pods) > _MOST_PODS:
        raise DecodeError(f"{len(pods)} pods are more than {_MOST_PODS}")
    return tuple(dict.fromkeys(map(_uid, pods)))


def _uid(pod: bytes) -> str:
    if not (uid := uid_of(pod)):
        raise DecodeError("a pod without a metadata.uid")
    return _text(uid)


def _text(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
