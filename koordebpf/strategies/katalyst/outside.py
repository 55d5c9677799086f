"""Calls all plugins outside the process side by side, with a deadline for each call, away from the loop.

Each plugin has a thread of its own while it is registered: one that hangs keeps no other waiting, and the call that it
hangs in ends with the deadline.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.configuration.settings import AgentConfig
from koordebpf.errors import DecodeError
from koordebpf.kernel.io.closing import have_ended
from koordebpf.kernel.io.worker import Supervisor, Worker
from koordebpf.kube.clients.grpc import GrpcSocket
from koordebpf.kube.clients.protobuf import decode, encode
from koordebpf.kube.plugins.messages import (
    GREATER_THAN,
    HARD_MET,
    LESS_THAN,
    NODE_CONDITION,
    NOT_MET,
    PLUGIN_MESSAGES,
    PLUGIN_SERVICE,
    SOFT_MET,
)
from koordebpf.kube.plugins.pods import PodMessages, uid_of
from koordebpf.slo.katalyst_access import Validation
from koordebpf.strategies.katalyst.inner import INNER
from koordebpf.strategies.katalyst.registry import PluginAccess, PluginRegistry
from koordebpf.strategies.katalyst.rounds import RemoteCall
from koordebpf.strategies.katalyst.settings import KatalystSettings
from koordebpf.strategies.katalyst.values import (
    Condition,
    ConditionKind,
    EvictAsked,
    EvictionRecord,
    Met,
    Operator,
    PluginAnswer,
    RemoteAnswers,
    Threshold,
    TopAsk,
    TopPods,
)
from koordebpf.units import NS_PER_S

_LONGEST = 500  # characters of a text. Why: it is in an Event, whose message may have 1,024
_MOST_PODS = 2000  # Why: four times what a kubelet may run
_MET: Mapping[int, Met] = {SOFT_MET: "soft", HARD_MET: "hard"}
_OPERATORS: Mapping[int, Operator] = {LESS_THAN: "less_than", GREATER_THAN: "greater_than"}
Answered = bytes | Exception  # of one call; an error: why there is none
_WAITING = 4  # calls. Why: there is one at a time, and one that was given up; one more has no answer in time
_CLOSE_S = 1.0
log = logging.getLogger(__name__)
Work = Callable[[], None]


# What plugins outside the process answer, from bytes to values. Whatever cannot be used is a problem in a sentence.
#
# A plugin is another program: its numbers, names and texts are checked, and bounded, before a frame has them.


def thresholds_answer(plugin: str, met: Answered, evict: Answered) -> PluginAnswer:
    """Return what ThresholdMet and GetEvictPods of a plugin said; of a call that failed, why."""
    problems: list[str] = []
    threshold: Threshold | None = None
    asked: tuple[EvictAsked, ...] = ()
    conditions: tuple[Condition, ...] = ()
    try:
        threshold = _threshold(_decoded("ThresholdMetResponse", met))
    except (DecodeError, OSError) as error:
        problems.append(f"ThresholdMet: {error}")
    try:
        asked, conditions = _evict_pods(_decoded("GetEvictPodsResponse", evict))
    except (DecodeError, OSError) as error:
        problems.append(f"GetEvictPods: {error}")
    return PluginAnswer(plugin, threshold, asked, conditions, problem="; ".join(problems) or None)


def top_answer(plugin: str, top: Answered) -> PluginAnswer:
    """Return what GetTopEvictionPods of a plugin said."""
    try:
        found = _decoded("GetTopEvictionPodsResponse", top)
        return PluginAnswer(plugin, top=TopPods(_uids(found["target_pods"]), _grace_s(found["deletion_options"])))
    except (DecodeError, OSError) as error:
        return PluginAnswer(plugin, top=TopPods(()), problem=f"GetTopEvictionPods: {error}")


def _decoded(message: str, answered: Answered) -> dict[str, Any]:
    if isinstance(answered, Exception):
        raise DecodeError(str(answered))
    return decode(PLUGIN_MESSAGES, message, answered)


def _threshold(found: Mapping[str, Any]) -> Threshold | None:
    met = found["met_type"]
    if met == NOT_MET:
        return None
    if met not in _MET:
        raise DecodeError(f"met_type {met} is none of 0, 1 and 2")
    for name in ("threshold_value", "observed_value"):
        if not math.isfinite(found[name]):
            raise DecodeError(f"{name} {found[name]} is no number")
    if (operator := _OPERATORS.get(found["threshold_operator"])) is None:
        raise DecodeError(f"threshold_operator {found['threshold_operator']} is neither 0 nor 1")
    return Threshold(
        _MET[met],
        _text(found["eviction_scope"]),
        found["threshold_value"],
        found["observed_value"],
        operator,
        found["grace_period_seconds"],
        _condition(found["condition"]),
        _uids(found["candidate_pods"]),
    )


def _evict_pods(found: Mapping[str, Any]) -> tuple[tuple[EvictAsked, ...], tuple[Condition, ...]]:
    asked = found["evict_pods"]
    if len(asked) > _MOST_PODS:
        raise DecodeError(f"{len(asked)} pods are more than {_MOST_PODS}")
    condition = _condition(found["condition"])
    return tuple(
        EvictAsked(_uid(each["pod"]), _text(each["reason"]), each["force_evict"], _grace_s(each["deletion_options"]))
        for each in asked
        if each["pod"]  # Katalyst skips an entry without one, too
    ), (condition,) if condition else ()


def _condition(found: Mapping[str, Any] | None) -> Condition | None:
    if found is None or not found["met_condition"]:
        return None
    kind: ConditionKind = "node" if found["condition_type"] == NODE_CONDITION else "cnr"
    return Condition(_text(found["condition_name"]), kind, tuple(map(_text, found["effects"][:10])))


def _grace_s(found: Mapping[str, Any] | None) -> int | None:
    return None if found is None else int(found["grace_period_seconds"])


def _uids(pods: Sequence[bytes]) -> tuple[str, ...]:
    if len(pods) > _MOST_PODS:
        raise DecodeError(f"{len(pods)} pods are more than {_MOST_PODS}")
    return tuple(dict.fromkeys(map(_uid, pods)))


def _uid(pod: bytes) -> str:
    if not (uid := uid_of(pod)):
        raise DecodeError("a pod without a metadata.uid")
    return _text(uid)


def _text(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


class PluginCaller:
    """The plugins that are registered, by name, and the call that is open.

    Args:
        wake: is called from another thread when the answers of a call are there.
        deadline_s: of one call of one plugin.
    """

    def __init__(self, wake: Callable[[], None], deadline_s: float) -> None:
        self._wake = wake
        self._deadline_s = deadline_s
        self._endpoints: dict[str, _Endpoint] = {}
        self._round: _Round | None = None
        self._failing: set[str] = set()
        self._supervisor = Supervisor("plugin-deadline")

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are registered."""
        return tuple(sorted(self._endpoints))

    def register(self, name: str, socket: Path) -> None:
        """Call a plugin from now on, in place of one of the same name."""
        if (before := self._endpoints.pop(name, None)) is not None:
            before.close()
        self._endpoints[name] = _Endpoint(name, socket, self._deadline_s)

    def deregister(self, name: str) -> None:
        """Call it no more; the open call does not wait for it."""
        if (endpoint := self._endpoints.pop(name, None)) is not None:
            endpoint.close()

    def ask_thresholds(self, number: int, pods: Mapping[str, bytes]) -> None:
        """Begin a call of every plugin: GetEvictPods, then ThresholdMet, with these pods."""
        message = encode(PLUGIN_MESSAGES, "GetThresholdMetRequest", {"active_pods": list(pods.values())})
        asked: dict[str, Ask] = {name: lambda endpoint: endpoint.thresholds(message) for name in self._endpoints}
        self._begin(number, asked, calls=2)

    def ask_tops(self, number: int, asks: Iterable[TopAsk], pods: Mapping[str, bytes]) -> None:
        """Begin a call of some plugins: GetTopEvictionPods. One that is registered no more does not answer."""

        def asking(ask: TopAsk) -> Ask:
            given = {
                "active_pods": [pods[uid] for uid in ask.candidates if uid in pods],
                "topN": ask.top_n,
                "eviction_scope": ask.scope,
                "candidate_eviction_records": list(map(_written, ask.records)),
            }
            message = encode(PLUGIN_MESSAGES, "GetTopEvictionPodsRequest", given)
            return lambda endpoint: endpoint.top_pods(message)

        self._begin(number, {each.plugin: asking(each) for each in asks}, calls=1)

    def poll(self) -> RemoteAnswers | None:
        """Return the answers of the last call, once; None: it is open, or there is none."""
        if self._round is None or (found := self._round.answers()) is None:
            return None
        self._round = None
        for each in found.answers:
            self._record(each)
        return found

    def close(self) -> None:
        """End every thread; calls that hang are cut short."""
        endpoints, self._endpoints = list(self._endpoints.values()), {}
        for each in endpoints:
            each.close()
        have_ended([each.worker.thread for each in endpoints], _CLOSE_S)

    # Once when a plugin begins to fail, and once when it answers again.
    def _record(self, answer: PluginAnswer) -> None:
        name, problem = answer.plugin, answer.problem
        if problem is not None and name not in self._failing:
            log.warning("plugin %s fails, and counts as one without an answer: %s", name, problem)
            self._failing = (self._failing & self._endpoints.keys()) | {name}
        elif problem is None and name in self._failing:
            log.info("plugin %s answers again", name)
            self._failing.discard(name)

    def _begin(self, number: int, asked: Mapping[str, Ask], *, calls: int) -> None:
        current = self._round = _Round(number, tuple(asked), calls * self._deadline_s, self._wake, self._supervisor)
        for name, ask in asked.items():
            if (endpoint := self._endpoints.get(name)) is None:
                current.put(PluginAnswer(name, problem="it is registered no more"))
            else:
                endpoint.worker.submit(functools.partial(current.ask, endpoint, ask))
        current.start()


