"""An unexpected error, injected into each thread of the agent: the thread works on, and the error is shown."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordebpf.act import reclaimer as reclaimer_module
from koordebpf.act.reclaimer import Reclaimer, ReclaimJob
from koordebpf.act.writer.change import WriteResult
from koordebpf.collect.cpu.kubelet_cpus import KubeletCpus
from koordebpf.jobs.hardware import cpi as cpi_module
from koordebpf.jobs.hardware.cpi import CpiCollector
from koordebpf.jobs.hardware.loop import ContainerCgroup, ThreadedCollector
from koordebpf.jobs.prediction import keeper as keeper_module
from koordebpf.jobs.prediction.keeper import CheckpointKeeper
from koordebpf.kernel.cgroup.reaping import Reaping
from koordebpf.kernel.io import worker as worker_module
from koordebpf.kernel.io.worker import StoppableThread, supervisors, thread_problems
from koordebpf.kernel.proc import tasks
from koordebpf.kube.http import deadlines as deadlines_module
from koordebpf.kube.http.deadlines import OpenConnections
from koordebpf.kube.plugins.pods import PodMessages
from koordebpf.policy.strategy import SoftNotice
from koordebpf.store import node_lock as lock_module
from koordebpf.store import pod_list as list_module
from koordebpf.store import rotated_file
from koordebpf.store.line_sink import LineSink
from koordebpf.store.node_lock import NodeLock, StandBy
from koordebpf.store.pod_list import KeptList
from koordebpf.store.shadow import WeekKeeper
from koordebpf.strategies.katalyst import registry as registry_module
from koordebpf.strategies.katalyst.outside import PluginCaller
from koordebpf.strategies.katalyst.registry import Change, PluginRegistry
from koordebpf.strategies.katalyst.sink import PodNotifier
from tests.contract.apiserver import until
from tests.support.patience import patience
from tests.unit.agent.test_sole_agent import machine
from tests.unit.store.test_kept_week import NOW, day
from tests.unit.store.test_pod_list import A, state


class Injected(Exception):
    """An error that no code catches by its type."""


class Fault:
    """Raises `Injected` so many times, then does what it stands in front of."""

    def __init__(self, then: Callable[..., Any], times: int = 1) -> None:
        self.then, self.left, self.calls = then, times, 0

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise Injected("of a test")
        return self.then(*arguments, **more)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_REST_S", 0.01)


def fails(name: str) -> None:
    """Wait until the thread of this name shows the error."""
    until(lambda: "Injected: of a test" in thread_problems().get(name, ""), lambda: f"{name}, but {thread_problems()}")


def is_well(name: str) -> bool:
    return any(each.name == name and each.failures for each in supervisors()) and name not in thread_problems()


def test_the_reclaimer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(reclaimer_module, "reclaim", Fault(lambda *_, **__: 5))
    reclaimer, ended = Reclaimer(lambda: None, is_urgent=False), []
    job = ReclaimJob(tmp_path, 1, 5, "because", 0)

    def drained(count: int) -> bool:
        ended.extend(reclaimer.drain())
        return len(ended) == count

    with contextlib.closing(reclaimer):
        reclaimer.submit(job)
        until(lambda: drained(1), "the first job")
        assert (ended[0].result, ended[0].detail) == (WriteResult.REFUSED, "an unexpected error; the log has it")
        fails("reclaimer")
        reclaimer.submit(job)
        until(lambda: drained(2), "the second job")
        assert ended[1].result is WriteResult.WRITTEN
        until(lambda: is_well("reclaimer"), "it is well")


def test_a_job_for_which_the_reclaimer_has_no_place_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    may_end, ended = threading.Event(), []
    monkeypatch.setattr(reclaimer_module, "_WAITING", 1)
    monkeypatch.setattr(reclaimer_module, "reclaim", lambda *_, **__: may_end.wait(patience(10)) and 5)
    reclaimer, job = Reclaimer(lambda: None, is_urgent=False), ReclaimJob(tmp_path, 1, 5, "because", 0)
    with contextlib.closing(reclaimer):
        reclaimer.submit(job)
        until(lambda: not reclaimer._worker._jobs.qsize(), "the first is at work")
        reclaimer.submit(job)
        reclaimer.submit(job)
        (refused,) = reclaimer.drain()
        assert (refused.result, refused.detail) == (WriteResult.REFUSED, "1 others wait already")
        may_end.set()
        until(lambda: ended.extend(reclaimer.drain()) or len(ended) == 2, "both others")
        assert [each.result for each in ended] == [WriteResult.WRITTEN] * 2


def test_a_save_of_checkpoints_without_a_place_is_dropped_and_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(keeper_module, "_WAITING", 1)
    keeper, may_end = CheckpointKeeper(tmp_path, None, writes=True), threading.Event()
    save = keeper._folder.save
    monkeypatch.setattr(keeper._folder, "save", lambda *each: (may_end.wait(patience(10)), save(*each)))
    keeper.write({"a": b"{}"})
    until(lambda: not keeper._worker._jobs.qsize(), "the first is at work")
    keeper.write({"b": b"{}"})
    keeper.write({"c": b"{}"})
    assert keeper.problem == "1 saves wait already"
    may_end.set()
    until(lambda: not keeper.is_busy, "an end")
    assert keeper.problem is None
    assert {each.name for each in tmp_path.iterdir()} == {"a", "b"}
    assert keeper.close(patience(5))


def test_checkpoints(tmp_path: Path) -> None:
    keeper = CheckpointKeeper(tmp_path, None, writes=True)
    keeper._folder.save = fault = Fault(keeper._folder.save)  # type: ignore[method-assign]
    keeper.write({"a": b"{}"})
    fails("checkpoints")
    assert not keeper.is_busy
    keeper.write({"a": b"{}"})
    until(lambda: is_well("checkpoints") and not keeper.is_busy, "it is well")
    assert fault.calls == 2
    assert (tmp_path / "a").read_bytes() == b"{}"
    # AND what waits for a model that could not be read waits no more
    keeper._folder.load = Fault(keeper._folder.load)  # type: ignore[method-assign]
    keeper.restore(["a"])
    until(lambda: keeper.found is not None, "an answer")
    assert keeper.found is not None and keeper.found.checkpoints == {}
    assert keeper.close(patience(5))


def test_notices(tmp_path: Path) -> None:
    notifier, notice = PodNotifier(tmp_path / "notices"), SoftNotice("default", "web", "p", "because", "uid")
    with contextlib.closing(notifier):
        notifier.keep([("default", "web")])
        notifier._folders.notify = Fault(notifier._folders.notify)  # type: ignore[method-assign]
        notifier.notify(notice)
        fails("pod-notices")
        notifier.notify(notice)
        until(lambda: notifier.sent == 1, "the second notice")
        assert notifier.drain_ended() == [(notice, "of a test"), (notice, None)]


def test_lines(tmp_path: Path) -> None:
    written: list[bytes] = []
    sink = LineSink(Fault(written.append), "errors")
    sink.start()
    sink.put(b"first")
    fails("errors-writer")
    sink.put(b"second")
    assert sink.flush(patience(5))
    assert (written, sink.dropped, sink.written, sink.waiting) == ([b"second"], 1, 1, 0)
    sink.close(1)


def test_the_kept_week(tmp_path: Path) -> None:
    keeper = WeekKeeper(tmp_path / "week.json", NOW)
    keeper._write = fault = Fault(keeper._write)  # type: ignore[method-assign]
    keeper.add(day(1), {})
    fails("shadow")
    keeper.add(day(2), {})
    until(lambda: is_well("shadow"), "it is well")
    keeper.close()
    assert fault.calls == 2
    assert b"2026-03-02" in (tmp_path / "week.json").read_bytes()


def test_the_kept_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_module, "_FIRST_S", 0.01)
    monkeypatch.setattr(list_module, "_EVERY_S", 0.01)
    kept = KeptList(tmp_path / "pods.json", "n1", 1)
    with contextlib.closing(kept):
        kept._write = Fault(kept._write)  # type: ignore[method-assign]
        kept.update(state(A.pod), {})
        fails("kept-list")
        kept.update(state(A.pod), {})
        until(lambda: is_well("kept-list"), "it is well")
    assert (tmp_path / "pods.json").exists()


def test_kubelets_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koordebpf.collect.cpu.kubelet_cpus._RETRY_S", 0.01)
    monkeypatch.setattr(Path, "is_socket", lambda _: True)
    answer: Any = type("Bound", (), {"pods": (), "allocatable": ()})
    cpus = KubeletCpus(tmp_path / "socket", ask=Fault(lambda _: answer), apart_s=0.01)
    with contextlib.closing(cpus):
        cpus.request([], 1)
        fails("kubelet-cpus") if cpus.read() is None else None
        until(lambda: cpus.read() is not None, "its answer")
        assert is_well("kubelet-cpus")


class Looks(ThreadedCollector[int]):
    name, period_ns = "test-looks", 1

    def __init__(self) -> None:
        super().__init__()
        self.fault = Fault(lambda _: {("a",): 1.0})

    def prepare(self) -> int:
        return 0

    def measure(self, prepared: int) -> dict[Any, float]:
        return self.fault(prepared)

    def release(self) -> None:
        pass


class Series:
    """Takes what a collector found."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    def append(self, *sample: Any) -> None:
        self.found.append(sample)


