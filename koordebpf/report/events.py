"""Kubernetes Events with Koordinator's texts, on a pod or on the node, posted without blocking the loop."""

from __future__ import annotations

import contextlib
import functools
import logging
from datetime import UTC, datetime
from queue import Full, Queue
from typing import Protocol

import msgspec

from koordebpf.clock import Clock
from koordebpf.errors import KubeError
from koordebpf.kernel.io.closing import have_ended
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kube.clients.events import About, EventType
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.policy.plan import Victim
from koordebpf.policy.strategy import SoftNotice
from koordebpf.printable import printable
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.repeat_filter import RepeatFilter
from koordebpf.store.sink import AgentStopped, Event, MemoryReleased, NoticeEnded, ReleaseOverdue
from koordebpf.units import NS_PER_S

_EVICTING, _STOPPING, _NOTIFYING = "Evicting", "ContainerStopping", "Notifying"
_DONE = {"cri": ("ContainerStopped", _STOPPING), "cgroup": ("EvictSucceeded", _EVICTING)}
_log = logging.getLogger(__name__)
_QUEUED = 100  # Why: ten rounds of the eviction budget; Events are news, not a ledger
_AGAIN_NS = 3600 * NS_PER_S  # Why: an API server keeps Events for an hour (--event-ttl)
_TIMEOUT_S = 5.0
CLOSE_S = 1.0  # Why: as for evictions (act/evict/api.py)


class PodEvent(msgspec.Struct, frozen=True):
    """What was done to a pod, or is to be. `kind` is the Event's type; `action` is Katalyst's word, None: it has none.

    `about` Node: `name` and `uid` are both the Node's name, as in kubelet's own Events, and it has no namespace.
    """

    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    kind: EventType = "Warning"
    action: str | None = None
    about: About = "Pod"


# Events of pods that are asked for by name, with Katalyst's reasons.
#
# Source: katalyst-core pkg/agent/evictionmanager/podkiller and podnotifier.


def killer_event(victim: Victim, outcome: Outcome) -> PodEvent | None:
    """Return the Event of an eviction that was tried; None where nothing was tried or the answer is outstanding.

    EvictCreated: the API server has started the deletion. ContainerStopped and EvictSucceeded: the runtime or a kill
    has ended the pod's processes. EvictFailed: what the outcome says.
    """
    match outcome.result:
        case Result.DONE:
            reason, action = _DONE.get(outcome.executor, ("EvictCreated", _EVICTING))
            return _event(victim, reason, action, outcome.detail)
        case Result.REFUSED | Result.FAILED:
            return _event(victim, "EvictFailed", _EVICTING, outcome.detail, is_warning=True)
        case Result.GONE | Result.HELD | Result.DRY_RUN | Result.SENT:
            return None


def released_event(victim: Victim) -> PodEvent:
    """Return the Event of a pod that has ended after its eviction."""
    return _event(victim, "EvictSucceeded", _EVICTING, "its memory is back")


def overdue_event(victim: Victim, why: str) -> PodEvent:
    """Return the Event of a pod that has not ended in time after its eviction."""
    return _event(victim, "EvictExceededGracePeriod", _EVICTING, why or "it holds its memory still", is_warning=True)


def notice_event(notice: SoftNotice, problem: str | None) -> PodEvent:
    """Return the Event of a notice of a soft eviction."""
    text = f"plugin {notice.plugin} asks it to leave: {notice.reason}"
    return PodEvent(
        notice.namespace,
        notice.name,
        notice.uid,
        "NotifySuccess" if problem is None else "NotifyFailed",
        printable(text if problem is None else f"{text}, error {problem}"),
        "Normal" if problem is None else "Warning",
        _NOTIFYING,
    )


def _event(victim: Victim, reason: str, action: str, what: str, *, is_warning: bool = False) -> PodEvent:
    pod = victim.candidate
    text = printable(f"{what}; reason: {victim.message}")
    return PodEvent(pod.namespace, pod.name, pod.uid, reason, text, "Warning" if is_warning else "Normal", action)


def eviction_event(victim: Victim, outcome: Outcome) -> PodEvent | None:
    """Return the Event of an eviction that was tried; None where nothing was tried or the answer is outstanding.

    Source: Koordinator pkg/util/pod_evict.go and qosmanager/plugins/util/evictor.go.
    """
    pod = victim.candidate
    text = f"evict Pod:{pod.namespace}/{pod.name}, reason: {victim.reason}, message: {victim.message}"
    match outcome.result:
        case Result.DONE:
            return PodEvent(pod.namespace, pod.name, pod.uid, "evictPodSuccess", printable(text))
        case Result.REFUSED | Result.FAILED:
            return PodEvent(
                pod.namespace, pod.name, pod.uid, "evictPodFail", printable(f"{text}, error {outcome.detail}")
            )
        case Result.GONE | Result.HELD | Result.DRY_RUN | Result.SENT:
            return None


