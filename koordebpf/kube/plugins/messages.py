"""Messages of the two services that an eviction plugin serves on its socket. Pods are passed on as bytes.

Source: katalyst-api pkg/protocol/evictionplugin/v1alpha1/api.proto; k8s.io/kubelet
pkg/apis/pluginregistration/v1/api.proto.
"""

from __future__ import annotations

from koordebpf.kube.clients.protobuf import Fields

PLUGIN_PACKAGE = "evictionplugin.v1alpha1"
PLUGIN_SERVICE = f"/{PLUGIN_PACKAGE}.EvictionPlugin"
VERSION = "v1alpha1"
NOT_MET, SOFT_MET, HARD_MET = 0, 1, 2  # ThresholdMetType
LESS_THAN, GREATER_THAN = 0, 1  # ThresholdOperator
NODE_CONDITION, CNR_CONDITION = 0, 1  # ConditionType

PLUGIN_MESSAGES: dict[str, Fields] = {
    "Empty": {},
    "Condition": {
        "condition_type": (1, "int32"),
        "effects": (2, "*string"),
        "condition_name": (3, "string"),
        "met_condition": (4, "bool"),
    },
    "GetTokenResponse": {"token": (1, "string")},
    "GetThresholdMetRequest": {"active_pods": (1, "*bytes")},
    "ThresholdMetResponse": {
        "threshold_value": (1, "double"),
        "observed_value": (2, "double"),
        "threshold_operator": (3, "int32"),
        "met_type": (4, "int32"),
        "eviction_scope": (5, "string"),
        "grace_period_seconds": (6, "int64"),
        "condition": (7, "Condition"),
        "candidate_pods": (8, "*bytes"),
    },
    "Bucket": {"time": (1, "int64"), "duration": (2, "int64"), "count": (3, "int64")},
    "Buckets": {"list": (1, "*Bucket")},
    "EvictionRecord": {
        "uid": (1, "string"),
        "has_pdb": (2, "bool"),
        "buckets": (3, "Buckets"),
        "disruptions_allowed": (4, "int32"),
        "current_healthy": (5, "int32"),
        "desired_healthy": (6, "int32"),
        "expected_pods": (7, "int32"),
    },
    "GetTopEvictionPodsRequest": {
        "active_pods": (1, "*bytes"),
        "topN": (2, "uint64"),
        "eviction_scope": (3, "string"),
        "candidate_eviction_records": (4, "*EvictionRecord"),
    },
    "DeletionOptions": {"grace_period_seconds": (1, "int64")},
    "GetTopEvictionPodsResponse": {"target_pods": (1, "*bytes"), "deletion_options": (2, "DeletionOptions")},
    "EvictPod": {
        "pod": (1, "bytes"),
        "reason": (2, "string"),
        "deletion_options": (3, "DeletionOptions"),
        "force_evict": (4, "bool"),
        "eviction_plugin_name": (5, "string"),
    },
    "GetEvictPodsRequest": {"active_pods": (1, "*bytes")},
    "GetEvictPodsResponse": {"evict_pods": (1, "*EvictPod"), "condition": (2, "Condition")},
}

REGISTRATION_PACKAGE = "pluginregistration"
REGISTRATION_SERVICE = f"/{REGISTRATION_PACKAGE}.Registration"
PLUGIN_TYPE = "EvictionPlugin"

REGISTRATION_MESSAGES: dict[str, Fields] = {
    "InfoRequest": {},
    "PluginInfo": {
        "type": (1, "string"),
        "name": (2, "string"),
        "endpoint": (3, "string"),
        "supported_versions": (4, "*string"),
    },
    "RegistrationStatus": {"plugin_registered": (1, "bool"), "error": (2, "string")},
    "RegistrationStatusResponse": {},
}

# What is read of a Pod that a plugin sends back. Source: k8s.io/api core/v1 generated.proto.
POD_MESSAGES: dict[str, Fields] = {"Pod": {"metadata": (1, "ObjectMeta")}, "ObjectMeta": {"uid": (5, "string")}}