def test_looks_beside_the_loop() -> None:
    looks, series = Looks(), Series()
    with contextlib.closing(looks):
        looks.collect(0, series)  # type: ignore[arg-type]
        fails("test-looks")

        def is_found() -> bool:
            looks.collect(0, series)  # type: ignore[arg-type]
            return bool(series.found)

        until(is_found, "what the second look found")
        until(lambda: is_well("test-looks"), "it is well")


def test_cycles_per_instruction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counters:
        def __init__(self, *_: Any) -> None:
            pass

        enable = disable = close = lambda self: None

        def read(self) -> tuple[int, ...]:
            return 2, 1

    monkeypatch.setattr(cpi_module, "CgroupCounters", Fault(Counters))
    containers = [ContainerCgroup("u", "c", "path")]
    collector, series = CpiCollector(lambda: containers, lambda: range(1), tmp_path, every_ns=1, window_ns=1), Series()
    with contextlib.closing(collector):
        collector.collect(1, series)  # type: ignore[arg-type]
        fails("cpi")
        until(lambda: bool(collector.collect(2, series) or series.found), "the second window")  # type: ignore[arg-type,func-returns-value]
        until(lambda: is_well("cpi"), "it is well")


def test_the_registry_of_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "sockets_below", fault := Fault(lambda _: {}, times=2))
    with contextlib.closing(PluginRegistry(tmp_path, (), lambda: None, look_s=0.01)):
        until(lambda: fault.calls > 2 and is_well("plugin-registry"), "it looks again")


