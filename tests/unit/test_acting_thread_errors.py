"""The same of threads that act, record, report and read the cluster; `test_thread_errors` has the others."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from koordebpf.act import taint as taint_module
from koordebpf.act.evict import cgroup as reaper_module
from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.api import ApiExecutor, ApiLimits
from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.act.evict.cri import CriExecutor, CriLimits
from koordebpf.act.eviction_hooks import Ran
from koordebpf.act.taint import NodeMarker
from koordebpf.controller.election import Election, Terms
from koordebpf.jobs.node_metric import publish as metric_module
from koordebpf.jobs.node_metric.publish import NodeMetricReporter
from koordebpf.jobs.node_metric.sending import Send
from koordebpf.jobs.node_topology import publish as topology_module
from koordebpf.jobs.node_topology.publish import Noted, TopologyReporter
from koordebpf.kernel.io import worker as worker_module
from koordebpf.kernel.io.worker import Supervisor, supervisors, thread_errors, thread_problems
from koordebpf.kube.cache.objects import Node, ObjectMeta
from koordebpf.kube.cache.reflector import Pace, Reflector, Resource
from koordebpf.kube.cache.store import decode_pod
from koordebpf.kube.clients.cri import PodContainers
from koordebpf.kube.sources.kubelet import KubeletSource
from koordebpf.report.events import EventPoster, PodEvent
from koordebpf.report.http.listener import HttpListener, Reply, bound_to
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.recorder.recorder import Recorder
from koordebpf.strategies.katalyst import rootfs as rootfs_module
from koordebpf.strategies.katalyst.outside import _Round
from koordebpf.strategies.katalyst.rootfs import RootfsCollector
from tests.contract.apiserver import listing, pod, until
from tests.contract.test_listener import probe
from tests.support.values.rounds import round_ended
from tests.unit.act.test_eviction_hook_runner import Answers, calling, hook
from tests.unit.act.test_executors import victim
from tests.unit.test_thread_errors import Fault, fails, is_well


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_REST_S", 0.01)
    monkeypatch.setattr(worker_module, "_LOG_APART_S", 0.0)


class Outcomes(OutcomeQueue):
    """What executors answered."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.all: list[Outcome] = []

    def answered(self, count: int) -> Outcome:
        def is_so() -> bool:
            self.all.extend(self.drain())
            return len(self.all) >= count

        until(is_so, f"{count} outcomes")
        return self.all[count - 1]


def test_evictors() -> None:
    api: Any = SimpleNamespace(evict=Fault(lambda *_, **__: None), close=lambda: None)
    outcomes = Outcomes()
    with contextlib.closing(ApiExecutor(api, outcomes, limits=ApiLimits(workers=1), enforce=True)) as executor:
        executor.submit(victim("a"), 1)
        failed = outcomes.answered(1)
        assert (failed.result, failed.detail) == (Result.FAILED, "Injected: of a test")
        assert failed.retry_at_ns is not None
        fails("evictor-0")
        executor.submit(victim("b"), 2)
        assert outcomes.answered(2).result is Result.DONE
        until(lambda: is_well("evictor-0"), "it is well")
        assert executor._in_flight == set()


def test_reapers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper_module, "_REAPERS", 1)
    monkeypatch.setattr(reaper_module, "raise_thread_priority", lambda: None)
    monkeypatch.setattr(reaper_module, "how_it_ended", lambda *_: (Result.DONE, "ended"))
    finish = Fault(lambda **_: SimpleNamespace(killed_tasks=1, left_tasks=0, unseen_tasks=0))

    class Kill(contextlib.nullcontext[None]):
        target, signalled_ns = SimpleNamespace(cpu=None), 1

        def finish(self, **given: Any) -> Any:
            return finish(**given)

    outcomes = Outcomes()
    with contextlib.closing(CgroupExecutor(lambda *_: None, outcomes, enforce=True)) as executor:
        executor._work.put((victim("a"), 1, Kill(), ()))  # type: ignore[arg-type]
        assert outcomes.answered(1).result is Result.FAILED
        fails("reaper-0")
        executor._work.put((victim("b"), 1, Kill(), ()))  # type: ignore[arg-type]
        assert outcomes.answered(2).result is Result.DONE
        until(lambda: is_well("reaper-0"), "it is well")


