"""What an operator may set of how a runtime asks the agent: by NRI, or through koord-runtime-proxy."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from koordebpf.units import NS_PER_MS, NS_PER_S

ProxyStage = Literal["PreRunPodSandbox", "PostStopPodSandbox", "PreCreateContainer", "PreUpdateContainerResources"]
STAGES: tuple[ProxyStage, ...] = get_args(ProxyStage)
NriEvent = Literal["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "CreateContainer", "UpdateContainer"]


class RuntimeProxySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How koord-runtime-proxy finds the agent. Where the runtime has NRI, `nri` is the shorter way.

    `enabled`         serve it, and adjust containers by the runtime hooks whose feature gates are on. Why false: few
                      nodes have the proxy, and koordlet may serve it on the same node.
    `socket`          where the agent listens. Why: koordlet's directory, which the proxy can reach, and a name of its
                      own, so that koordlet's socket stays.
    `host_socket`     the same socket as the proxy sees it. Why none: the agent's own path, as in the DaemonSet.
    `config_file`     which tells the proxy of the agent; it is removed when the agent ends. Why: the directory that the
                      proxy watches, and a name of its own.
    `failure_policy`  ignore: where the agent does not answer, or a container cannot be judged, the kubelet's request is
                      passed on as it is; fail: it is refused. Why ignore: koordlet's.
    `disabled_stages` what the proxy does not ask for. Why none: koordlet's.
    """

    enabled: bool = False
    socket: Annotated[str, Meta(pattern=r"^/.{0,106}$", description="an absolute path of at most 107 bytes")] = (
        "/var/run/koordlet/koordebpf.sock"
    )
    host_socket: Annotated[str, Meta(pattern=r"^/", description="an absolute path")] | None = None
    config_file: Annotated[str, Meta(pattern=r"^/", description="an absolute path")] = (
        "/etc/runtime/hookserver.d/koordebpf.json"
    )
    failure_policy: Literal["ignore", "fail"] = "ignore"
    disabled_stages: tuple[ProxyStage, ...] = ()


class NriSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the agent registers with the container runtime.

    `enabled`         register, and adjust containers by the runtime hooks whose feature gates are on. Why false:
                      koordlet may do it on the same node, and a runtime lets only one plugin set a value.
    `socket`          the runtime's NRI socket. Why: the default of containerd and CRI-O. Where it is not there it is
                      looked for again.
    `name`            of the plugin; a dry run adds -dry-run. Why koordebpf: koordlet's is koordlet_nri, and a log of
                      the runtime shows which one it calls.
    `index`           two digits: the runtime calls plugins in this order. Why 00: koordlet's.
    `events`          what the runtime calls the plugin for. Why these: koordlet's four.
    `failure_policy`  ignore: a container whose adjustment failed starts as the kubelet asked for; fail: the runtime
                      does not create it. Why ignore: koordlet's, and the reconciler corrects it.
    `registration_timeout_ns` a runtime that does not configure the plugin for so long is connected to once more. Why
                      30 s: a runtime registers one plugin at a time, and waits up to 5 s for each one before it.
    `backoff_ns`      until the first new attempt; each one that fails doubles it. Why 1 s: koordlet's.
    `backoff_cap_ns`  the longest one. Why 30 s: a container that is created meanwhile is not adjusted; attempts cost
                      one connect(2).
    """

    enabled: bool = False
    socket: Annotated[str, Meta(pattern=r"^/.{0,106}$", description="an absolute path of at most 107 bytes")] = (
        "/var/run/nri/nri.sock"
    )
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,63}$", description="1 to 63 letters, digits, . _ or -")] = (
        "koordebpf"
    )
    index: Annotated[str, Meta(pattern=r"^[0-9]{2}$", description="two digits, as 00")] = "00"
    events: tuple[NriEvent, ...] = ("RunPodSandbox", "RemovePodSandbox", "CreateContainer", "UpdateContainer")
    failure_policy: Literal["ignore", "fail"] = "ignore"
    registration_timeout_ns: Annotated[int, Meta(ge=100 * NS_PER_MS, le=60 * NS_PER_S)] = 30 * NS_PER_S
    backoff_ns: Annotated[int, Meta(ge=10 * NS_PER_MS, le=60 * NS_PER_S)] = NS_PER_S
    backoff_cap_ns: Annotated[int, Meta(ge=NS_PER_S, le=600 * NS_PER_S)] = 30 * NS_PER_S