def _written(record: EvictionRecord) -> dict[str, object]:
    buckets = [{"time": each.time_s, "duration": each.duration_s, "count": each.count} for each in record.buckets]
    return {**msgspec.structs.asdict(record), "buckets": {"list": buckets} if buckets else None}


class _Round:
    """One call of several plugins: complete when all have answered, or at its deadline."""

    def __init__(
        self, number: int, names: Sequence[str], deadline_s: float, wake: Callable[[], None], supervisor: Supervisor
    ) -> None:
        self._number = number
        self._names = names
        self._wake = wake
        self._lock = threading.Lock()
        self._answers: dict[str, PluginAnswer] = {}
        self._is_over = not names
        self._timer = threading.Timer(deadline_s, functools.partial(supervisor.call, self._end))
        self._timer.daemon = True

    def start(self) -> None:
        if self._is_over:
            self._wake()
        else:
            self._timer.start()

    def ask(self, endpoint: _Endpoint, ask: Ask) -> None:
        try:
            answer = ask(endpoint)
        except Exception as error:  # without its answer the round would wait for the deadline
            self.put(PluginAnswer(endpoint.name, problem=f"{type(error).__name__}: {error}"))
            raise
        self.put(answer)

    def put(self, answer: PluginAnswer) -> None:
        with self._lock:
            if self._is_over:
                return
            self._answers[answer.plugin] = answer
            if len(self._answers) < len(self._names):
                return
        self._end()

    def answers(self) -> RemoteAnswers | None:
        with self._lock:
            if not self._is_over:
                return None
            late = PluginAnswer("", problem="no answer in time")
            found = [self._answers.get(name) or msgspec.structs.replace(late, plugin=name) for name in self._names]
        return RemoteAnswers(self._number, tuple(found), time.monotonic_ns())

    def _end(self) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        self._timer.cancel()
        self._wake()


