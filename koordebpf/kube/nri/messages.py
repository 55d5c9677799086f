"""Messages of ttrpc and of NRI's two services, as far as this plugin reads and answers them.

Source: containerd/ttrpc request.proto; containerd/nri v0.11.0 pkg/api/api.proto, whose field numbers did not change
since v0.2.
"""

from __future__ import annotations

from koordebpf.kube.clients.protobuf import Fields

PACKAGE = "nri.pkg.api.v1alpha1"
RUNTIME_SERVICE, PLUGIN_SERVICE = f"{PACKAGE}.Runtime", f"{PACKAGE}.Plugin"

# enum Event; a subscription has bit 1 << (event - 1).
EVENTS = {
    "RunPodSandbox": 1,
    "StopPodSandbox": 2,
    "RemovePodSandbox": 3,
    "CreateContainer": 4,
    "UpdateContainer": 8,
}

TTRPC_MESSAGES: dict[str, Fields] = {
    "Request": {
        "service": (1, "string"),
        "method": (2, "string"),
        "payload": (3, "bytes"),
        "timeout_nano": (4, "int64"),
    },
    "Status": {"code": (1, "int32"), "message": (2, "string")},
    "Response": {"status": (1, "Status"), "payload": (2, "bytes")},
}

NRI_MESSAGES: dict[str, Fields] = {
    "Empty": {},
    "Entry": {"key": (1, "string"), "value": (2, "string")},
    "OptionalInt64": {"value": (1, "int64")},
    "OptionalUInt64": {"value": (1, "uint64")},
    "LinuxMemory": {"limit": (1, "OptionalInt64"), "swap": (3, "OptionalInt64")},
    "LinuxCPU": {
        "shares": (1, "OptionalUInt64"),
        "quota": (2, "OptionalInt64"),
        "period": (3, "OptionalUInt64"),
        "cpus": (6, "string"),
    },
    "LinuxResources": {"memory": (1, "LinuxMemory"), "cpu": (2, "LinuxCPU")},
    "LinuxPodSandbox": {"cgroup_parent": (3, "string")},
    "PodSandbox": {
        "id": (1, "string"),
        "name": (2, "string"),
        "uid": (3, "string"),
        "namespace": (4, "string"),
        "labels": (5, "*Entry"),
        "annotations": (6, "*Entry"),
        "linux": (8, "LinuxPodSandbox"),
    },
    "LinuxContainer": {"resources": (3, "LinuxResources"), "cgroups_path": (5, "string")},
    "Container": {
        "id": (1, "string"),
        "pod_sandbox_id": (2, "string"),
        "name": (3, "string"),
        "labels": (5, "*Entry"),
        "annotations": (6, "*Entry"),
        "linux": (11, "LinuxContainer"),
    },
    "RegisterPluginRequest": {"plugin_name": (1, "string"), "plugin_idx": (2, "string")},
    "ConfigureRequest": {
        "config": (1, "string"),
        "runtime_name": (2, "string"),
        "runtime_version": (3, "string"),
        "registration_timeout": (4, "int64"),
        "request_timeout": (5, "int64"),
    },
    "ConfigureResponse": {"events": (2, "int32")},
    # Its pods and containers may be megabytes, and nothing of them is read: the reconciler corrects those that run.
    "SynchronizeRequest": {"more": (3, "bool")},
    "ContainerUpdate": {
        "container_id": (1, "string"),
        "linux": (2, "LinuxContainerUpdate"),
        "ignore_failure": (3, "bool"),
    },
    "LinuxContainerUpdate": {"resources": (1, "LinuxResources")},
    "SynchronizeResponse": {"update": (1, "*ContainerUpdate"), "more": (2, "bool")},
    "ContainerRequest": {"pod": (1, "PodSandbox"), "container": (2, "Container")},  # of CreateContainer and others
    "LinuxContainerAdjustment": {"resources": (2, "LinuxResources"), "oom_score_adj": (4, "OptionalInt64")},
    "ContainerAdjustment": {"linux": (6, "LinuxContainerAdjustment")},
    "CreateContainerResponse": {"adjust": (1, "ContainerAdjustment"), "update": (2, "*ContainerUpdate")},
    "UpdateContainerResponse": {"update": (1, "*ContainerUpdate")},
    "StateChangeEvent": {"event": (1, "int32"), "pod": (2, "PodSandbox")},
}
