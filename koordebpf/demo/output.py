"""What the agent and the workers of a story print: each line is passed on, and kept for the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koordebpf.demo.verdict import Crossing, Eviction, Rounds, evictions_of, rounds_within
from koordebpf.state.amount import MEMORY
from koordebpf.store.audit_record import AuditRecord


class Event(msgspec.Struct, frozen=True):
    """Something that happened. `at_ns` is CLOCK_MONOTONIC; `pod` None: it concerns the node or the agent."""

    at_ns: int
    event: str  # worker, agent, usage, evicted
    text: str = ""
    pod: str | None = None
    numbers: Mapping[str, Any] = {}


Tell = Callable[[Event], None]


class StoryOutput:
    """Parses the lines of the agent and of each worker.

    Args:
        aggressor: the pod whose worker's first memory begins the trouble.
        crossing: of the node's threshold, sampled by who owns it.
        tell: called with what each line says.
    """

    def __init__(self, aggressor: str, crossing: Crossing, tell: Tell) -> None:
        self._aggressor = aggressor
        self._crossing = crossing
        self._tell = tell
        self.is_watching = False  # the agent's programs are attached, and the pods are known
        self.problems: list[str] = []
        self.raw: list[str] = []  # what is no log line: a traceback, a refused option
        self._rounds_ns: list[tuple[int, int]] = []
        self.evictions: list[Eviction] = []
        self.began_ns: int | None = None
        self.ready: set[str] = set()

    def add_agent_line(self, line: bytes) -> None:
        """Add a line of the agent's log."""
        try:
            fields: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
            text, level = str(fields["message"]), str(fields["level"])
        except (msgspec.DecodeError, KeyError):
            self.raw.append(line.decode(errors="replace"))
            self._tell(Event(time.monotonic_ns(), "agent", self.raw[-1], numbers={"level": "error"}))
            return
        if text.startswith("watching "):
            self.is_watching = True
        if level in ("error", "critical"):
            self.problems.append(text)
        if "traceback" in fields:
            text = f"{text}\n{fields['traceback']}"
        self._tell(Event(time.monotonic_ns(), "agent", text, numbers={"level": level}))

    def add_audit_line(self, line: bytes) -> None:
        """Add a line of the agent's audit."""
        record = msgspec.json.decode(line, type=AuditRecord)
        for eviction in evictions_of(record):
            self.evictions.append(eviction)
            numbers = {
                "crossed_ns": self._crossing.crossed_ns(eviction.seen_ns),
                **msgspec.to_builtins(eviction),
                "ranking": [
                    {"pod": pod.name, "priority": pod.priority, "used_bytes": pod.of(MEMORY).used}
                    for feature in record.features
                    for pod in feature.ranking
                ],
            }
            self._tell(Event(time.monotonic_ns(), "evicted", record.sentence, eviction.pod, numbers))

    def add_worker_line(self, name: str, line: bytes) -> None:
        """Add a line of a pod's worker."""
        fields: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        at_ns, event = fields.pop("at_ns"), fields.pop("event")
        if event == "rounds":
            self._rounds_ns += [(begin_ns, took_ns) for begin_ns, took_ns in fields["rounds_ns"]]
            return
        if event == "ready":
            self.ready.add(name)
        if event == "begins" and name == self._aggressor:
            self.began_ns = at_ns
        self._tell(Event(at_ns, "worker", event, name, fields))

    def add_worker_error(self, name: str, line: bytes) -> None:
        """Add a line of a worker's standard error: a problem."""
        self.problems.append(f"{name}: {line.decode(errors='replace')}")

    def refusal(self, otherwise: str) -> str:
        """Return why the agent did not start, in its own words if it had any."""
        return "; ".join([*self.raw, *self.problems]) or otherwise

    def crossed_ns(self) -> int | None:
        """Return when the node crossed its threshold, as the agent or who watches from outside saw it first."""
        return self._crossing.crossed_ns(self.evictions[0].seen_ns if self.evictions else None)

    def rounds_around(self, end_ns: int) -> tuple[Rounds | None, Rounds | None, Rounds | None]:
        """Return the LS pod's rounds before the trouble, during it, and while the node was above its threshold.

        Trouble ends when the first victim's memory is back, else when the node is below the lower mark, else at the
        story's end.
        """
        back_ns = (self.evictions[0].freed_ns if self.evictions else None) or self._crossing.below_ns
        windows = ((0, self.began_ns), (self.began_ns, back_ns or end_ns), (self.crossed_ns(), back_ns))
        quiet, trouble, above = (rounds_within(self._rounds_ns, *window) for window in windows)
        return quiet, trouble, above
