"""What one run of a story came to: its numbers, when the threshold was crossed, whether all is as it should be. Pure.

Durations are shown and never judged: they belong to the machine. Judged is who went, who did not, and for whose
shortage any pod stalled.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal

import msgspec

from koordebpf.state.amount import MEMORY
from koordebpf.state.outcome import Result
from koordebpf.store.audit_record import AuditRecord
from koordebpf.units import NS_PER_MS

Kind = Literal["hog", "page-cache", "own-limit"]
FULL_PERCENT = 99  # of the node's limit: the kernel reclaims in batches, so that usage stays a little below it


class Usage(msgspec.Struct, frozen=True, gc=False):
    """The node at one moment; `used_bytes` leaves out page cache (docs/decisions.md, What "used" means)."""

    at_ns: int
    usage_bytes: int
    used_bytes: int


class Crossing:
    """Remembers peaks, the crossing and the way back; `below_ns` is the first reading after it."""

    def __init__(self, threshold_bytes: int, lower_bytes: int) -> None:
        self._threshold_bytes = threshold_bytes
        self._lower_bytes = lower_bytes
        self.peak_usage_bytes = 0
        self.peak_used_bytes = 0
        self._sampled_ns = array("q")
        self._above_ns: int | None = None  # the first reading above
        self.below_ns: int | None = None

    def push(self, now: Usage) -> None:
        """Take the next sample."""
        if self._above_ns is None and now.used_bytes >= self._threshold_bytes:
            self._above_ns = now.at_ns
        if self._above_ns is not None and self.below_ns is None and now.used_bytes < self._lower_bytes:
            self.below_ns = now.at_ns
        self._sampled_ns.append(now.at_ns)
        self.peak_usage_bytes = max(self.peak_usage_bytes, now.usage_bytes)
        self.peak_used_bytes = max(self.peak_used_bytes, now.used_bytes)

    def crossed_ns(self, seen_ns: int | None = None) -> int | None:
        """Return the last reading below the threshold before it was first seen above: here, or by another at `seen_ns`.

        No latency that is counted from it is shown shorter than it was. The other may see the crossing alone: an agent
        needs a few milliseconds from there until the memory is back. None: none was seen.
        """
        seen = [ns for ns in (self._above_ns, seen_ns) if ns is not None]
        if not seen:
            return None
        earlier = bisect_left(self._sampled_ns, min(seen)) - 1
        return self._sampled_ns[earlier] if earlier >= 0 else None


class PodStalls(msgspec.Struct, frozen=True):
    """Direct reclaim that a pod's tasks waited in: for the node's memory, and for a limit below the node."""

    node_count: int = 0
    node_ns: int = 0
    limit_count: int = 0
    limit_ns: int = 0


class PodEnd(msgspec.Struct, frozen=True):
    """One pod at the end of its story. `stalls` None: they cannot be seen here."""

    name: str
    is_be: bool
    priority: int
    is_alive: bool
    stalls: PodStalls | None


class Eviction(msgspec.Struct, frozen=True):
    """One victim of the audit log. Moments are CLOCK_MONOTONIC nanoseconds, None: not reached."""

    pod: str
    is_done: bool
    seen_ns: int | None
    decided_ns: int
    sent_ns: int | None
    freed_ns: int | None
    credit_bytes: int | None


class Rounds(msgspec.Struct, frozen=True):
    """How long the LS pod's rounds took within a window. Nanoseconds."""

    count: int
    median_ns: int
    p99_ns: int
    max_ns: int


class StoryFacts(msgspec.Struct, frozen=True):
    """Everything that was measured. Moments are CLOCK_MONOTONIC nanoseconds, None: not reached."""

    kind: Kind
    limit_bytes: int
    threshold_bytes: int
    began_ns: int | None  # the aggressor began
    crossed_ns: int | None  # the last reading below the threshold before the node was above it
    below_ns: int | None  # it was read below the lower mark again
    peak_usage_bytes: int  # with page cache
    peak_used_bytes: int  # without
    evictions: tuple[Eviction, ...]
    oom_kills: int | None  # None: this kernel does not count them
    pods: tuple[PodEnd, ...]
    aggressor: str
    ls_pod: str
    quiet: Rounds | None
    trouble: Rounds | None  # from `began_ns` to the end of the trouble
    above: Rounds | None  # from the crossing until the memory was back
    stalls_unseen: str | None = None  # why there are no stalls
    agent_exit_code: int | None = 0
    problems: tuple[str, ...] = ()  # errors that the agent or a worker reported


