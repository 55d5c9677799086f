"""What a plugin of ours answers, from values to the bytes of evictionplugin.v1alpha1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koordebpf.kube.clients.protobuf import encode
from koordebpf.kube.plugins.messages import (
    CNR_CONDITION,
    GREATER_THAN,
    HARD_MET,
    LESS_THAN,
    NODE_CONDITION,
    PLUGIN_MESSAGES,
    PLUGIN_TYPE,
    REGISTRATION_MESSAGES,
    SOFT_MET,
    VERSION,
)
from koordebpf.state.katalyst.measured import Threshold, TopPods


def plugin_info(name: str) -> bytes:
    """Return PluginInfo: the plugin is called by the socket that it was found by."""
    info = {"type": PLUGIN_TYPE, "name": name, "supported_versions": [VERSION]}
    return encode(REGISTRATION_MESSAGES, "PluginInfo", info)


def threshold_message(threshold: Threshold | None) -> bytes:
    """Return ThresholdMetResponse; None: NOT_MET."""
    if threshold is None:
        return b""
    found: dict[str, object] = {
        "threshold_value": threshold.value,
        "observed_value": threshold.observed,
        "threshold_operator": LESS_THAN if threshold.operator == "less_than" else GREATER_THAN,
        "met_type": HARD_MET if threshold.met == "hard" else SOFT_MET,
        "eviction_scope": threshold.scope,
        "grace_period_seconds": threshold.grace_s,
    }
    if (condition := threshold.condition) is not None:
        found["condition"] = {
            "condition_type": NODE_CONDITION if condition.kind == "node" else CNR_CONDITION,
            "effects": condition.effects,
            "condition_name": condition.name,
            "met_condition": True,
        }
    return encode(PLUGIN_MESSAGES, "ThresholdMetResponse", found)


def top_message(top: TopPods, pods: Mapping[str, bytes]) -> bytes:
    """Return GetTopEvictionPodsResponse; `pods` are those of the request, by UID, which are sent back unchanged."""
    found: dict[str, object] = {"target_pods": [pods[uid] for uid in top.uids]}
    if top.grace_s is not None:
        found["deletion_options"] = {"grace_period_seconds": top.grace_s}
    return encode(PLUGIN_MESSAGES, "GetTopEvictionPodsResponse", found)


def by_uid(uids: Sequence[str | None], pods: Sequence[bytes]) -> dict[str, bytes]:
    """Return the pods of a request by their UIDs, without those that cannot be read."""
    return {uid: data for uid, data in zip(uids, pods, strict=True) if uid is not None}
