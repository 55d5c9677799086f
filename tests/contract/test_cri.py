"""Stopping containers over a real gRPC connection to a runtime of our own making."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from msgspec.structs import replace

from koordebpf.act.evict.actuator import OutcomeQueue
from koordebpf.act.evict.cri import CriExecutor, CriLimits
from koordebpf.errors import ConfigError
from koordebpf.kube.clients.cri import Cri, RunningContainer
from koordebpf.policy.plan import Candidate, Holding, Victim
from koordebpf.state.amount import MEMORY
from koordebpf.state.outcome import Outcome, Result
from tests.contract.apiserver import until
from tests.contract.cri_runtime import EXITED, RUNNING, UNKNOWN, Runtime
from tests.support.patience import patience

Known = dict[str, tuple[RunningContainer, ...]]


def victim(uid: str) -> Victim:
    candidate = Candidate(
        rank=1, uid=uid, namespace="be", name=uid, cgroup_id=1, priority=5000,
        holdings=(Holding(MEMORY, 1, 1),), koordinator_credit_bytes=1,
    )  # fmt: skip
    return Victim(candidate=candidate, reason="evicted", message="m")


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    runtime = Runtime(tmp_path / "cri.sock")
    yield runtime
    runtime.close()


@pytest.fixture
def cri(runtime: Runtime, tmp_path: Path) -> Iterator[Cri]:
    cri = Cri(tmp_path / "cri.sock")
    yield cri
    cri.close()


@pytest.fixture
def timeout_s() -> float:
    """How long the runtime has for an answer; no test but one is about that."""
    return patience(30)


@pytest.fixture
def known() -> Known:
    """The containers that are known without the runtime, by the pod's UID."""
    return {}


@pytest.fixture
def evict(cri: Cri, timeout_s: float, known: Known) -> Iterator[Callable[[str], Outcome]]:
    """Evict one pod; return the outcome that comes by the queue."""
    outcomes = OutcomeQueue(lambda: None)
    limits = CriLimits(timeout_s=timeout_s)
    executor = CriExecutor(cri, outcomes, known=lambda uid: known.get(uid, ()), limits=limits, enforce=True)

    def _evict(uid: str) -> Outcome:
        sent = executor.submit(victim(uid), 1)
        assert (sent.result, sent.executor) == (Result.SENT, "cri")
        (outcome,) = until(outcomes.drain, "the outcome")
        return outcome

    yield _evict
    executor.close()