def test_stoppers() -> None:
    asked = Fault(lambda *_: PodContainers((), frozenset()))
    cri: Any = SimpleNamespace(warm=Fault(lambda _: None), containers=asked, close=lambda: None)
    outcomes, limits = Outcomes(), CriLimits(workers=1)
    with contextlib.closing(CriExecutor(cri, outcomes, limits=limits, enforce=True)) as executor:
        fails("stopper-0")  # to warm the connection
        executor.submit(victim("a"), 1)
        failed = outcomes.answered(1)
        assert (failed.result, failed.detail) == (Result.FAILED, "Injected: of a test")
        executor.submit(victim("b"), 1)
        assert outcomes.answered(2).result is Result.GONE
        until(lambda: is_well("stopper-0"), "it is well")
        assert executor._in_flight == {}


def test_kubernetes_events() -> None:
    api: Any = SimpleNamespace(create_event=Fault(lambda *_, **__: None), close=lambda: None)
    poster = EventPoster(api)
    with contextlib.closing(poster):
        poster.post(PodEvent("ns", "a", "u", "evictPodSuccess", "m"), 0.0)
        fails("events")
        poster.post(PodEvent("ns", "b", "u", "evictPodSuccess", "m"), 0.0)
        until(lambda: is_well("events"), "it is well")
        assert (api.create_event.calls, poster.dropped) == (2, 1)


def test_the_recorder() -> None:
    disk: Any = SimpleNamespace(
        add=Fault(lambda *_: None),
        add_events=lambda *_: None,
        close=lambda: None,
        bytes_on_disk=0,
        reach_s=lambda _: {},
    )
    recorder = Recorder(disk, begin=Fault(lambda: None))
    with contextlib.closing(recorder):
        fails("recorder")  # as it begins
        recorder.publish(round_ended(0))
        until(lambda: recorder.counts.lost_rounds == 1, "a round that is lost")
        recorder.publish(round_ended(1))
        until(lambda: is_well("recorder"), "it is well")
        assert recorder.counts.rounds == 1


def test_layers_of_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rootfs_module, "_LOOK_S", 0.01)
    is_short = Fault(lambda _: False)
    with RootfsCollector(dict, tmp_path, is_short):
        until(lambda: is_short.calls > 1 and is_well("rootfs"), "it looks again")


def test_marks_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taint_module, "_DENIED_FIRST_S", 0.01)
    remove = Fault(lambda **_: True)
    marks: Any = SimpleNamespace(node_name="n1", remove=remove, put=lambda *_, **__: True, close=lambda: None)
    with contextlib.closing(NodeMarker(marks, "taint")):
        until(lambda: remove.calls == 2 and is_well("node-mark"), "it is made again")


def test_reports_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_module, "_DENIED_FIRST_S", 0.01)
    monkeypatch.setattr(metric_module, "RETRY_FIRST_S", 0.01)
    report: Any = object()
    step, patch = Fault(lambda *_: Send(b"{}", 1.0, {}, report, "1")), Fault(lambda *_, **__: None)
    sending: Any = SimpleNamespace(step=step, starts=lambda *_: None, answered=lambda *_: None, other=None)
    status: Any = SimpleNamespace(patch=patch, forget_connections=lambda: None, close=lambda: None)
    reporter = NodeMetricReporter(status, sending, lambda: None)
    with contextlib.closing(reporter):
        reporter.report(report)
        # To decide, to send, and then neither.
        until(lambda: patch.calls > 1 and is_well("node-metric"), "it is sent")
        assert (reporter.counts.failures, reporter.problem) == (1, None)
    assert next(each for each in supervisors() if each.name == "node-metric").failures == 2


def test_the_topology_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_module, "_DENIED_S", 0.01)
    info = Fault(lambda: None)
    sources: Any = SimpleNamespace(info=info, config=lambda: None, close=lambda: None)
    reporter = TopologyReporter(sources, None, apart_s=0.001)
    with contextlib.closing(reporter):
        reporter.set_input(Noted(Node(ObjectMeta("n1"))))
        until(lambda: info.calls > 1 and is_well("node-topology"), "it looks again")
        assert reporter.problem is None


def test_hooks_of_evictions() -> None:
    answers = Answers()
    answers.call = Fault(lambda _: Ran("done"))  # type: ignore[method-assign]
    with contextlib.closing(calling((hook("a"), answers))) as hooks:
        hooks.call("after", lambda _: b"{}", dry_run=False)
        hooks.call("after", lambda _: b"{}", dry_run=False)
        until(lambda: hooks.counts()["a", "done"] == 1 and is_well("hook-a"), "the second call")
        assert hooks.counts()["a", "failed"] == 1


