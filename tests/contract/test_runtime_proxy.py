"""The server for koord-runtime-proxy: what it answers to a real gRPC client, and the file by which it is found."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from koordebpf.kube.nri.values import Answer, NriResources
from koordebpf.kube.runtime_proxy import PROXY_MESSAGES, SERVICE, RuntimeProxyServer
from koordebpf.kube.runtime_settings import RuntimeProxySettings
from tests.contract.apiserver import until
from tests.contract.nri_runtime import Answers
from tests.contract.protobuf_classes import message_classes
from tests.support.patience import patience

PROXY = message_classes("runtime.v1alpha1", PROXY_MESSAGES)
META = {"name": "web", "uid": "u-1", "namespace": "team"}


def proxy_settings(sockets: Path, **changes: Any) -> RuntimeProxySettings:
    paths = {"socket": str(sockets / "s.sock"), "config_file": str(sockets / "hooks.d/koordebpf.json")}
    return RuntimeProxySettings(**{**paths, **changes})


@contextmanager
def serving(sockets: Path, answers: Answers, **changes: Any) -> Iterator[tuple[RuntimeProxyServer, grpc.Channel]]:
    with RuntimeProxyServer(proxy_settings(sockets, **changes), answers) as server:
        until(lambda: server.state[0], lambda: server.state[1])
        with grpc.insecure_channel(f"unix://{sockets / 's.sock'}") as channel:
            yield server, channel


def call(channel: grpc.Channel, method: str, request: Any) -> Any:
    kind = "PodSandboxHookResponse" if "PodSandbox" in method else "ContainerResourceHookResponse"
    ask = channel.unary_unary(
        f"{SERVICE}/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=PROXY[kind].FromString,
    )
    return ask(request, timeout=patience(10))


def container_request(**resources: Any) -> Any:
    return PROXY["ContainerResourceHookRequest"](
        pod_meta=META,
        container_meta={"name": "main", "id": "c-1"},
        container_resources=resources,
        pod_annotations=[{"key": "a", "value": "b"}],
        pod_labels=[{"key": "koordinator.sh/qosClass", "value": "BE"}],
        pod_cgroup_parent="/kubepods/besteffort/podu-1",
    )


def test_a_container_gets_what_is_wanted_and_keeps_the_rest(sockets):
    wanted = NriResources(cpu_shares=512, cpu_quota_us=-1, memory_limit_bytes=1 << 30)
    answers = Answers(Answer(wanted))
    with serving(sockets, answers) as (server, channel):
        request = container_request(cpu_shares=2, cpu_period=100_000, oom_score_adj=1000, cpuset_mems="0")
        found = call(channel, "PreCreateContainerHook", request).container_resources
        assert (found.cpu_shares, found.cpu_quota, found.memory_limit_in_bytes) == (512, -1, 1 << 30)
        # The proxy takes these over also where they are empty.
        assert (found.oom_score_adj, found.cpuset_mems, found.cpu_period) == (1000, "0", 100_000)
        ((pod, container),) = answers.asked
        assert (pod.namespace, pod.name, pod.uid, pod.cgroup_parent) == (
            "team",
            "web",
            "u-1",
            "/kubepods/besteffort/podu-1",
        )
        assert (pod.labels, pod.annotations) == ({"koordinator.sh/qosClass": "BE"}, {"a": "b"})
        assert (container.name, container.id, container.cpu_shares, container.cpu_quota_us) == ("main", "c-1", 2, None)
        update = call(channel, "PreUpdateContainerResourcesHook", request)
        assert update.container_resources.cpu_shares == 512
        assert server.counts.adjusted == 2


def test_without_anything_to_want_a_request_comes_back_as_it_was(sockets):
    with serving(sockets, Answers()) as (_, channel):
        request = container_request(cpu_shares=2, cpuset_cpus="1-2", oom_score_adj=-5)
        for method in ("PreCreateContainerHook", "PreStartContainerHook", "PostStopContainerHook"):
            answer = call(channel, method, request)
            assert answer.container_resources == request.container_resources
            assert answer.pod_cgroup_parent == request.pod_cgroup_parent


def test_pods_that_start_and_stop_are_noted(sockets):
    answers = Answers()
    with serving(sockets, answers) as (_, channel):
        request = PROXY["PodSandboxHookRequest"](pod_meta=META, cgroup_parent="/kubepods/podu-1")
        assert call(channel, "PreRunPodSandboxHook", request).cgroup_parent == "/kubepods/podu-1"
        assert ([each.uid for each in answers.started], answers.removed) == (["u-1"], [])
        call(channel, "PostStopPodSandboxHook", request)
        assert [each.uid for each in answers.started] == ["u-1"]
        assert [each.uid for each in answers.removed] == ["u-1"]


def test_a_container_that_cannot_be_judged_is_passed_on_as_it_was(sockets):
    with serving(sockets, Answers(ValueError("no such thing"))) as (server, channel):
        request = container_request(cpu_shares=2)
        answer = call(channel, "PreCreateContainerHook", request)
        assert answer.container_resources == request.container_resources
        assert server.counts.drain_problems() == ("pod team/web: no such thing",)


def test_with_failure_policy_fail_it_is_refused(sockets):
    with serving(sockets, Answers(ValueError("no such thing")), failure_policy="fail") as (_, channel):
        with pytest.raises(grpc.RpcError) as refused:
            call(channel, "PreCreateContainerHook", container_request())
        assert "pod team/web: no such thing" in refused.value.details()
        call(channel, "PreStartContainerHook", container_request())


def test_the_proxy_finds_it_by_a_file_for_as_long_as_it_serves(sockets):
    path = sockets / "hooks.d/koordebpf.json"
    with serving(sockets, Answers(), disabled_stages=("PostStopPodSandbox",), host_socket="/host/s.sock"):
        assert json.loads(until(lambda: path.exists() and path.read_text(), "the file")) == {
            "remote-endpoint": "/host/s.sock",
            "failure-policy": "Ignore",
            "runtime-hooks": ["PreRunPodSandbox", "PreCreateContainer", "PreUpdateContainerResources"],
        }
        assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == []
    assert not (sockets / "s.sock").exists()


def test_a_directory_that_cannot_be_written_is_a_problem_and_the_server_ends_at_once(sockets):
    (sockets / "hooks.d").write_text("a file")
    with RuntimeProxyServer(proxy_settings(sockets), Answers()) as server:
        until(lambda: "hooks.d" in server.state[1], lambda: server.state[1])
        assert not server.state[0]
        started_s = time.monotonic()
    assert time.monotonic() - started_s < patience(10)
    assert not [each for each in threading.enumerate() if each.name == "runtime-proxy"]