class VerdictLine(msgspec.Struct, frozen=True):
    """One thing that is said. `ok` None: a measurement, neither good nor bad."""

    name: str
    text: str
    ok: bool | None = None


class Verdict(msgspec.Struct, frozen=True):
    """Whether the story went as it should, and why."""

    is_as_it_should_be: bool
    lines: tuple[VerdictLine, ...]


def judge(facts: StoryFacts) -> Verdict:
    """Return the verdict; good when no line is bad."""
    match facts.kind:
        case "hog":
            lines = [_victim(facts), _others(facts), *_latencies(facts)]
        case "page-cache":
            lines = [_no_eviction(facts), _filled(facts)]
        case "own-limit":
            lines = [_no_eviction(facts), _own_stalls(facts)]
    if facts.began_ns is None:
        lines.append(VerdictLine("trouble", f"{facts.aggressor} never began", ok=False))
    lines += [_oom(facts), _ls_alive(facts), _ls_stalls(facts), *_agent(facts)]
    return Verdict(all(line.ok is not False for line in lines), tuple(lines))


def evictions_of(record: AuditRecord) -> tuple[Eviction, ...]:
    """Return the victims of one audit line that were acted on, or were to be."""
    credits = {pod.uid: pod.of(MEMORY).released for feature in record.features for pod in feature.ranking}
    seen, freed = record.latencies.seen_to_decided_ns, record.latencies.decided_to_freed_ns
    return tuple(
        Eviction(
            pod=outcome.name,
            is_done=outcome.result is Result.DONE,
            seen_ns=None if seen is None else record.decided_ns - seen,
            decided_ns=record.decided_ns,
            sent_ns=outcome.sent_ns,
            freed_ns=None if freed is None else record.decided_ns + freed,
            credit_bytes=credits.get(outcome.uid),
        )
        for outcome in record.outcomes
    )


