"""Why a pod is gone, or still there: its Events, and what agents decided that speaks of it. Also long after it is gone.

Decisions come from an agent's memory (its last 50, by a command in its pod), from its log where that command is not
allowed or remembers none, and, where it is asked for, from what it recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from koordebpf.errors import ConfigError, KubeError
from koordebpf.kube.clients.events import COMPONENT
from koordebpf.kube.remote.pods import RemoteEvent, RemotePod, events_on, log_of, pod_now
from koordebpf.printable import page
from koordebpf.report.pages.columns import filled
from koordebpf.report.pages.explain import concerns, decode_audit, explained
from koordebpf.store.audit_record import AuditRecord
from koordebpf.tools.cluster.asking import Agents, ask_all

AUDIT_LINE: Final = b'"schema":"koordebpf.audit/v2"'
_RECORDER: Final = "/var/lib/koordebpf/recorder"
_ALL: Final = 1000


class PodState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod as it is now."""

    node: str
    uid: str
    phase: str
    reason: str = ""
    message: str = ""
    terminating: bool = False


class ShownEvent(msgspec.Struct, frozen=True):
    """One Event on it."""

    time: str
    type: str
    reason: str
    component: str
    message: str
    count: int


class Found(msgspec.Struct, frozen=True):
    """One decision: who made it and where it was found."""

    node: str
    where: str
    decision: AuditRecord


class Why(msgspec.Struct, frozen=True):
    """What `why -o json` prints. `now` null: there is no such pod. `asked`: nodes. `problems`: what is not known."""

    schema: Literal["koordebpf.why/v1"]
    pod: str
    now: PodState | None
    events: tuple[ShownEvent, ...]
    decisions: tuple[Found, ...]
    asked: tuple[str, ...]
    problems: tuple[str, ...] = ()


def why_page(why: Why) -> str:
    """Return what became of the pod, its Events, and each decision as `koordebpf explain` has it."""
    lines = [f"pod {why.pod}: {_now(why.now)}"]
    if why.now and why.now.message:
        lines += filled(why.now.message, "  ")
    if why.events:
        lines.append("Events:")
        for each in why.events:
            times = f" ({each.count} times)" if each.count > 1 else ""
            lines += filled(f"{each.time} {each.component} {each.reason}{times}: {each.message}", "  ")
    blocks = [page(lines)]
    for found in why.decisions:
        head = page([f"decided on {found.node}, says {found.where}:"])
        blocks.append(f"{head}\n{explained(found.decision)}")
    if not why.decisions:
        where = "any node" if len(why.asked) != 1 else why.asked[0]
        blocks.append(
            page(
                filled(
                    f"no decision of an agent on {where} speaks of it. Agents remember their last 50 decisions, and"
                    " their logs some more; --recorded looks into what they recorded."
                )
            )
        )
    return "\n\n".join(blocks)


def _now(state: PodState | None) -> str:
    if state is None:
        return "gone"
    words = [state.phase.lower() or "unknown", f"on {state.node}" if state.node else "on no node yet"]
    if state.terminating:
        words.append("being deleted")
    if state.reason:
        words.append(state.reason)
    return ", ".join(words)


def why_pod(agents: Agents, namespace: str, name: str, last: int, *, recorded: bool = False) -> Why:
    """Return all that is known of a pod; `last`: so many decisions at most, the newest.

    Which node it was on say the pod itself, else the Events about it; where neither does, all agents are asked.
    `recorded`: recordings are looked into too, which takes an agent's node up to a minute of CPU time.

    Raises:  KubeError: the pod cannot be read.
    """
    transport = agents.cluster.transport
    pod = pod_now(transport, namespace, name)
    problems: list[str] = []
    try:
        events = events_on(transport, namespace, name)
    except KubeError as error:
        events = []
        problems.append(f"Events: {error}")
    nodes = _nodes(pod, events)
    asked = {node: each for node, each in agents.by_node.items() if not nodes or node in nodes}
    # A pod that moved: where it was evicted from is not where it is now.
    problems += [f"{node}: no agent is there now" for node in sorted(nodes - agents.by_node.keys())]
    key = f"{namespace}/{name}"
    answers = ask_all(asked, lambda each: _decisions(agents, each, key, recorded=recorded), within_s=agents.within_s)
    problems += [f"{each.node}: {each.reason}" for each in answers.missing]
    found = sorted(
        (Found(node, where, record) for node, (where, of) in answers.given.items() for record in of),
        key=lambda each: each.decision.time,
    )
    return Why(
        schema="koordebpf.why/v1",
        pod=key,
        now=_state(pod) if pod else None,
        events=tuple(_shown(each) for each in events),
        decisions=tuple(found[-last:]),
        asked=tuple(asked),
        problems=tuple(problems),
    )


def _nodes(pod: RemotePod | None, events: Iterable[RemoteEvent]) -> set[str]:
    own = {each.source.host or each.reportingInstance for each in events if each.component == COMPONENT}
    own |= {pod.spec.nodeName} if pod else set()
    if not own:  # of the kubelet that ran it
        own = {each.source.host for each in events if each.component == "kubelet"}
    return own - {""}


def _decisions(agents: Agents, agent: RemotePod, key: str, *, recorded: bool) -> tuple[str, tuple[AuditRecord, ...]]:
    reasons = []
    try:
        if found := _spoken(agents.output(agent, "explain", "--json", "--last", str(_ALL), "--pod", key), key):
            return "its agent", found
    except KubeError as error:  # as who may not run commands in pods
        reasons.append(str(error))
    for previous in (False, True):
        try:
            raw = log_of(agents.cluster.transport, agent, timeout_s=agents.within_s, previous=previous)
        except KubeError as error:
            if not previous:  # most agents have started once
                reasons.append(str(error))
            continue
        lines = (line for line in raw.splitlines() if AUDIT_LINE in line)
        if found := _spoken(b"\n".join(lines), key):
            return "its agent's log", found
    if recorded:
        command = ("explain", "--json", "--last", str(_ALL), "--pod", key, _RECORDER)
        return "its agent's recording", _spoken(agents.output(agent, *command), key)
    if len(reasons) > 1:  # neither answered
        raise KubeError("; ".join(reasons))
    return "", ()


def _spoken(raw: bytes, key: str) -> tuple[AuditRecord, ...]:
    records, _ = decode_audit(raw, key)
    return tuple(record for record in records if concerns(record, key))


def _state(pod: RemotePod) -> PodState:
    status, meta = pod.status, pod.metadata
    return PodState(
        pod.spec.nodeName, meta.uid, status.phase, status.reason, status.message, meta.deletionTimestamp is not None
    )


def _shown(event: RemoteEvent) -> ShownEvent:
    return ShownEvent(event.time, event.type, event.reason, event.component, event.message, event.count or 1)


def pod_of(text: str, namespace: str) -> tuple[str, str]:
    """Return namespace and name of `name`, `namespace/name` or `pod/name`.

    Raises:  ConfigError: it is none of them.
    """
    kind, slash, rest = text.partition("/")
    if slash and kind in ("pod", "pods", "po"):
        return namespace, rest
    if not text or text.count("/") > 1:
        raise ConfigError("POD", text, "must be NAME or NAMESPACE/NAME")
    return (kind, rest) if slash else (namespace, text)
