"""Messages of each protocol on the wire: numbers and types of fields as the other side's .proto has them.

Servers of tests/contract are made of the tables of the package, so they do not see a wrong number.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest

from koordebpf.kube.clients import cri, kubelet
from koordebpf.kube.clients.protobuf import Messages, decode, encode
from koordebpf.kube.nri.values import NRI_MESSAGES, TTRPC_MESSAGES
from koordebpf.kube.plugins.messages import PLUGIN_MESSAGES, POD_MESSAGES, REGISTRATION_MESSAGES
from koordebpf.kube.plugins.pods import POD_TABLE
from koordebpf.kube.runtime_proxy import PROXY_MESSAGES

Written = dict[int, tuple[str, Any]]  # number → name and content; a message is again one

ENTRY = {1: ("key", "k"), 2: ("value", "v")}

DELETION = {1: ("grace_period_seconds", -1)}
CONDITION = {
    1: ("condition_type", 1),
    2: ("effects", ["NoSchedule", ""]),
    3: ("condition_name", "n"),
    4: ("met_condition", True),
}
RECORD = {
    1: ("uid", "u"),
    2: ("has_pdb", True),
    3: ("buckets", {1: ("list", [{1: ("time", 1 << 40), 2: ("duration", 2), 3: ("count", 3)}])}),
    4: ("disruptions_allowed", 4),
    5: ("current_healthy", -5),
    6: ("desired_healthy", 6),
    7: ("expected_pods", 7),
}

QUANTITY = {1: ("string", "1Gi")}
AMOUNT = {1: ("key", "cpu"), 2: ("value", QUANTITY)}
TIME = {1: ("seconds", 1)}
REQUIREMENTS = {1: ("limits", [AMOUNT]), 2: ("requests", [AMOUNT])}
CONTAINER = {1: ("name", "c"), 8: ("resources", REQUIREMENTS), 24: ("restartPolicy", "Always")}
STATUS = {
    1: ("name", "c"),
    2: ("state", {1: ("waiting", {}), 2: ("running", {}), 3: ("terminated", {})}),
    8: ("containerID", "containerd://1"),
    10: ("allocatedResources", [AMOUNT]),
    11: ("resources", REQUIREMENTS),
}
OWNER = {1: ("kind", "Job"), 3: ("name", "j"), 4: ("uid", "o"), 6: ("controller", True)}
VOLUME = {
    1: ("name", "v"),
    2: (
        "volumeSource",
        {1: ("hostPath", {1: ("path", "/p")}), 2: ("emptyDir", {1: ("medium", "Memory"), 2: ("sizeLimit", QUANTITY)})},
    ),
}
POD = {
    1: (
        "metadata",
        {
            1: ("name", "p"),
            3: ("namespace", "n"),
            5: ("uid", "u"),
            8: ("creationTimestamp", TIME),
            9: ("deletionTimestamp", TIME),
            10: ("deletionGracePeriodSeconds", 30),
            11: ("labels", [ENTRY]),
            12: ("annotations", [ENTRY]),
            13: ("ownerReferences", [OWNER]),
        },
    ),
    2: (
        "spec",
        {
            1: ("volumes", [VOLUME]),
            2: ("containers", [CONTAINER]),
            4: ("terminationGracePeriodSeconds", 30),
            10: ("nodeName", "n1"),
            11: ("hostNetwork", True),
            13: ("hostIPC", True),
            20: ("initContainers", [CONTAINER]),
            24: ("priorityClassName", "koord-batch"),
            25: ("priority", -5),
            32: ("overhead", [AMOUNT]),
            40: ("resources", REQUIREMENTS),
        },
    ),
    3: (
        "status",
        {
            1: ("phase", "Running"),
            2: ("conditions", [{1: ("type", "Ready"), 2: ("status", "True"), 5: ("reason", "r")}]),
            7: ("startTime", TIME),
            8: ("containerStatuses", [STATUS]),
            9: ("qosClass", "Burstable"),
            10: ("initContainerStatuses", [STATUS]),
            13: ("ephemeralContainerStatuses", [STATUS]),
            14: ("resize", "Deferred"),
            19: ("allocatedResources", [AMOUNT]),
            20: ("resources", REQUIREMENTS),
        },
    ),
}

NUMBER = {1: ("value", -1)}
NRI_RESOURCES = {
    1: ("memory", {1: ("limit", NUMBER), 3: ("swap", NUMBER)}),
    2: (
        "cpu",
        {1: ("shares", {1: ("value", 2)}), 2: ("quota", NUMBER), 3: ("period", {1: ("value", 3)}), 6: ("cpus", "0-1")},
    ),
}
NRI_UPDATE = {
    1: ("container_id", "c"),
    2: ("linux", {1: ("resources", NRI_RESOURCES)}),
    3: ("ignore_failure", True),
}
NRI_POD = {
    1: ("id", "s"),
    2: ("name", "p"),
    3: ("uid", "u"),
    4: ("namespace", "n"),
    5: ("labels", [ENTRY]),
    6: ("annotations", [ENTRY]),
    8: ("linux", {3: ("cgroup_parent", "/kubepods")}),
}
NRI_CONTAINER = {
    1: ("id", "c"),
    2: ("pod_sandbox_id", "s"),
    3: ("name", "web"),
    5: ("labels", [ENTRY]),
    6: ("annotations", [ENTRY]),
    11: ("linux", {3: ("resources", NRI_RESOURCES), 5: ("cgroups_path", "/c")}),
}

PROXY_META = {1: ("name", "p"), 2: ("uid", "u"), 3: ("namespace", "n")}
PROXY_RESOURCES = {
    1: ("cpu_period", 1),
    2: ("cpu_quota", -1),
    3: ("cpu_shares", 3),
    4: ("memory_limit_in_bytes", 4),
    5: ("oom_score_adj", -5),
    6: ("cpuset_cpus", "0"),
    7: ("cpuset_mems", "1"),
    8: ("hugepage_limits", [b"h"]),
    9: ("unified", [b"u"]),
    10: ("memory_swap_limit_in_bytes", 10),
}

CRI_CONTAINER = {1: ("id", "c"), 6: ("state", 1), 8: ("labels", [ENTRY])}
BOUND = {1: ("name", "c"), 3: ("cpu_ids", [0, 300])}

MESSAGES: list[tuple[Messages, dict[str, Written]]] = [
    (
        PLUGIN_MESSAGES,
        {
            "Empty": {},
            "GetTokenResponse": {1: ("token", "t")},
            "GetThresholdMetRequest": {1: ("active_pods", [b"p"])},
            "ThresholdMetResponse": {
                1: ("threshold_value", 0.5),
                2: ("observed_value", -0.75),
                3: ("threshold_operator", 1),
                4: ("met_type", 2),
                5: ("eviction_scope", "memory"),
                6: ("grace_period_seconds", 6),
                7: ("condition", CONDITION),
                8: ("candidate_pods", [b"p", b""]),
            },
            "GetTopEvictionPodsRequest": {
                1: ("active_pods", [b"p"]),
                2: ("topN", (1 << 64) - 1),
                3: ("eviction_scope", "cpu"),
                4: ("candidate_eviction_records", [RECORD]),
            },
            "GetTopEvictionPodsResponse": {1: ("target_pods", [b"p"]), 2: ("deletion_options", DELETION)},
            "GetEvictPodsRequest": {1: ("active_pods", [b"p"])},
            "GetEvictPodsResponse": {
                1: (
                    "evict_pods",
                    [
                        {
                            1: ("pod", b"p"),
                            2: ("reason", "r"),
                            3: ("deletion_options", DELETION),
                            4: ("force_evict", True),
                            5: ("eviction_plugin_name", "e"),
                        }
                    ],
                ),
                2: ("condition", CONDITION),
            },
        },
    ),
    (
        REGISTRATION_MESSAGES,
        {
            "InfoRequest": {},
            "PluginInfo": {
                1: ("type", "EvictionPlugin"),
                2: ("name", "n"),
                3: ("endpoint", "/e"),
                4: ("supported_versions", ["v1alpha1"]),
            },
            "RegistrationStatus": {1: ("plugin_registered", True), 2: ("error", "e")},
            "RegistrationStatusResponse": {},
        },
    ),
    (POD_MESSAGES, {"Pod": {1: ("metadata", {5: ("uid", "u")})}}),
    (
        POD_TABLE,
        {
            "Unknown": {2: ("raw", b"r")},
            "PodList": {1: ("metadata", {3: ("continue", "c")}), 2: ("items", [b"p"])},
            "Pod": POD,
        },
    ),
    (
        TTRPC_MESSAGES,
        {
            "Request": {1: ("service", "s"), 2: ("method", "m"), 3: ("payload", b"p"), 4: ("timeout_nano", 4)},
            "Response": {1: ("status", {1: ("code", 12), 2: ("message", "m")}), 2: ("payload", b"p")},
        },
    ),
    (
        NRI_MESSAGES,
        {
            "RegisterPluginRequest": {1: ("plugin_name", "koordebpf"), 2: ("plugin_idx", "20")},
            "ConfigureRequest": {
                1: ("config", "c"),
                2: ("runtime_name", "containerd"),
                3: ("runtime_version", "2"),
                4: ("registration_timeout", 5000),
                5: ("request_timeout", 2000),
            },
            "ConfigureResponse": {2: ("events", 1 << 7)},
            "SynchronizeRequest": {3: ("more", True)},
            "SynchronizeResponse": {1: ("update", [NRI_UPDATE]), 2: ("more", True)},
            "ContainerRequest": {1: ("pod", NRI_POD), 2: ("container", NRI_CONTAINER)},
            "CreateContainerResponse": {
                1: ("adjust", {6: ("linux", {2: ("resources", NRI_RESOURCES), 4: ("oom_score_adj", NUMBER)})}),
                2: ("update", [NRI_UPDATE]),
            },
            "UpdateContainerResponse": {1: ("update", [NRI_UPDATE])},
            "StateChangeEvent": {1: ("event", 3), 2: ("pod", NRI_POD)},
        },
    ),
    (
        PROXY_MESSAGES,
        {
            "PodSandboxHookRequest": {
                1: ("pod_meta", PROXY_META),
                3: ("labels", [ENTRY]),
                4: ("annotations", [ENTRY]),
                5: ("cgroup_parent", "/kubepods"),
                7: ("resources", b"r"),
            },
            "PodSandboxHookResponse": {
                1: ("labels", [ENTRY]),
                2: ("annotations", [ENTRY]),
                3: ("cgroup_parent", "/kubepods"),
                4: ("resources", b"r"),
            },
            "ContainerResourceHookRequest": {
                1: ("pod_meta", PROXY_META),
                2: ("container_meta", {1: ("name", "c"), 3: ("id", "i")}),
                3: ("container_annotations", [b"a"]),
                4: ("container_resources", PROXY_RESOURCES),
                6: ("pod_annotations", [ENTRY]),
                7: ("pod_labels", [ENTRY]),
                8: ("pod_cgroup_parent", "/kubepods"),
                9: ("container_envs", [b"e"]),
            },
            "ContainerResourceHookResponse": {
                1: ("container_annotations", [b"a"]),
                2: ("container_resources", PROXY_RESOURCES),
                3: ("pod_cgroup_parent", "/kubepods"),
                4: ("container_envs", [b"e"]),
            },
        },
    ),
    (
        cri.MESSAGES,
        {
            "VersionRequest": {1: ("version", "v1")},
            "VersionResponse": {2: ("runtime_name", "containerd"), 3: ("runtime_version", "2")},
            "ListContainersRequest": {1: ("filter", {4: ("label_selector", [ENTRY])})},
            "ListContainersResponse": {1: ("containers", [CRI_CONTAINER])},
            "StopContainerRequest": {1: ("container_id", "c"), 2: ("timeout", 30)},
            "StopContainerResponse": {},
        },
    ),
    (
        kubelet.MESSAGES,
        {
            "ListPodResourcesRequest": {},
            "ListPodResourcesResponse": {
                1: ("pod_resources", [{1: ("name", "p"), 2: ("namespace", "n"), 3: ("containers", [BOUND])}])
            },
            "AllocatableResourcesRequest": {},
            "AllocatableResourcesResponse": {2: ("cpu_ids", [0, 1, 300])},
        },
    ),
]


@pytest.mark.parametrize(
    ("table", "name", "written"),
    [pytest.param(table, name, each, id=name) for table, kinds in MESSAGES for name, each in kinds.items()],
)
def test_each_field_has_the_number_and_the_type_of_its_protocol(table: Messages, name: str, written: Written) -> None:
    assert decode(table, name, on_the_wire(written)) == value_of(written)


def on_the_wire(written: Written) -> bytes:
    """Return the bytes, by https://protobuf.dev/programming-guides/encoding alone."""
    parts = []
    for number, (_, content) in written.items():
        for each in content if isinstance(content, list) else [content]:
            match each:
                case float():
                    parts.append(varint(number << 3 | 1) + struct.pack("<d", each))
                case int():
                    parts.append(varint(number << 3) + varint(each % (1 << 64)))
                case _:
                    data = (
                        on_the_wire(each)
                        if isinstance(each, dict)
                        else each.encode()
                        if isinstance(each, str)
                        else each
                    )
                    parts.append(varint(number << 3 | 2) + varint(len(data)) + data)
    return b"".join(parts)


def varint(number: int) -> bytes:
    high, low = divmod(number, 128)
    return bytes([low | 128]) + varint(high) if high else bytes([low])


def value_of(content: Any) -> Any:
    if isinstance(content, list):
        return [value_of(each) for each in content]
    return {name: value_of(each) for name, each in content.values()} if isinstance(content, dict) else content


@pytest.mark.parametrize(
    ("kind", "number", "sent"),
    [
        ("int32", 10**30, 2**31 - 1),
        ("int32", -(10**30), -(2**31)),
        ("int64", 2**63, 2**63 - 1),
        ("?int64", -(2**63) - 1, -(2**63)),
        ("uint64", 2**64, 2**64 - 1),
        ("uint64", -1, 0),
        ("*int64", [10**30], [2**63 - 1]),
    ],
)
def test_a_number_that_its_type_does_not_hold_is_sent_as_the_nearest(kind: str, number: Any, sent: Any) -> None:
    messages: Messages = {"m": {"n": (1, kind)}}
    found = decode(messages, "m", encode(messages, "m", {"n": number}))["n"]
    assert found == sent