class _Endpoint:
    """One plugin and its thread."""

    def __init__(self, name: str, socket: Path, deadline_s: float) -> None:
        self.name = name
        self._deadline_s = deadline_s
        self._socket = GrpcSocket(socket)
        self.worker: Worker[Work] = Worker(f"plugin {name}", lambda work: work(), most=_WAITING)

    # In Katalyst's order: a plugin from before 2025 knows pods by GetEvictPods alone, and judges those of the last one.
    def thresholds(self, message: bytes) -> PluginAnswer:
        evict = self._call("GetEvictPods", message)
        # Both requests have the pods alone, as field 1.
        return thresholds_answer(self.name, self._call("ThresholdMet", message), evict)

    def top_pods(self, message: bytes) -> PluginAnswer:
        return top_answer(self.name, self._call("GetTopEvictionPods", message))

    def close(self) -> None:
        self.worker.end()
        self._socket.close()

    def _call(self, method: str, message: bytes) -> Answered:
        (answer,) = self._socket.call(f"{PLUGIN_SERVICE}/{method}", [message], self._deadline_s)
        return answer


Ask = Callable[[_Endpoint], PluginAnswer]


# Those that are registered, in the agent: called as decisions ask for it.


class EvictionPlugins:
    """The plugins whose sockets are in a directory. Nothing here waits for one.

    Args:
        registry: takes what wakes the loop, and returns who is registered.
        pods: as messages.
        watch: of the node, for its pods.
        wake: lets the loop look at what has come.
        deadline_s: of one call of one plugin.
    """

    def __init__(
        self,
        registry: Callable[[Callable[[], None]], PluginRegistry],
        pods: PodMessages,
        watch: NodeWatch,
        wake: Callable[[], None],
        deadline_s: float,
    ) -> None:
        self._pods = pods
        self._watch = watch
        self._wake_loop = wake
        self._has_news = threading.Event()
        self._caller = PluginCaller(self._wake, deadline_s)
        self._registry = registry(self._wake)

    @property
    def problems(self) -> dict[str, str]:
        """Why sockets have no plugin that is registered, by their path."""
        return self._registry.problems

    @property
    def validations(self) -> dict[Validation, int]:
        """How often plugins were judged so since the start."""
        return self._registry.validations

    def is_due(self) -> bool:
        """Tell whether a plugin came or left, or the answers of a call are there."""
        return self._has_news.is_set()

    def poll(self) -> tuple[tuple[str, ...], RemoteAnswers | None]:
        """Return the names of those that are registered, and the answers of a call that has ended, once."""
        self._has_news.clear()
        for change in self._registry.poll():
            if change.socket is None:
                self._caller.deregister(change.name)
            else:
                self._caller.register(change.name, change.socket)
        return self._caller.names, self._caller.poll()

    def call(self, call: RemoteCall) -> None:
        """Begin a call; its answers are taken later."""
        state, _ = self._watch.cluster()
        wanted = {*call.candidates, *(uid for ask in call.asks or () for uid in ask.candidates)}
        found = [pod for pod in state.pods if pod.uid in wanted] if state else []
        messages = self._pods.of(found, state.version if state else 0)
        if call.asks is None:
            self._caller.ask_thresholds(call.number, messages)
        else:
            self._caller.ask_tops(call.number, call.asks, messages)

    def close(self) -> None:
        """Call and register no plugin any more."""
        self._registry.close()
        self._caller.close()
        self._pods.close()

    def _wake(self) -> None:
        self._has_news.set()
        self._wake_loop()


def open_eviction_plugins(
    config: AgentConfig,
    settings: KatalystSettings,
    watch: NodeWatch,
    wake: Callable[[], None],
    stack: contextlib.ExitStack,
) -> EvictionPlugins:
    """Return those whose sockets are in the directory of the settings."""
    folder, taken = Path(settings.sockets), [each.name for each in INNER.values()]

    def registry(wake: Callable[[], None]) -> PluginRegistry:
        return PluginRegistry(folder, taken, wake, PluginAccess(settings.access))

    made = EvictionPlugins(registry, _open_messages(config), watch, wake, settings.deadline_ns / NS_PER_S)
    stack.callback(made.close)
    return made


# urllib3 is imported only where something talks to an API server.
def _open_messages(config: AgentConfig) -> PodMessages:
    if config.source != "api" or config.node_name is None:
        return PodMessages(None, "")
    from koordebpf.kube.http.transport import open_cluster

    return PodMessages(open_cluster(config.kubeconfig, config.kube_context), config.node_name)
