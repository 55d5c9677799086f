"""Events of pods that Katalyst's plugins ask for, with Katalyst's reasons.

Source: katalyst-core pkg/agent/evictionmanager/podkiller and podnotifier.
"""

from __future__ import annotations

from koordebpf.policy.katalyst.manager import SoftNotice
from koordebpf.policy.plan import Victim
from koordebpf.printable import printable
from koordebpf.report.pod_event import PodEvent
from koordebpf.state.outcome import Outcome, Result

_EVICTING, _STOPPING, _NOTIFYING = "Evicting", "ContainerStopping", "Notifying"
_DONE = {"cri": ("ContainerStopped", _STOPPING), "cgroup": ("EvictSucceeded", _EVICTING)}


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