@pytest.mark.parametrize("fails_at", ["asking", "waking"])
def test_a_plugin_that_is_asked_for_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str) -> None:
    path, found = tmp_path / "p.sock", []
    monkeypatch.setattr(registry_module, "sockets_below", lambda _: {path: (1, 1)})
    asked = Fault(lambda socket: Change("p", socket), times=int(fails_at == "asking"))
    monkeypatch.setattr(PluginRegistry, "_registered", lambda _self, socket: asked(socket))
    wake = Fault(lambda: None, times=int(fails_at == "waking"))
    with contextlib.closing(PluginRegistry(tmp_path, (), wake, look_s=0.01)) as registry:
        until(lambda: asked.calls == 2 and not registry.problems, lambda: f"{asked.calls}, {registry.problems}")
        found += registry.poll()
    assert found[-1] == Change("p", path)


def test_limits_of_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines_module, "_shut", Fault(deadlines_module._shut))
    wires = OpenConnections()
    with wires.within(0.01):
        fails("wire-limits")
        with wires.within(0.05) as limit:
            until(lambda: limit.is_over, "it is cut")
    wires.cut()


def test_pods_for_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    transport: Any = type("Transport", (), {"close": lambda self: None})()
    messages = PodMessages(transport, "n1", rest_s=0.01)
    with contextlib.closing(messages):
        messages._read = fault = Fault(lambda _: None)  # type: ignore[method-assign]
        messages.of([A.pod], 1)
        until(lambda: fault.calls >= 2 and is_well("plugin-pods"), "it is asked again")


