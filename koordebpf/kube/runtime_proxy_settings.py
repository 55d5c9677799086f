"""What an operator may set of the server for koord-runtime-proxy."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

ProxyStage = Literal["PreRunPodSandbox", "PostStopPodSandbox", "PreCreateContainer", "PreUpdateContainerResources"]
STAGES: tuple[ProxyStage, ...] = get_args(ProxyStage)


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
