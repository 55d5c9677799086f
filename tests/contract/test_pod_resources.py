"""Which CPUs kubelet bound, over a PodResources socket of our own making."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from koordebpf.collect.cpu.kubelet_cpus import KubeletCpus
from koordebpf.errors import KubeError
from koordebpf.kube.cache.objects import Pod
from koordebpf.kube.clients.kubelet import MESSAGES, PACKAGE, BoundCpus, PodCpus, bound_cpus
from koordebpf.kube.sources.cpu_manager import CpuManagerState
from koordebpf.state.pods.facts import PodFacts, pod_facts
from tests.contract.apiserver import until
from tests.contract.protobuf_classes import message_classes


class Kubelet:
    """Answers what the test sets: allocatable CPUs, and (namespace, name) → CPUs of each container."""

    def __init__(self, socket: Path) -> None:
        self.messages = message_classes(PACKAGE, MESSAGES)
        self.allocatable: tuple[int, ...] = ()
        self.pods: dict[tuple[str, str], list[tuple[int, ...]]] = {}
        self.fails = False
        self.answers = threading.Event()
        self.answers.set()
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        answers = {
            "GetAllocatableResources": ("AllocatableResources", self._allocatable),
            "List": ("ListPodResources", self._list),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                answer,
                request_deserializer=self.messages[f"{kind}Request"].FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, (kind, answer) in answers.items()
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),)
        )
        self._server.add_insecure_port(f"unix:{socket}")
        self._server.start()

    def _allocatable(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self.fails:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return self.messages["AllocatableResourcesResponse"](cpu_ids=self.allocatable)

    def _list(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.answers.wait(10)
        container = self.messages["ContainerResources"]
        pods = [
            self.messages["PodResources"](
                name=name,
                namespace=namespace,
                containers=[container(name=f"c{n}", cpu_ids=each) for n, each in enumerate(cpus)],
            )
            for (namespace, name), cpus in self.pods.items()
        ]
        return self.messages["ListPodResourcesResponse"](pod_resources=pods)

    def close(self) -> None:
        self.answers.set()
        self._server.stop(None).wait()


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


@pytest.fixture
def kubelet(socket: Path) -> Iterator[Kubelet]:
    kubelet = Kubelet(socket)
    yield kubelet
    kubelet.close()


def test_the_cpus_of_all_containers_of_a_pod_are_its_own(kubelet: Kubelet, socket: Path) -> None:
    kubelet.allocatable = (1, 2, 3, 700)
    kubelet.pods = {("ls", "web"): [(3, 2), (), (700,)], ("be", "job"): [()]}
    assert bound_cpus(socket) == BoundCpus((1, 2, 3, 700), (PodCpus("ls", "web", (2, 3, 700)),))


def test_policy_none_binds_nothing(kubelet: Kubelet, socket: Path) -> None:
    kubelet.pods = {("ls", "web"): [()]}
    assert bound_cpus(socket) == BoundCpus()


def test_a_refusal_is_reported_in_kubelets_words(kubelet: Kubelet, socket: Path) -> None:
    kubelet.fails = True
    with pytest.raises(KubeError, match="kubelet says RESOURCE_EXHAUSTED: rejected by rate limit"):
        bound_cpus(socket)


def test_a_socket_without_a_server_is_named(socket: Path) -> None:
    with pytest.raises(KubeError, match=f"{socket}: .*kubelet says UNAVAILABLE"):
        bound_cpus(socket)


def test_a_kubelet_that_hangs_is_left(kubelet: Kubelet, socket: Path) -> None:
    kubelet.answers.clear()
    with pytest.raises(KubeError, match="kubelet says DEADLINE_EXCEEDED"):
        bound_cpus(socket, timeout_s=0.1)


def facts(name: str, *, guaranteed: bool = True, phase: str = "Running") -> PodFacts:
    resources = {"cpu": "2", "memory": "1Gi"}
    container = {"name": "main", "resources": {"requests": resources, "limits": resources if guaranteed else {}}}
    return pod_facts(
        msgspec.convert(
            {
                "metadata": {"name": name, "namespace": "ls", "uid": f"u-{name}"},
                "spec": {"containers": [container]},
                "status": {"phase": phase},
            },
            Pod,
        )
    )


class TestWhenItIsAsked:
    @pytest.fixture
    def rig(self, socket: Path, kubelet: Kubelet) -> Iterator[Rig]:
        rig = Rig(socket)
        yield rig
        rig.cpus.close()

    def test_until_the_first_answer_nothing_is_known(self, rig: Rig) -> None:
        rig.answers.clear()
        assert not rig.cpus.is_awaited
        rig.cpus.request([facts("web")], 1)
        assert rig.cpus.read() is None
        assert rig.cpus.is_awaited
        rig.answers.set()
        until(lambda: rig.cpus.read() == CpuManagerState("static", {"u-web": (2, 3)}), "the answer")
        assert not rig.cpus.is_awaited

    def test_a_kubelet_that_refuses_is_not_waited_for(self, rig: Rig) -> None:
        rig.fails = True
        rig.cpus.request([facts("web")], 1)
        until(lambda: not rig.cpus.is_awaited, "the refusal")
        assert rig.cpus.read() is None

    def test_where_nothing_changes_no_request_is_sent(self, rig: Rig) -> None:
        for _ in range(50):
            rig.cpus.request([facts("web"), facts("job", guaranteed=False)], 1)
        until(lambda: rig.asked == 1, "the first question")
        rig.cpus.request([facts("web"), facts("job", guaranteed=False), facts("other", guaranteed=False)], 1)
        assert not rig.asks_again()

    @pytest.mark.parametrize("change", ["another", "phase", "cgroup", "gone"])
    def test_a_guaranteed_pod_that_is_added_starts_or_ends_is_queried(self, change: str, rig: Rig) -> None:
        rig.cpus.request([facts("web", phase="Pending")], 1)
        until(lambda: rig.asked == 1, "the first question")
        web = facts("web", phase="Pending")
        pods, cgroups = {
            "another": ([web, facts("db")], 1),
            "phase": ([facts("web")], 1),
            "cgroup": ([web], 2),
            "gone": ([], 1),
        }[change]
        rig.cpus.request(pods, cgroups)
        assert rig.asks_again()

    def test_what_was_known_stays_while_kubelet_does_not_answer(
        self, rig: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        rig.cpus.request([facts("web")], 1)
        until(lambda: rig.cpus.read() is not None, "the answer")
        rig.fails = True
        rig.cpus.request([facts("web")], 2)
        assert rig.asks_again()
        until(lambda: "could not be read again: it is away" in caplog.text, "the warning")
        assert rig.cpus.read() == CpuManagerState("static", {"u-web": (2, 3)})

    def test_a_pod_that_the_list_does_not_know_has_its_cpus_all_the_same(self, rig: Rig) -> None:
        rig.cpus.request([facts("db")], 1)
        until(lambda: rig.cpus.read() == CpuManagerState("static", {"ls/web": (2, 3)}), "the answer")


class Rig:
    """A KubeletCpus whose questions are counted."""

    def __init__(self, socket: Path) -> None:
        self.asked = 0
        self.fails = False
        self.answers = threading.Event()
        self.answers.set()
        self.cpus = KubeletCpus(socket, self._ask, apart_s=0)

    def _ask(self, socket: Path) -> BoundCpus:
        self.asked += 1
        self.answers.wait(10)
        if self.fails:
            raise KubeError("it is away")
        return BoundCpus((1, 2, 3), (PodCpus("ls", "web", (2, 3)),))

    def asks_again(self) -> bool:
        """Tell whether a second question comes within a moment."""
        try:
            until(lambda: self.asked > 1, "a question", 0.3)
        except (TimeoutError, AssertionError):
            return False
        return True


def test_without_a_socket_no_server_is_asked(tmp_path: Path) -> None:
    cpus = KubeletCpus(tmp_path / "none.sock")
    cpus.request([facts("web")], 1)
    assert cpus.read() is None
    cpus.close()