def test_standing_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported = threading.Event()
    with NodeLock(tmp_path, machine()):
        monkeypatch.setattr(lock_module, "NodeLock", Fault(NodeLock))
        next_one = StandBy(tmp_path, machine(), reported.set)
        fails("stand-by")
    assert reported.wait(patience(10))
    next_one.close()
    assert next_one.sole is not None
    next_one.sole.close()


def test_reapers_beside_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    mine = os.pidfd_open(os.getpid())
    try:
        reaping = Reaping([(os.getpid(), mine)] * 8, lambda: None)
        first, calls = threading.get_ident(), []

        def release(_: int) -> None:
            calls.append(threading.get_ident())
            if threading.get_ident() != first:
                raise Injected("of a test")
            until(lambda: len(set(calls)) > 1, "another reaper")

        reaping._release = release  # type: ignore[method-assign]
        reaping.run()
        assert "Injected" in thread_problems()["reaper-beside"]
        assert len(calls) == 8
    finally:
        os.close(mine)
        next(each for each in supervisors() if each.name == "reaper-beside").problem = None


def test_what_hears_that_all_reapers_have_started(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, started = os.pidfd_open(os.getpid()), Fault(lambda: None)
    try:
        reaping = Reaping([(os.getpid(), mine)], started)
        monkeypatch.setattr(reaping, "_release", lambda _: started.calls or until(lambda: started.calls, "a call"))
        reaping.run()
        assert (started.calls, thread_problems()["reaper-starts"]) == (1, "Injected: of a test")
        Reaping([(os.getpid(), mine)], started).run()
        assert (started.calls, is_well("reaper-starts")) == (2, True)
    finally:
        os.close(mine)


def test_what_a_thread_of_core_scheduling_meets_is_raised() -> None:
    with pytest.raises(Injected):
        tasks._in_thread(Fault(lambda: None))


def test_stoppable_threads() -> None:
    runs: list[int] = []
    with StoppableThread("test-stoppable", lambda: (run(), thread.wait(None))) as thread:
        run = Fault(lambda: runs.append(1))
        thread.start()
        until(lambda: bool(runs), "the second run")
        assert run.calls == 2


def test_a_file_that_is_tried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(rotated_file, "_OPEN_S", 0.2)
    monkeypatch.setattr(rotated_file, "_try_out", Fault(lambda *_: None))
    rotated_file.check_file("--audit-log", tmp_path / "log")
    assert "does not answer" in caplog.text
    rotated_file.check_file("--audit-log", tmp_path / "log")
    assert "file-opener" not in thread_problems()


def test_callers_of_plugins(tmp_path: Path) -> None:
    caller = PluginCaller(lambda: None, 1)
    caller.register("test-plugin", tmp_path / "socket")
    (endpoint,) = caller._endpoints.values()
    done = threading.Event()
    endpoint.worker.submit(Fault(lambda: None))
    fails("plugin test-plugin")
    endpoint.worker.submit(lambda: done.set())
    assert done.wait(patience(5))
    caller.close()