def rounds_within(rounds_ns: Sequence[tuple[int, int]], since_ns: int | None, until_ns: int | None) -> Rounds | None:
    """Return what the rounds took that overlap the window; (begin, duration) each. None: there is no window or none.

    p99 by nearest rank.
    """
    if since_ns is None or until_ns is None:
        return None
    took = sorted(took_ns for at_ns, took_ns in rounds_ns if at_ns < until_ns and at_ns + took_ns > since_ns)
    if not took:
        return None
    return Rounds(len(took), took[(len(took) - 1) // 2], took[-(-len(took) * 99 // 100) - 1], took[-1])


def format_ms(ns: int | None) -> str:
    """Return milliseconds for people.

    >>> format_ms(1_234_567)
    '1.2 ms'
    """
    return "not reached" if ns is None else f"{ns / NS_PER_MS:.1f} ms"


def _victim(facts: StoryFacts) -> VerdictLine:
    went = [eviction.pod for eviction in facts.evictions if eviction.is_done]
    aggressor = _pod(facts, facts.aggressor)
    if not went:
        return VerdictLine("evicted", "no pod, though the node was eaten", ok=False)
    if facts.aggressor not in went:
        return VerdictLine("evicted", f"{' and '.join(went)}, not {facts.aggressor}", ok=False)
    return VerdictLine(
        "evicted",
        f"{facts.aggressor}, the best-effort pod of lowest priority ({aggressor.priority})",
        ok=not aggressor.is_alive,
    )


def _others(facts: StoryFacts) -> VerdictLine:
    others = [pod for pod in facts.pods if pod.name != facts.aggressor]
    dead = [pod.name for pod in others if not pod.is_alive]
    asked = [eviction.pod for eviction in facts.evictions if eviction.pod != facts.aggressor]
    count = len(facts.evictions)
    evictions = "1 eviction" if count == 1 else f"{count} evictions"
    if dead or asked:
        lost = " and ".join(sorted({*dead, *asked}))
        return VerdictLine("no one else", f"{evictions}; {lost} should have stayed", ok=False)
    alive = " and ".join(pod.name for pod in others)
    return VerdictLine("no one else", f"{evictions} was enough; {alive} kept running", ok=count == 1)


def _latencies(facts: StoryFacts) -> list[VerdictLine]:
    first = next(iter(facts.evictions), None)
    decided = first.decided_ns if first else None
    sent = first.sent_ns if first else None
    freed = first.freed_ns if first else None
    return [
        VerdictLine("crossing to decision", format_ms(_between(facts.crossed_ns, decided))),
        VerdictLine("decision to SIGKILL", format_ms(_between(decided, sent))),
        VerdictLine("SIGKILL to memory back", format_ms(_between(sent, freed))),
    ]


def _between(begin_ns: int | None, end_ns: int | None) -> int | None:
    return None if begin_ns is None or end_ns is None else end_ns - begin_ns


def _no_eviction(facts: StoryFacts) -> VerdictLine:
    dead = {pod.name for pod in facts.pods if not pod.is_alive} | {eviction.pod for eviction in facts.evictions}
    if dead:
        return VerdictLine("evicted", f"{' and '.join(sorted(dead))}, though no pod had to be", ok=False)
    return VerdictLine("evicted", "no pod, as it should be", ok=True)


def _filled(facts: StoryFacts) -> VerdictLine:
    usage = facts.peak_usage_bytes * 100 // facts.limit_bytes
    used = facts.peak_used_bytes * 100 // facts.limit_bytes
    text = f"{usage} % of it with page cache, {used} % without; only the latter counts"
    if usage < FULL_PERCENT:
        return VerdictLine("node filled", f"{usage} % of it only: the flood never came, nothing is shown", ok=False)
    return VerdictLine("node filled", text, ok=facts.peak_used_bytes < facts.threshold_bytes)


def _own_stalls(facts: StoryFacts) -> VerdictLine:
    stalls = _pod(facts, facts.aggressor).stalls
    if stalls is None:
        return VerdictLine("stalls", f"not seen here: {facts.stalls_unseen}")
    own = f"{facts.aggressor} waited {format_ms(stalls.limit_ns)} in {stalls.limit_count} reclaims for its own limit"
    others = sum(pod.stalls.node_count for pod in facts.pods if pod.stalls)
    if stalls.limit_count == 0:
        return VerdictLine("stalls", f"{own}: nothing is shown", ok=False)
    return VerdictLine("stalls", f"{own}, {others} for the node's", ok=others == 0)


def _oom(facts: StoryFacts) -> VerdictLine:
    if facts.oom_kills is None:
        return VerdictLine("OOM kills", "this kernel does not count them")
    return VerdictLine("OOM kills", f"{facts.oom_kills} by the kernel in the node", ok=facts.oom_kills == 0)


def _ls_alive(facts: StoryFacts) -> VerdictLine:
    is_alive = _pod(facts, facts.ls_pod).is_alive
    return VerdictLine(facts.ls_pod, "kept running" if is_alive else "died", ok=is_alive)


def _ls_stalls(facts: StoryFacts) -> VerdictLine:
    stalls = _pod(facts, facts.ls_pod).stalls
    name = f"{facts.ls_pod}'s stalls"
    if stalls is None:
        return VerdictLine(name, f"not seen here: {facts.stalls_unseen}")
    text = f"{format_ms(stalls.node_ns)} in {stalls.node_count} direct reclaims (kernel's count)"
    # In the other stories the node may reach its limit, and who allocates then takes part in reclaim.
    return VerdictLine(name, text, ok=stalls.node_count == 0 if facts.kind == "own-limit" else None)


def _agent(facts: StoryFacts) -> list[VerdictLine]:
    lines = [VerdictLine("problem", problem, ok=False) for problem in facts.problems]
    if facts.agent_exit_code != 0:
        code = facts.agent_exit_code
        lines.append(VerdictLine("agent", "did not stop" if code is None else f"ended with exit code {code}", ok=False))
    return lines


def _pod(facts: StoryFacts, name: str) -> PodEnd:
    return next(pod for pod in facts.pods if pod.name == name)
