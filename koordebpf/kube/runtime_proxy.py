"""Serves RuntimeHookService from a thread of its own, and tells koord-runtime-proxy of it by a file.

Source: koordinator pkg/koordlet/runtimehooks/proxyserver/server.go; pkg/runtimeproxy/config.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.worker import StoppableThread
from koordebpf.kube.clients.protobuf import Fields, decode, encode
from koordebpf.kube.nri.values import Answering, NriContainer, NriCounts, NriPod, NriResources, judged, mapping_of
from koordebpf.kube.plugins.connection import CallFailed, Methods
from koordebpf.kube.plugins.server import GrpcServer
from koordebpf.kube.runtime_settings import STAGES, RuntimeProxySettings
from koordebpf.units import NS_PER_MS, NS_PER_S

SERVICE = "/runtime.v1alpha1.RuntimeHookService"
PROXY_MESSAGES: dict[str, Fields] = {
    "Entry": {"key": (1, "string"), "value": (2, "string")},
    "PodSandboxMetadata": {"name": (1, "string"), "uid": (2, "string"), "namespace": (3, "string")},
    "PodSandboxHookRequest": {
        "pod_meta": (1, "PodSandboxMetadata"),
        "labels": (3, "*Entry"),
        "annotations": (4, "*Entry"),
        "cgroup_parent": (5, "string"),
        "resources": (7, "bytes"),
    },
    "PodSandboxHookResponse": {
        "labels": (1, "*Entry"),
        "annotations": (2, "*Entry"),
        "cgroup_parent": (3, "string"),
        "resources": (4, "bytes"),
    },
    "LinuxContainerResources": {
        "cpu_period": (1, "int64"),
        "cpu_quota": (2, "int64"),
        "cpu_shares": (3, "int64"),
        "memory_limit_in_bytes": (4, "int64"),
        "oom_score_adj": (5, "int64"),
        "cpuset_cpus": (6, "string"),
        "cpuset_mems": (7, "string"),
        "hugepage_limits": (8, "*bytes"),
        "unified": (9, "*bytes"),
        "memory_swap_limit_in_bytes": (10, "int64"),
    },
    "ContainerMetadata": {"name": (1, "string"), "id": (3, "string")},
    "ContainerResourceHookRequest": {
        "pod_meta": (1, "PodSandboxMetadata"),
        "container_meta": (2, "ContainerMetadata"),
        "container_annotations": (3, "*bytes"),
        "container_resources": (4, "LinuxContainerResources"),
        "pod_annotations": (6, "*Entry"),
        "pod_labels": (7, "*Entry"),
        "pod_cgroup_parent": (8, "string"),
        "container_envs": (9, "*bytes"),
    },
    "ContainerResourceHookResponse": {
        "container_annotations": (1, "*bytes"),
        "container_resources": (2, "LinuxContainerResources"),
        "pod_cgroup_parent": (3, "string"),
        "container_envs": (4, "*bytes"),
    },
}
_NO_META: Mapping[str, str] = {"name": "", "uid": "", "namespace": "", "id": ""}
_AGAIN_NS = 5 * NS_PER_S  # after a problem with the socket or the file
_MODE = 0o644  # Why: koordlet's; the proxy may run as another user
_POLICIES = {"ignore": "Ignore", "fail": "Fail"}


# The methods of RuntimeHookService: a request, and the response that koord-runtime-proxy lays over the kubelet's.
#
# The proxy takes CPUs and oom_score_adj of a response as they are, also where they are empty or 0: a response begins as
# a copy of its request.
#
# Source: koordinator apis/runtime/v1alpha1/api.proto; pkg/runtimeproxy/resexecutor/cri/utils.go.


class HookService:
    """Answers by what `answering` decides.

    Args:
        answering: what is asked for each container.
        counts: where calls are counted, by the names that NRI has for them.
        fails: a container that cannot be judged is refused.
    """

    def __init__(self, answering: Answering, counts: NriCounts, *, fails: bool) -> None:
        self._answering = answering
        self._counts = counts
        self._fails = fails

    @property
    def methods(self) -> Methods:
        """The service's methods by their path."""
        hooks = {
            "PreCreateContainerHook": ("CreateContainer", self._container),
            "PreUpdateContainerResourcesHook": ("UpdateContainer", self._container),
            **{f"{stage}ContainerHook": (stage, _same_container) for stage in ("PreStart", "PostStart", "PostStop")},
            "PreRunPodSandboxHook": ("StateChange", lambda message: self._pod(message, self._answering.pod_started)),
            "PostStopPodSandboxHook": ("Removed", lambda message: self._pod(message, self._answering.pod_removed)),
        }
        return {f"{SERVICE}/{name}": self._counted(*each) for name, each in hooks.items()}

    def _counted(self, name: str, method: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        def call(message: bytes) -> bytes:
            started_ns, is_ok = time.monotonic_ns(), False
            try:
                answer = method(message)
                is_ok = True
            finally:
                self._counts.took(name, (time.monotonic_ns() - started_ns) / NS_PER_MS, is_ok=is_ok)
            return answer

        return call

    def _container(self, message: bytes) -> bytes:
        request = decode(PROXY_MESSAGES, "ContainerResourceHookRequest", message)
        answer = judged(self._answering, _container_pod(request), _container(request))
        for problem in answer.problems:
            self._counts.failed(problem[:300])
        if answer.problems and self._fails:
            raise CallFailed("UNKNOWN", answer.problems[0][:300])
        if answer.resources is None:
            return _same(request)
        self._counts.adjusted += 1
        given = request["container_resources"] or {}
        return _same({**request, "container_resources": {**given, **_changes(answer.resources)}})

    def _pod(self, message: bytes, note: Callable[[NriPod], None]) -> bytes:
        request = decode(PROXY_MESSAGES, "PodSandboxHookRequest", message)
        meta = request["pod_meta"] or _NO_META
        note(_pod(meta, request["labels"], request["annotations"], request["cgroup_parent"]))
        return encode(PROXY_MESSAGES, "PodSandboxHookResponse", request)


def _changes(wanted: NriResources) -> dict[str, Any]:
    named = {
        "cpu_shares": wanted.cpu_shares,
        "cpu_quota": wanted.cpu_quota_us,
        "memory_limit_in_bytes": wanted.memory_limit_bytes,
        "cpuset_cpus": wanted.cpuset_cpus,
        "oom_score_adj": wanted.oom_score_adj,
    }
    return {name: value for name, value in named.items() if value is not None}


def _same_container(message: bytes) -> bytes:
    return _same(decode(PROXY_MESSAGES, "ContainerResourceHookRequest", message))


def _same(request: Mapping[str, Any]) -> bytes:
    return encode(PROXY_MESSAGES, "ContainerResourceHookResponse", request)


def _container_pod(request: Mapping[str, Any]) -> NriPod:
    meta = request["pod_meta"] or _NO_META
    return _pod(meta, request["pod_labels"], request["pod_annotations"], request["pod_cgroup_parent"])


def _pod(meta: Mapping[str, str], labels: list[dict[str, str]], annotations: list[dict[str, str]], at: str) -> NriPod:
    return NriPod(meta["name"], meta["uid"], meta["namespace"], mapping_of(labels), mapping_of(annotations), at)


# 0 of proto3 is also what was not sent: no limit, and no shares of its own.
def _container(request: Mapping[str, Any]) -> NriContainer:
    meta, resources = request["container_meta"] or _NO_META, request["container_resources"] or {}
    return NriContainer(
        meta["id"],
        meta["name"],
        cpu_shares=resources.get("cpu_shares") or None,
        cpu_quota_us=resources.get("cpu_quota") or None,
        cpu_period_us=resources.get("cpu_period") or None,
        memory_limit_bytes=resources.get("memory_limit_in_bytes") or None,
    )


class RuntimeProxyServer(Closing):
    """Serves until `close`, and removes its file then.

    Args:
        settings: of the server.
        answering: what is asked for each container, in the server's thread.
        begin: run first in that thread.
    """

    def __init__(
        self, settings: RuntimeProxySettings, answering: Answering, begin: Callable[[], object] | None = None
    ) -> None:
        self.counts = NriCounts()
        self._settings = settings
        self._methods = HookService(answering, self.counts, fails=settings.failure_policy == "fail").methods
        self._state = (False, "starting")
        self._thread = StoppableThread("runtime-proxy", self._run, begin)
        self._thread.start()

    @property
    def state(self) -> tuple[bool, str]:
        """Whether it serves, and a sentence."""
        return self._state

    def close(self) -> None:
        """Remove the file, then the socket."""
        self._thread.close()

    def _run(self) -> NoReturn:
        while True:
            try:
                with GrpcServer(Path(self._settings.socket), self._methods, time.monotonic()) as server:
                    self._serve(server)
            except (ConfigError, OSError) as error:
                self._state = (False, str(error))
            self._thread.wait(time.monotonic_ns() + _AGAIN_NS)

    def _serve(self, server: GrpcServer) -> NoReturn:
        with self._announced():
            self._state = (True, f"serving koord-runtime-proxy at {self._settings.socket}")
            while True:
                due_s = server.run_due(time.monotonic())
                self._thread.wait(int(due_s * NS_PER_S), server.fileno())
                server.serve(time.monotonic())

    # The proxy asks the agent from when the file is there until it is gone.
    @contextlib.contextmanager
    def _announced(self) -> Iterator[None]:
        path = Path(self._settings.config_file)
        said = {
            "remote-endpoint": self._settings.host_socket or self._settings.socket,
            "failure-policy": _POLICIES[self._settings.failure_policy],
            "runtime-hooks": [each for each in STAGES if each not in self._settings.disabled_stages],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.unfinished")
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(said), indent=2))
        unfinished.chmod(_MODE)
        unfinished.rename(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
