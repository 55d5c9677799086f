"""The page of `kubectl koordebpf why`."""

from __future__ import annotations

from typing import Literal

import msgspec

from koordebpf.printable import page
from koordebpf.report.pages.columns import filled
from koordebpf.report.pages.explain import explained
from koordebpf.store.v1 import types as v1
from koordebpf.store.v1.decode import audit_of_json


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
    decision: v1.AuditRecord


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
        blocks.append(f"{head}\n{explained(audit_of_json(found.decision))}")
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