class CreatesEvents(Protocol):
    """The one call that is made; `kube.clients.evictions.KubeActions` has it."""

    def create_event(
        self,
        namespace: str,
        name: str,
        uid: str,
        *,
        reason: str,
        message: str,
        at: datetime,
        timeout_s: float,
        kind: EventType = "Warning",
        action: str | None = None,
        about: About = "Pod",
    ) -> None:
        """Record an Event on a pod or a Node."""

    def close(self) -> None:
        """Let requests that wait fail at once."""


class EventPoster:
    """Posts Events from one thread. What the API server does not take, or what does not fit, is counted and dropped.

    Args:
        api: the API server.
        close_s: how long `close` waits for what is queued, and again for what it has cut.
    """

    def __init__(self, api: CreatesEvents, *, close_s: float = CLOSE_S) -> None:
        self._api = api
        self._close_s = close_s
        self._queue: Queue[tuple[PodEvent, datetime] | None] = Queue(_QUEUED)
        self._posted_before = RepeatFilter(_AGAIN_NS)
        self.dropped = 0
        self._is_closing = False
        supervisor = Supervisor("events")
        self._thread = supervisor.thread(functools.partial(self._work, supervisor), again=True)
        self._thread.start()

    def post(self, event: PodEvent, wall_s: float) -> None:
        """Queue one Event that happened at `wall_s`."""
        try:
            self._queue.put_nowait((event, datetime.fromtimestamp(wall_s, UTC)))
        except Full:
            self.dropped += 1

    def post_outcome(self, victim: Victim, outcome: Outcome, now_ns: int, wall_s: float) -> None:
        """Queue the Event of an eviction that was tried; one that is refused twenty times is one piece of news."""
        if (event := eviction_event(victim, outcome)) is not None:
            self.post_once(event, outcome.result.value, now_ns, wall_s)

    def post_once(self, event: PodEvent, what: str, now_ns: int, wall_s: float) -> None:
        """Queue an Event unless one that says the same of the pod was queued within the hour."""
        if self._posted_before.admit(f"{event.uid}:{what}", event.message, now_ns) is not None:
            self.post(event, wall_s)

    def close(self) -> None:
        """Post what is queued, but for no longer than `close_s`, then stop the thread; one that hangs is left."""
        with contextlib.suppress(Full):
            self._queue.put_nowait(None)
        self._thread.join(self._close_s)
        if self._thread.is_alive():
            self._is_closing = True
            with contextlib.suppress(Full):
                self._queue.put_nowait(None)
            self._api.close()
            if not have_ended([self._thread], self._close_s):
                _log.warning("the API server has not answered: the last Events are left out")

    def _work(self, supervisor: Supervisor) -> None:
        while not self._is_closing and (entry := self._queue.get()) is not None:
            if not supervisor.call(functools.partial(self._create, *entry)):
                self.dropped += 1

    def _create(self, event: PodEvent, at: datetime) -> None:
        try:
            self._api.create_event(
                event.namespace,
                event.name,
                event.uid,
                reason=event.reason,
                message=event.message,
                at=at,
                timeout_s=_TIMEOUT_S,
                kind=event.kind,
                action=event.action,
                about=event.about,
            )
        except KubeError as error:
            self.dropped += 1
            _log.warning("event %s on %s/%s was not recorded: %s", event.reason, event.namespace, event.name, error)


class EventSink:
    """The sink of Kubernetes Events: one for each outcome of an eviction that was tried, and for each notice.

    Pods that are asked for by name have Events that also say how an eviction by the API server ends.
    """

    name = "events"
    takes = (OutcomeArrived, MemoryReleased, ReleaseOverdue, NoticeEnded, AgentStopped)

    def __init__(self, poster: EventPoster, plans: OpenPlans, clock: Clock) -> None:
        self._poster = poster
        self._plans = plans
        self._clock = clock
        self._created: dict[str, Victim] = {}  # of these, evictions that the API server has accepted

    def publish(self, event: Event) -> None:
        """Queue an Event."""
        match event:
            case OutcomeArrived(outcome, now_ns):
                if victim := self._plans.victim(outcome.uid):
                    self._arrived(victim, outcome, now_ns)
            case MemoryReleased(entry, now_ns):
                if victim := self._created.pop(entry.uid, None):
                    self._post(released_event(victim), now_ns)
            case ReleaseOverdue(entry, now_ns):
                if victim := self._created.get(entry.uid):
                    self._post(overdue_event(victim, entry.why), now_ns)
            case NoticeEnded(notice, problem, now_ns, wall_s):
                made = notice_event(notice, problem)
                self._poster.post_once(made, f"{made.reason}:{notice.plugin}", now_ns, wall_s)
            case AgentStopped():
                self._poster.close()

    def _arrived(self, victim: Victim, outcome: Outcome, now_ns: int) -> None:
        if not self._plans.is_by_name(outcome.uid):
            self._poster.post_outcome(victim, outcome, now_ns, self._clock.wall_s())
        elif (made := killer_event(victim, outcome)) is not None:
            if made.reason == "EvictCreated":
                self._created[outcome.uid] = victim
                if len(self._created) > _QUEUED:
                    del self._created[next(iter(self._created))]
            self._post(made, now_ns)

    def _post(self, event: PodEvent, now_ns: int) -> None:
        self._poster.post_once(event, event.reason, now_ns, self._clock.wall_s())
