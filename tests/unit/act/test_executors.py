"""The API executor against an API with scripted answers, dry run, and the last resort."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import Queue

import pytest
from msgspec.structs import replace

from koordebpf.act.evict import api as api_module
from koordebpf.act.evict.actuator import Actuator, LastResort, OutcomeQueue
from koordebpf.act.evict.api import ApiExecutor, ApiLimits
from koordebpf.errors import KubeBusy, KubeDenied, KubeError, KubeGone
from koordebpf.policy.plan import Candidate, Holding, Victim
from koordebpf.state.amount import MEMORY
from koordebpf.state.guard_facts import ClosedGuard
from koordebpf.state.outcome import Outcome, Result
from koordebpf.units import NS_PER_S
from tests.contract.apiserver import let_it_spin, until
from tests.support.patience import patience

QUICK = ApiLimits(unknown_wait_s=0.001, unknown_tries=3, close_s=0.05)


def victim(name: str = "spark-1") -> Victim:
    candidate = Candidate(
        rank=1, uid=f"u-{name}", namespace="be", name=name, cgroup_id=1, priority=5000,
        holdings=(Holding(MEMORY, 1, 1),), koordinator_credit_bytes=1,
    )  # fmt: skip
    return Victim(candidate=candidate, reason="evicted", message="m")


class Api:
    """Answers each call with the next of `answers`; an exception is raised. After the last: success."""

    def __init__(self, *answers: Exception | None) -> None:
        self._answers = list(answers)
        self.calls: list[tuple[str, str, str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.is_asked = threading.Event()
        self.entered = 0
        self.was_cut = False

    def evict(self, namespace: str, name: str, uid: str, *, timeout_s: float, grace_s: int | None = None) -> None:
        self.entered += 1
        self.is_asked.set()
        self.gate.wait(10)
        self.calls.append((namespace, name, uid))
        answer = self._answers.pop(0) if self._answers else None
        if answer is not None:
            raise answer

    def close(self) -> None:
        self.was_cut = True
        self.gate.set()


class Desk:
    """An executor with its queue."""

    def __init__(self, api: Api, limits: ApiLimits | None = QUICK) -> None:
        self._woken: Queue[None] = Queue()
        self.outcomes = OutcomeQueue(lambda: self._woken.put(None))
        self.executor = ApiExecutor(api, self.outcomes, limits=limits, enforce=True)

    def answer(self) -> Outcome:
        self._woken.get(timeout=10)
        (outcome,) = self.outcomes.drain()
        return outcome


@pytest.fixture
def desk() -> Iterator[Callable[[Api], Desk]]:
    desks: list[Desk] = []

    def make(api: Api) -> Desk:
        desks.append(Desk(api))
        return desks[-1]

    yield make
    for made in desks:
        made.executor.close()


def test_success(desk: Callable[[Api], Desk]) -> None:
    api = Api()
    d = desk(api)
    assert d.executor.submit(victim(), 7).result is Result.SENT
    outcome = d.answer()
    assert (outcome.result, outcome.decided_ns) == (Result.DONE, 7)
    assert outcome.sent_ns is not None and outcome.answered_ns is not None
    assert outcome.answered_ns >= outcome.sent_ns
    assert api.calls == [("be", "spark-1", "u-spark-1")]


@pytest.mark.parametrize(("grace_s", "said"), [(None, ""), (0, ", with a grace period of 0 s in place of its own")])
def test_a_grace_period_is_named_where_it_is_not_the_pods_own(
    grace_s: int | None, said: str, desk: Callable[[Api], Desk]
) -> None:
    d = desk(Api())
    d.executor.submit(replace(victim(), grace_s=grace_s), 7)
    assert d.answer().detail == f"the API server has started its deletion{said}"


def test_retry_after_is_kept(desk: Callable[[Api], Desk]) -> None:
    api = Api(KubeBusy("Cannot evict pod: disruption budget", 60.0))
    d = desk(api)
    before_ns = time.monotonic_ns()
    d.executor.submit(victim(), 1)
    outcome = d.answer()
    assert outcome.result is Result.REFUSED
    assert outcome.retry_at_ns is not None and outcome.retry_at_ns >= before_ns + 60 * NS_PER_S
    again = d.executor.submit(victim(), 2)
    assert (again.result, again.retry_at_ns) == (Result.REFUSED, outcome.retry_at_ns)
    assert len(api.calls) == 1
    assert d.executor.submit(victim("other"), 3).result is Result.SENT  # the next candidate is not kept waiting
    assert d.answer().result is Result.DONE


def test_without_retry_after_the_waits_grow(desk: Callable[[Api], Desk]) -> None:
    d = desk(Api())
    waits = [d.executor._record_busy("u", None) - time.monotonic_ns() for _ in range(8)]
    assert 0 < waits[0] <= NS_PER_S
    assert waits[4] > waits[0]
    assert max(waits) <= 30 * NS_PER_S


def test_who_is_denied_waits_longer_and_longer(desk: Callable[[Api], Desk]) -> None:
    d = desk(Api())
    waits = [d.executor._record_busy("u", None, is_denied=True) - time.monotonic_ns() for _ in range(9)]
    assert all(wait > NS_PER_S for wait in waits)
    assert max(waits) > 300 * NS_PER_S - NS_PER_S
    assert max(waits) <= 600 * NS_PER_S


@pytest.mark.parametrize(
    ("is_denied", "waits_s"), [(False, [1, 2, 4, 8, 16, 30, 30]), (True, [10, 20, 40, 80, 160, 320, 600, 600])]
)
def test_each_refusal_in_a_row_doubles_the_wait_up_to_its_cap(
    is_denied: bool, waits_s: list[int], desk: Callable[[Api], Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_s: list[float] = []
    monkeypatch.setattr(api_module, "jittered", lambda wait_s: asked_s.append(wait_s) or 0.0)
    refusal = KubeDenied("403", "create", "pods/eviction") if is_denied else KubeBusy("429", None)
    d = desk(Api(*[refusal] * len(waits_s)))
    for _ in waits_s:
        d.executor.submit(victim(), 1)
        assert d.answer().result is Result.REFUSED
    assert asked_s == waits_s


def test_a_pod_that_is_refused_for_days_is_still_answered_for(desk: Callable[[Api], Desk]) -> None:
    d = desk(Api(KubeBusy("disruption budget", None)))
    d.executor._busy["u-spark-1"] = (1100, 0)  # so often, half a minute each
    d.executor.submit(victim(), 1)
    assert d.answer().result is Result.REFUSED


@pytest.mark.parametrize(("is_denied", "ceiling_s"), [(False, 1), (True, 10)])
def test_pods_that_were_refused_together_are_not_sent_together(
    is_denied: bool, ceiling_s: int, desk: Callable[[Api], Desk]
) -> None:
    d, before_ns = desk(Api()), time.monotonic_ns()
    waits_s = [(d.executor._record_busy(f"u{n}", None, is_denied=is_denied) - before_ns) / NS_PER_S for n in range(200)]
    assert ceiling_s / 2 <= min(waits_s) < 0.6 * ceiling_s and max(waits_s) > 0.9 * ceiling_s


def test_evictions_without_an_answer_are_not_sent_again_together() -> None:
    outcomes, before_ns = OutcomeQueue(lambda: None), time.monotonic_ns()
    api = Api(*(KubeError("500", retry=True) for _ in range(50)))
    executor = ApiExecutor(api, outcomes, limits=replace(QUICK, unknown_wait_s=600.0), enforce=True)
    for number in range(50):
        executor.submit(victim(f"v{number}"), 1)
    until(lambda: len(api.calls) == len(executor._due) == 50, "fifty waits")
    waits_s = [(due_ns - before_ns) / NS_PER_S for due_ns, _, _ in executor._due]
    executor.close()
    assert min(waits_s) < 400 and max(waits_s) > 500


def test_a_pod_that_was_evicted_is_no_longer_one_that_was_refused(desk: Callable[[Api], Desk]) -> None:
    d = desk(Api(None, KubeBusy("disruption budget", None)))
    d.executor._busy["u-spark-1"] = (10, 0)  # so often
    d.executor.submit(victim(), 1)
    assert d.answer().result is Result.DONE
    d.executor.submit(victim(), 2)
    answer = d.answer()
    assert answer.retry_at_ns is not None and answer.retry_at_ns <= time.monotonic_ns() + NS_PER_S


def test_what_a_policy_denies_is_no_matter_of_rbac(desk: Callable[[Api], Desk]) -> None:
    d = desk(Api(KubeDenied("no label", "create", "pods/eviction", by_policy=True)))
    d.executor.submit(victim(), 1)
    assert (answer := d.answer()).result is Result.REFUSED
    assert answer.detail == "no label"
    assert answer.retry_at_ns is not None


def test_a_denied_pod_is_not_sent_again_at_once_but_its_successor_is(desk: Callable[[Api], Desk]) -> None:
    api = Api(KubeDenied("forbidden", "create", "pods/eviction"))
    d = desk(api)
    before_ns = time.monotonic_ns()
    d.executor.submit(victim(), 1)
    first = d.answer()
    assert first.result is Result.REFUSED and "allow create on pods/eviction" in first.detail
    # An API server that has just started knows its roles by then.
    assert first.retry_at_ns is not None and first.retry_at_ns >= before_ns + 2 * NS_PER_S
    assert d.executor.submit(victim(), 2).result is Result.REFUSED
    assert len(api.calls) == 1
    d.executor.forget(frozenset())
    d.executor.submit(victim(), 3)
    assert d.answer().result is Result.DONE


@pytest.mark.parametrize("status", [404, 409, 410])
def test_another_pod_or_none_is_gone(desk: Callable[[Api], Desk], status: int) -> None:
    d = desk(Api(KubeGone("not this one", status)))
    d.executor.submit(victim(), 1)
    assert d.answer().result is Result.GONE


def test_an_unknown_outcome_is_asked_again_with_the_same_uid(desk: Callable[[Api], Desk]) -> None:
    api = Api(KubeError("timed out"), KubeGone("not found", 404))
    d = desk(api)
    d.executor.submit(victim(), 1)
    outcome = d.answer()  # the first request had worked
    assert (outcome.result, outcome.detail) == (Result.DONE, "gone after try 2: not found")
    assert api.calls == [("be", "spark-1", "u-spark-1")] * 2


def test_an_unknown_outcome_is_given_up_in_the_end(desk: Callable[[Api], Desk]) -> None:
    api = Api(*(KubeError("500") for _ in range(9)))
    d = desk(api)
    d.executor.submit(victim(), 1)
    outcome = d.answer()
    assert outcome.result is Result.FAILED and outcome.retry_at_ns is not None
    assert len(api.calls) == 3


def test_it_is_sent_four_times_in_all_if_nothing_else_was_said() -> None:
    api = Api(*(KubeError("500") for _ in range(9)))
    d = Desk(api, ApiLimits(unknown_wait_s=0.001))
    d.executor.submit(victim(), 1)
    outcome = d.answer()
    d.executor.close()
    assert (outcome.result, outcome.detail) == (Result.FAILED, "500 (tried 4 times)")
    assert len(api.calls) == 4


def test_between_two_tries_it_waits_twice_as_long_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    waits_s: list[float] = []
    monkeypatch.setattr(api_module, "jittered", lambda wait_s: waits_s.append(wait_s) or 0.0)
    d = Desk(Api(*(KubeError("500") for _ in range(3))), ApiLimits())
    d.executor.submit(victim(), 1)
    assert d.answer().result is Result.DONE
    d.executor.close()
    assert waits_s == [0.2, 0.4, 0.8]


def test_two_requests_are_on_the_wire_at_most() -> None:
    api = Api()
    api.gate.clear()
    d = Desk(api, None)
    for name in "abc":
        d.executor.submit(victim(name), 1)
    until(lambda: api.entered == 2, "two requests")
    let_it_spin()
    assert api.entered == 2
    api.gate.set()
    until(lambda: len(api.calls) == 3, "all of them")
    d.executor.close()


def test_an_error_that_no_retry_repairs_fails_at_once(desk: Callable[[Api], Desk]) -> None:
    api = Api(KubeError("400 bad request", retry=False))
    d = desk(api)
    d.executor.submit(victim(), 1)
    assert d.answer().result is Result.FAILED
    assert len(api.calls) == 1


def test_a_defect_in_the_client_does_not_end_the_worker(desk: Callable[[Api], Desk]) -> None:
    d = desk(Api(ZeroDivisionError("x"), ZeroDivisionError("x"), ZeroDivisionError("x")))
    for name in "abc":
        d.executor.submit(victim(name), 1)
        assert d.answer().result is Result.FAILED
    d.executor.submit(victim("d"), 1)
    assert d.answer().result is Result.DONE


def test_the_loop_does_not_wait_and_a_pod_is_sent_once(desk: Callable[[Api], Desk]) -> None:
    api = Api()
    api.gate.clear()
    d = desk(api)
    assert d.executor.submit(victim(), 1).result is Result.SENT
    assert d.executor.submit(victim(), 2).detail == "already on its way"
    api.gate.set()
    d.answer()
    assert len(api.calls) == 1


def test_dry_run_is_the_default_of_every_executor() -> None:
    api = Api()
    threads = threading.active_count()
    executor = ApiExecutor(api, OutcomeQueue(lambda: None))
    assert threading.active_count() == threads
    outcome = executor.submit(victim(), 1)
    assert (outcome.result, api.calls) == (Result.DRY_RUN, [])
    assert outcome.detail == "would evict be/spark-1 by api"


class Recorder(Actuator):
    """An executor that notes what reaches it."""

    def __init__(self, name: str, result: Result, *, enforce: bool = True) -> None:
        super().__init__(enforce=enforce)
        self.name = name  # type: ignore[misc]
        self.result = result
        self.reached: list[str] = []
        self.closed = 0

    def close(self) -> None:
        self.closed += 1

    def _act(self, victim: Victim, decided_ns: int) -> Outcome:
        self.reached.append(victim.candidate.name)
        return self._outcome(victim, decided_ns, self.result, "x")


@pytest.mark.parametrize("enforce", [False, None, 1, "true"])
def test_only_a_plain_true_enforces(enforce: object) -> None:
    executor = Recorder("api", Result.DONE, enforce=enforce)  # type: ignore[arg-type]
    assert executor.submit(victim(), 1).result is Result.DRY_RUN
    assert executor.reached == []


def test_a_closed_guard_holds() -> None:
    executor = Recorder("api", Result.DONE)
    outcome = executor.submit(victim(), 1, ClosedGuard("pods_stale", "the list is old"))
    assert (outcome.result, outcome.detail, executor.reached) == (Result.HELD, "the list is old", [])


def test_the_last_resort_is_off_by_default() -> None:
    api, cgroup = Recorder("api", Result.REFUSED), Recorder("cgroup", Result.DONE)
    both = LastResort(api, cgroup)
    both.observe(both.submit(victim(), 0))
    both.observe(both.submit(victim(), 0))
    assert (len(api.reached), cgroup.reached) == (2, [])


def test_the_last_resort_kills_once_the_api_has_failed_long_enough() -> None:
    api, cgroup = Recorder("api", Result.REFUSED), Recorder("cgroup", Result.DONE)
    both = LastResort(api, cgroup, kill_after_s=3600)
    now_ns = time.monotonic_ns()
    refused = both.observe(both.submit(victim(), now_ns))
    assert refused.retry_at_ns == now_ns + 3600 * NS_PER_S
    both.submit(victim(), now_ns)
    assert cgroup.reached == []
    old = LastResort(api, cgroup, kill_after_s=3600)
    old.observe(old.submit(victim(), now_ns - 3601 * NS_PER_S))
    assert old.submit(victim(), now_ns).executor == "cgroup"
    assert cgroup.reached == ["spark-1"]


def test_the_last_resort_is_for_memory_in_use_and_nothing_else() -> None:
    # GIVEN a pod evicted for CPU, or for its requests: killed it would request as much, and the node is not lost
    api, cgroup = Recorder("api", Result.REFUSED), Recorder("cgroup", Result.DONE)
    both = LastResort(api, cgroup, kill_after_s=60)
    asking, long_ago = replace(victim(), for_use=False), time.monotonic_ns() - 61 * NS_PER_S
    assert both.observe(both.submit(asking, long_ago)).retry_at_ns is None  # the API server's own time
    assert both.submit(asking, 0).executor == "api"
    assert cgroup.reached == []
    # WHEN the same pod is evicted for memory and was refused for long enough
    both.submit(victim(), 0)
    assert cgroup.reached == ["spark-1"]


def test_the_last_resort_kills_at_the_second_time_whose_budgets_are_not_honoured() -> None:
    api, cgroup = Recorder("api", Result.REFUSED), Recorder("cgroup", Result.DONE)
    both = LastResort(api, cgroup, kill_after_s=3600)
    hasty, now_ns = replace(victim(), passes_budgets=True), time.monotonic_ns()
    refused = both.observe(both.submit(hasty, now_ns))
    assert (refused.executor, refused.retry_at_ns) == ("api", now_ns)
    assert both.submit(hasty, now_ns).executor == "cgroup"


def test_where_the_api_server_asks_to_come_back_before_the_kill_it_is_asked_again() -> None:
    both = LastResort(Recorder("api", Result.REFUSED), Recorder("cgroup", Result.DONE), kill_after_s=60)
    refused = both.submit(victim(), 0)
    for retry_at_ns, taken_ns in ((7, 7), (60 * NS_PER_S + 1, 60 * NS_PER_S), (None, 60 * NS_PER_S)):
        assert both.observe(replace(refused, retry_at_ns=retry_at_ns)).retry_at_ns == taken_ns


@pytest.mark.parametrize("is_known", [False, True])
def test_the_wait_of_a_pod_that_is_no_more_is_forgotten(is_known: bool) -> None:
    api, cgroup = Recorder("api", Result.REFUSED), Recorder("cgroup", Result.SENT)
    both, long_ago = LastResort(api, cgroup, kill_after_s=60), time.monotonic_ns() - 61 * NS_PER_S
    known = frozenset({"u-spark-1"} if is_known else {"u-other"})
    both.observe(both.submit(victim(), long_ago))
    both.forget(known)
    assert both.submit(victim(), 0).executor == ("cgroup" if is_known else "api")
    # AND so is how long the API server was asked before a kill that is not over
    both.observe(both.submit(victim(), long_ago))
    killed = both.submit(victim(), 0)
    assert killed.executor == "cgroup"
    both.forget(known)
    ended = both.observe(replace(killed, result=Result.DONE, detail="gone"))
    assert ended.detail.startswith("last resort") is is_known


def test_a_pod_that_the_api_server_has_evicted_is_asked_for_again() -> None:
    api, cgroup = Recorder("api", Result.REFUSED), Recorder("cgroup", Result.DONE)
    both = LastResort(api, cgroup, kill_after_s=60)
    refused = both.submit(victim(), time.monotonic_ns() - 61 * NS_PER_S)
    both.observe(refused)
    done = replace(refused, result=Result.DONE)
    assert both.observe(done) == done
    assert both.submit(victim(), 0).executor == "api"


def test_there_is_a_kill_only_where_it_is_configured_and_possible() -> None:
    api, cgroup = Recorder("api", Result.REFUSED), Recorder("cgroup", Result.DONE)
    assert LastResort(api, cgroup).kill is None
    assert LastResort(api, cgroup, kill_after_s=60).kill is cgroup
    alone = LastResort(api, None, kill_after_s=0)
    assert alone.kill is None
    for _ in range(2):
        assert alone.observe(alone.submit(victim(), 0)).retry_at_ns is None
    alone.close()
    LastResort(api, cgroup).close()
    assert (api.closed, cgroup.closed) == (2, 1)


@pytest.mark.parametrize("first", [Result.SENT, Result.DONE, Result.FAILED])
def test_the_last_resort_is_recorded_as_such(first: Result) -> None:
    api, cgroup = Recorder("api", Result.REFUSED), Recorder("cgroup", first)
    both = LastResort(api, cgroup, kill_after_s=60)
    both.observe(both.submit(victim(), time.monotonic_ns() - 61 * NS_PER_S))
    reported = both.submit(victim(), 0)
    ended = replace(reported, result=Result.DONE, detail="") if first is Result.SENT else reported
    last = both.observe(ended)
    for each in (reported, last) if first is Result.SENT else (last,):
        assert each.detail.startswith("last resort, 61")
        assert each.detail.count("after the API server was asked first") == 1
    # The next one is the API server's again, and so are its words.
    assert "last resort" not in both.observe(both.submit(victim(), 0)).detail


def test_the_last_resort_of_a_dry_run_is_a_dry_run() -> None:
    api, cgroup = Recorder("api", Result.DONE, enforce=False), Recorder("cgroup", Result.DONE)
    assert LastResort(api, cgroup, kill_after_s=0).submit(victim(), 0).result is Result.DRY_RUN
    assert (api.reached, cgroup.reached) == ([], [])


def test_close_lets_a_request_on_the_wire_be_answered_and_cuts_none_that_is() -> None:
    api = Api()
    api.gate.clear()
    desk = Desk(api, ApiLimits(close_s=patience(30)))
    desk.executor.submit(victim(), 1)
    assert api.is_asked.wait(10)
    closing = threading.Thread(target=desk.executor.close)
    closing.start()
    let_it_spin()
    assert not api.was_cut
    api.gate.set()
    closing.join()
    assert not api.was_cut
    assert desk.answer().result is Result.DONE


def test_close_cuts_a_request_that_hangs() -> None:
    api = Api(KubeError("cut"))
    api.gate.clear()
    desk = Desk(api)
    desk.executor.submit(victim(), 1)
    assert api.is_asked.wait(10)
    desk.executor.close()  # would wait for ten seconds otherwise
    assert api.gate.is_set()
    assert desk.outcomes.drain() == ()