def test_every_running_container_is_stopped_at_once(evict: Callable[[str], Outcome], runtime: Runtime) -> None:
    runtime.pods = {"a": {"main": RUNNING, "sidecar": RUNNING, "init": EXITED}, "b": {"main": RUNNING}}
    outcome = evict("a")
    assert outcome.result is Result.DONE
    assert outcome.detail.startswith("stopped main, sidecar within ")
    assert sorted(runtime.stopped) == [("a-main", 0), ("a-sidecar", 0)]
    assert outcome.sent_ns and outcome.answered_ns and outcome.sent_ns <= outcome.answered_ns
    number, unit = outcome.detail.rpartition("within ")[2].split()
    took_ns = float(number) * {"µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert took_ns <= 1.01 * (outcome.answered_ns - outcome.sent_ns)  # rounded to three digits


def test_a_victims_own_grace_period_is_that_of_its_containers(cri: Cri, runtime: Runtime, timeout_s: float) -> None:
    runtime.pods = {"a": {"main": RUNNING}, "b": {"main": RUNNING}}
    outcomes = OutcomeQueue(lambda: None)
    executor = CriExecutor(cri, outcomes, limits=CriLimits(timeout_s=timeout_s), enforce=True)
    for uid, grace_s in (("a", 7), ("b", None)):
        executor.submit(replace(victim(uid), grace_s=grace_s), 1)
        until(outcomes.drain, "the outcome")
    executor.close()
    assert runtime.stopped == [("a-main", 7), ("b-main", 0)]


def test_pods_that_take_their_time_keep_no_other_waiting(cri: Cri, runtime: Runtime, timeout_s: float) -> None:
    runtime.pods = {uid: {"main": RUNNING} for uid in ("slow-1", "slow-2", "quick")}
    over = threading.Event()
    runtime.on_stop = lambda container: None if container == "quick-main" else _wait(over)
    outcomes = OutcomeQueue(lambda: None)
    executor = CriExecutor(cri, outcomes, limits=CriLimits(timeout_s=timeout_s, workers=3), enforce=True)
    for uid in runtime.pods:
        executor.submit(replace(victim(uid), grace_s=60), 1)
    (first,) = until(outcomes.drain, "the first outcome")
    assert (first.uid, first.result) == ("quick", Result.DONE)
    over.set()
    executor.close()


def _wait(over: threading.Event) -> None:
    over.wait(patience(30))


def test_other_pods_are_left_alone_by_a_runtime_that_ignores_the_filter(
    evict: Callable[[str], Outcome], runtime: Runtime
) -> None:
    runtime.filters = False
    runtime.pods = {"a": {"main": RUNNING, "old": EXITED}, "b": {"main": RUNNING}}
    assert evict("a").result is Result.DONE
    assert runtime.stopped == [("a-main", 0)]


def test_each_container_that_was_not_stopped_is_named(evict: Callable[[str], Outcome], runtime: Runtime) -> None:
    runtime.pods = {"a": {"main": RUNNING, "sidecar": RUNNING}}
    runtime.fails = {"a-main": (grpc.StatusCode.INTERNAL, "shim died")}
    outcome = evict("a")
    assert outcome.result is Result.FAILED
    assert outcome.detail == (
        "main was not stopped: StopContainer: the container runtime says INTERNAL: shim died; stopped: sidecar"
    )
    assert outcome.retry_at_ns is not None


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(("state", "result"), [(EXITED, Result.DONE), (UNKNOWN, Result.FAILED)])
def test_a_container_that_ended_though_the_answer_was_an_error_counts_as_stopped(
    evict: Callable[[str], Outcome], runtime: Runtime, known: Known, is_known: bool, state: int, result: Result
) -> None:
    runtime.pods = {"a": {"main": RUNNING}}
    if is_known:
        known["a"] = (RunningContainer("a-main", "main"),)
    runtime.fails = {"a-main": (grpc.StatusCode.DEADLINE_EXCEEDED, "too late")}
    runtime.on_asked = lambda _: runtime.pods["a"].update(main=state)
    outcome = evict("a")
    assert outcome.result is result
    assert outcome.detail.startswith("stopped main within " if result is Result.DONE else "main was not stopped: ")


def test_a_container_that_is_gone_counts_as_stopped(evict: Callable[[str], Outcome], runtime: Runtime) -> None:
    runtime.pods = {"a": {"main": RUNNING}}
    runtime.fails = {"a-main": (grpc.StatusCode.NOT_FOUND, "no such container")}
    assert evict("a").result is Result.DONE


def test_a_pod_without_a_running_container_is_gone(evict: Callable[[str], Outcome], runtime: Runtime) -> None:
    runtime.pods = {"a": {"main": EXITED}}
    outcome = evict("a")
    assert (outcome.result, outcome.detail, outcome.sent_ns) == (Result.GONE, "no container of it runs", None)


@pytest.mark.slow
@pytest.mark.parametrize("timeout_s", [2.0])
def test_a_runtime_that_hangs_fails_the_victim_and_not_the_executor(
    evict: Callable[[str], Outcome], runtime: Runtime
) -> None:
    runtime.pods = {"a": {"main": RUNNING}, "b": {"main": RUNNING}}
    runtime.hold.clear()
    outcome = evict("a")
    assert outcome.result is Result.FAILED
    assert "DEADLINE_EXCEEDED" in outcome.detail
    runtime.hold.set()
    assert evict("b").result is Result.DONE


def test_known_containers_are_stopped_before_the_runtime_is_asked_what_runs(
    evict: Callable[[str], Outcome], runtime: Runtime, known: Known
) -> None:
    known["a"] = (RunningContainer("a-main", "main"),)
    runtime.pods = {"a": {"main": EXITED}}  # as it is once it was stopped
    outcome = evict("a")
    assert outcome.result is Result.DONE
    assert runtime.stopped == [("a-main", 0)]
    assert runtime.calls == ["StopContainer", "ListContainers"]


def test_known_containers_that_the_runtime_knows_nothing_of_are_gone(
    evict: Callable[[str], Outcome], runtime: Runtime, known: Known
) -> None:
    known["a"] = (RunningContainer("a-main", "main"),)  # as after a runtime lost its state
    outcome = evict("a")
    assert runtime.stopped == [("a-main", 0)]  # which it takes for done
    assert (outcome.result, outcome.detail, outcome.sent_ns) == (Result.GONE, "no container of it runs", None)


def test_what_runs_beside_the_known_containers_is_stopped_too(
    evict: Callable[[str], Outcome], runtime: Runtime, known: Known
) -> None:
    known["a"] = (RunningContainer("a-main", "main"),)
    runtime.pods = {"a": {"main": EXITED, "new": RUNNING}, "b": {"main": RUNNING}}
    outcome = evict("a")
    assert outcome.detail.startswith("stopped main, new within ")
    assert runtime.stopped == [("a-main", 0), ("a-new", 0)]


def test_known_containers_that_are_gone_lead_to_those_that_took_their_place(
    evict: Callable[[str], Outcome], runtime: Runtime, known: Known
) -> None:
    known["a"] = (RunningContainer("a-old", "main"),)
    runtime.pods = {"a": {"main": RUNNING}}
    runtime.fails = {"a-old": (grpc.StatusCode.NOT_FOUND, "no such container")}
    assert evict("a").result is Result.DONE
    assert runtime.stopped == [("a-main", 0)]


def test_a_list_that_fails_after_the_known_containers_were_stopped_is_said(
    evict: Callable[[str], Outcome], runtime: Runtime, known: Known
) -> None:
    known["a"] = (RunningContainer("a-main", "main"),)
    runtime.fails = {"ListContainers": (grpc.StatusCode.INTERNAL, "no")}
    outcome = evict("a")
    assert (outcome.result, outcome.sent_ns is not None) == (Result.FAILED, True)
    assert outcome.detail == (
        "it is not known what else of it runs: ListContainers: the container runtime says INTERNAL: no; stopped: main"
    )


def test_a_runtime_that_is_away_is_said(evict: Callable[[str], Outcome], runtime: Runtime) -> None:
    until(lambda: runtime.versions, "the connection: one that is being made meanwhile would wait for an answer")
    runtime.close()
    outcome = evict("a")
    assert outcome.result is Result.FAILED
    assert outcome.detail.startswith("ListContainers: the container runtime says UNAVAILABLE")


def test_dry_run_asks_nothing(cri: Cri, runtime: Runtime) -> None:
    runtime.pods = {"a": {"main": RUNNING}}
    executor = CriExecutor(cri, OutcomeQueue(lambda: None))
    assert executor.submit(victim("a"), 1).result is Result.DRY_RUN
    executor.close()
    assert runtime.stopped == []


def test_the_connection_is_there_before_the_first_victim(cri: Cri, runtime: Runtime) -> None:
    executor = CriExecutor(cri, OutcomeQueue(lambda: None), enforce=True)
    until(lambda: runtime.versions, "the runtime is asked without a victim")
    executor.close()
    assert (runtime.listed, runtime.stopped) == ([], [])


def test_a_runtime_that_was_restarted_is_connected_to_again_without_a_victim(
    cri: Cri, runtime: Runtime, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = CriLimits(warm_every_s=patience(0.1))
    outcomes = OutcomeQueue(lambda: None)
    executor = CriExecutor(cri, outcomes, limits=limits, enforce=True)
    until(lambda: runtime.versions >= 2, "the runtime is asked again and again")
    runtime.close()
    until(lambda: "the container runtime does not answer" in caplog.text, "it is said")
    time.sleep(5 * limits.warm_every_s)  # asked again meanwhile
    again = Runtime(tmp_path / "cri.sock")
    again.pods = {"a": {"main": RUNNING}}
    try:
        # gRPC tries again within a second, not within its own two minutes.
        until(lambda: again.versions, "the new one is asked", 10)
        executor.submit(victim("a"), 1)
        (outcome,) = until(outcomes.drain, "the outcome")
        assert outcome.result is Result.DONE
        assert caplog.text.count("does not answer") == 1
    finally:
        executor.close()
        again.close()


def test_dry_run_does_not_even_connect(cri: Cri, runtime: Runtime) -> None:
    executor = CriExecutor(cri, OutcomeQueue(lambda: None))
    executor.close()
    assert runtime.versions == 0


def test_version(cri: Cri) -> None:
    assert cri.version() == "own 1.0"


def test_a_path_that_is_no_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be the socket of a container runtime"):
        Cri(tmp_path / "nothing.sock")