def test_http() -> None:
    sock = bound_to("127.0.0.1:0", "--listen")
    port = sock.getsockname()[1]
    answer = Fault(lambda _: Reply("200 OK", "text/plain", b"x"))
    with contextlib.closing(HttpListener(sock, answer, name="test-http", begin=Fault(lambda: None))) as listener:
        fails("test-http")  # as it begins
        assert probe(port)[0] == 500
        assert probe(port)[0] == 200
        until(lambda: is_well("test-http"), "it is well")
        failures = listener._supervisor.failures
        listener._drop_late = Fault(listener._drop_late)  # type: ignore[method-assign]
        until(lambda: probe(port)[0] == 200 and listener._supervisor.failures > failures, "an error beside an answer")
        until(lambda: probe(port)[0] == 200 and is_well("test-http"), "it is well again")


def test_the_election() -> None:
    client: Any = SimpleNamespace()
    election = Election(client, "me", lambda: None, Terms(retry_s=0.01))
    election._try = tries = Fault(lambda: None)  # type: ignore[method-assign]
    with contextlib.closing(election):
        election.start()
        until(lambda: tries.calls > 1 and is_well("election"), "it tries again")
        assert election.problem == ""


def test_lists_and_watches() -> None:
    @contextlib.contextmanager
    def lines(*_: Any, **__: Any) -> Iterator[Iterator[bytes]]:
        yield wait_for_end()

    def wait_for_end() -> Iterator[bytes]:
        over.wait()
        yield from ()

    over = threading.Event()
    get = Fault(lambda *_, **__: msgspec.json.encode(listing([pod("a", 1)], 100)))
    transport: Any = SimpleNamespace(get=get, lines=lines)
    publish = Fault(lambda _: None, times=2)  # the first in the `except` of the thread
    resource = Resource("pods", "/api/v1/pods", "")
    reflector = Reflector(transport, resource, decode_pod, publish, Pace(first_s=0.01, cap_s=0.02))
    reflector.start()
    try:
        until(lambda: reflector.view.is_open and is_well("kube-pods"), "a watch that is open")
        assert get.calls > 1
        assert [each.key for each in reflector.view.objects] == ["be/a"]
    finally:
        reflector.stop()
        over.set()
        reflector.join(10)


def test_the_kubelet() -> None:
    @contextlib.contextmanager
    def parts(*_: Any, **__: Any) -> Iterator[Iterator[bytes]]:
        yield iter([read()])

    read = Fault(lambda: msgspec.json.encode(listing([pod("a", 1)], 100)))
    transport: Any = SimpleNamespace(parts=parts, close=lambda: None)
    source = KubeletSource(transport, "n1")
    with contextlib.closing(source):
        source.start(lambda: None)
        fails("kube-kubelet")
        assert source.state().problems == ("kubelet: internal error, see the log",)
        until(lambda: is_well("kube-kubelet") and len(source.state().pods) == 1, "its list")


def test_deadlines_of_plugins() -> None:
    supervisor = Supervisor("plugin-deadline")
    _Round(1, ("a",), 0.01, Fault(lambda: None), supervisor).start()
    fails("plugin-deadline")
    # AND one that breaks as it is asked has an answer, and the error is its thread's
    round_ = _Round(2, ("a",), 60.0, lambda: None, supervisor)
    endpoint: Any = SimpleNamespace(name="a")
    assert not Supervisor("plugin a").call(lambda: round_.ask(endpoint, Fault(lambda _: None)))
    answers = round_.answers()
    assert answers is not None and answers.answers[0].problem == "Injected: of a test"


@pytest.mark.parametrize("apart_s", [60.0, 0.0])
def test_what_fails_each_second_time_does_not_fill_the_log(
    apart_s: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_LOG_APART_S", apart_s)
    supervisor, before = Supervisor("flapping"), thread_errors()["flapping"]
    works: list[Callable[[], object]] = [lambda: 1 / 0, lambda: None]
    with caplog.at_level(logging.INFO, worker_module.log.name):
        for _ in range(20):
            for work in works:
                supervisor.call(work)
    assert len(caplog.messages) == (2 if apart_s else 40)
    assert thread_errors()["flapping"] - before == 20
    supervisor.call(works[0])
    assert thread_problems()["flapping"] == "ZeroDivisionError: division by zero"
