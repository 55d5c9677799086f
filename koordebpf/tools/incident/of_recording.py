"""A recording as an incident. Rounds are read once, in order; of each one only what the page shows is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koordebpf.decision.decide_tick import TickFrame, tick_view
from koordebpf.errors import ConfigError
from koordebpf.kube.cache.objects import Pod
from koordebpf.report.sentences import outcome_sentence
from koordebpf.state.build import strategy_of_frame
from koordebpf.state.measured import LedgerView
from koordebpf.state.view import Frame
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.values import SIGNALS_SEEN, RecordedEvent
from koordebpf.tools.incident.charts import charts_of, name_of
from koordebpf.tools.incident.decisions import Decided, FullDecision, Outcomes, decided, decisions_shown
from koordebpf.tools.incident.moments import Moment, Moments
from koordebpf.tools.incident.ranking import RecordedDecision, read_decision
from koordebpf.tools.incident.timeline import Window, marks_of, timeline, window_of
from koordebpf.tools.incident.values import Chart, DecisionShown, Fact, HeatMap, Incident, Returned, counted
from koordebpf.tools.recorder.rounds import DecidesAgain, decision_of, place_at, without_collector
from koordebpf.units import NS_PER_S, format_bytes, format_ns

_LABELS = ("node.kubernetes.io/instance-type", "topology.kubernetes.io/zone", "kubernetes.io/arch")
_MOST = 12  # victims, and causes. Why: as many columns as a page of paper has
OTHERS = "others"
_POINTS = 900  # of a plot. Why: a wide screen has as many pixels for two hours' plot on paper, and a page stays small


def returned(
    found: Sequence[Decided], outcomes: Outcomes, events: Sequence[RecordedEvent], names: Mapping[str, str]
) -> tuple[Returned, ...]:
    """Return each pod that was evicted, and each other one that an agent waited for, by time."""
    back = {each.data["entry"]["uid"]: each for each in events if each.kind == "MemoryReleased"}
    overdue = {each.data["entry"]["uid"]: each for each in events if each.kind == "ReleaseOverdue"}
    rows: dict[str, Returned] = {}
    for each in found:
        known = outcomes.of(each.decided_ns)
        for who in each.victims:
            outcome = known.get(who.uid)
            if outcome is None or not outcome.was_sent:
                continue
            wall_s = each.wall_ns / NS_PER_S
            note = outcome_sentence(outcome)
            rows[who.uid] = _row(who.pod, wall_s, each.decided_ns, who.credit_bytes, note, back.get(who.uid))
            if who.uid in overdue and who.uid not in back:
                rows[who.uid] = _late(rows[who.uid], overdue[who.uid].data["entry"])
    for uid, event in back.items():
        if uid not in rows:
            entry = event.data["entry"]
            note = "deleted by another client, or evicted before the time shown"
            rows[uid] = _row(name_of(uid, names), None, entry["since_ns"], entry["credit_bytes"], note, event)
    return tuple(sorted(rows.values(), key=lambda row: (row.evicted_s or row.back_s or 0.0, row.pod)))


def _row(
    pod: str, evicted_s: float | None, since_ns: int, credit_bytes: int, note: str, back: RecordedEvent | None
) -> Returned:
    if back is None:
        return Returned(pod, evicted_s, credit_bytes, None, None, f"{note}; its memory was not seen to come back")
    after_ns = max(0, back.data["now_ns"] - since_ns)
    return Returned(pod, evicted_s, credit_bytes, back.wall_s, after_ns, note)


def _late(row: Returned, entry: Mapping[str, Any]) -> Returned:
    why = entry.get("why") or "it still holds its memory"
    return Returned(row.pod, row.evicted_s, row.credit_bytes, None, None, f"{row.note}; given up on: {why}")


def facts_of(recording: Recording, tick: TickFrame, moments: Sequence[Moment], rounds: int) -> tuple[Fact, ...]:
    """Return what the last round and the headers say; `rounds` were read for the page."""
    frame = tick.frame
    headers = [shard.header for _, shard in recording.shards]
    pods = [len(each.held_bytes) for each in moments]
    facts = [
        Fact("Rounds read", f"{rounds}, of which plots show {len(moments)}"),
        Fact("Pods measured", f"{min(pods)} to {max(pods)}" if pods else "none"),
        Fact("Node is", f"the {frame.measured.node.scope}, {format_bytes(frame.measured.node.total_bytes)} of memory"),
        Fact("Evictions", f"by executor {frame.executor}"),
        Fact("koordebpf", ", ".join(sorted({each.koordebpf for each in headers}))),
        Fact("Runs of the agent", ", ".join(dict.fromkeys(each.run for each in headers))),
    ]
    facts.append(Fact("NodeSLO", _strategy(frame)))
    gates = [name for name, is_on in sorted(frame.featureGates.items()) if is_on]
    facts.append(Fact("Feature gates on", ", ".join(gates) or "none is named; the defaults apply"))
    labels = (frame.node.metadata.labels or {}) if frame.node is not None else {}
    facts += [Fact(label, labels[label]) for label in _LABELS if label in labels]
    if any(each.redacted for each in headers):
        facts.append(Fact("Names", "are replaced by hashes: the recording is redacted"))
    return tuple(facts)


def _strategy(frame: Frame) -> str:
    try:
        strategy = strategy_of_frame(frame)
    except ConfigError as error:
        return f"is unusable: {error}"
    return "none is known" if strategy is None else _set_fields(strategy)


def _set_fields(strategy: Any) -> str:
    found = [(name, getattr(strategy, name)) for name in strategy.__struct_fields__]
    return ", ".join(f"{name} {_word(value)}" for name, value in found if value is not None) or "no field is set"


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def signals_of(events: Sequence[RecordedEvent]) -> tuple[str, ...]:
    """Return what the decisions rest on, and on which kernel: each sentence once, in order."""
    found: dict[str, None] = {}
    for event in events:
        if event.kind == SIGNALS_SEEN:
            found.setdefault(f"Kernel {event.data['kernel']}; {event.data['quality']['sentence']}")
    return tuple(found)


class Ledgers:
    """Takes the ledger of each round in order and keeps one for each of its windows, so that no stall counts twice.

    `last_ns` is the wall clock of the last round: the windows are counted back from it.
    """

    def __init__(self, last_ns: int) -> None:
        self._last_ns = last_ns
        self._kept: dict[int, LedgerView] = {}
        self._window_ns = 0

    def record(self, wall_ns: int, ledger: LedgerView | None) -> None:
        """Take the ledger of one round; None: it has none."""
        if ledger is None or ledger.window_ns == 0:
            return
        self._window_ns = self._window_ns or ledger.window_ns
        self._kept[(self._last_ns - wall_ns) // self._window_ns] = ledger

    def map(self) -> HeatMap | None:
        """Return the sums, the largest first; None: no round has a ledger."""
        if not self._kept:
            return None
        covers = f"the ledgers of {len(self._kept)} × {format_ns(self._window_ns)}"
        return heat_map(self._kept.values(), covers)

    @property
    def has_any(self) -> bool:
        """Whether there was any ledger."""
        return bool(self._kept)


def heat_map(ledgers: Iterable[LedgerView], covers: str) -> HeatMap:
    """Return the sums of some ledgers; the containers of a pod count together, and the smallest as `others`."""
    pairs: dict[tuple[str, str], int] = {}
    for ledger in ledgers:
        for row in ledger.rows:
            cause = row.cause.kind if row.cause.kind in ("own limit", "unattributed") else row.cause.name
            pair = (row.victim.name, cause)
            pairs[pair] = pairs.get(pair, 0) + row.ns
    victims, causes = _first(_sums(pairs, 0)), _first(_sums(pairs, 1))
    cells = [[0] * len(causes) for _ in victims]
    for (victim, cause), ns in pairs.items():
        place = victims.index(victim if victim in victims else OTHERS)
        cells[place][causes.index(cause if cause in causes else OTHERS)] += ns
    return HeatMap(tuple(victims), tuple(causes), tuple(map(tuple, cells)), covers)


def _sums(pairs: dict[tuple[str, str], int], of: int) -> dict[str, int]:
    sums: dict[str, int] = {}
    for pair, ns in pairs.items():
        sums[pair[of]] = sums.get(pair[of], 0) + ns
    return sums


# `others` stands at the end, also where a ledger has summed up some itself.
def _first(sums: dict[str, int]) -> list[str]:
    order = sorted((name for name in sums if name != OTHERS), key=lambda name: (-sums[name], name))
    has_others = OTHERS in sums or len(order) > _MOST
    return [*order[:_MOST], OTHERS] if has_others else order


class _Read:
    """What is kept of the rounds of a window."""

    def __init__(self, window: Window) -> None:
        self.moments = Moments(window.first_ns, window.last_ns, _POINTS)
        self.ledgers = Ledgers(window.last_ns)
        self.carried: list[tuple[int, int, RecordedDecision]] = []
        self.names: dict[str, str] = {}
        self.last: TickFrame | None = None
        self.rounds = 0
        self._pods: Sequence[Pod] | None = None

    def read(self, recording: Recording, window: Window) -> None:
        """Read all of its rounds."""
        for place in range(place_at(recording, window.first_ns - 1) + 1, place_at(recording, window.last_ns) + 1):
            if (each := recording.round(place)) is None:
                continue
            try:
                decision = read_decision(each.decision)
            except msgspec.DecodeError as error:
                recording.problems.append(f"round {place + 1}: its decision cannot be read: {error}")
                continue
            self.rounds += 1
            self.last = each.tick
            self.moments.record(each, decision)
            self.ledgers.record(each.wall_ns, each.tick.frame.measured.ledger)
            if each.is_decision:
                self.carried.append((place, each.wall_ns, decision))
            if each.tick.frame.pods is not self._pods:
                self._pods = each.tick.frame.pods
                self.names.update((pod.uid, pod.key) for pod in self._pods)


def incident_of_recording(
    recording: Recording,
    source: str,
    since_ns: int | None = None,
    until_ns: int | None = None,
    decision: int | None = None,
) -> Incident:
    """Return what a recording says of one incident.

    Args:
        recording: that is read.
        source: its name, as the page says it.
        since_ns: show this time on; None: as `window.window_of` chooses.
        until_ns: up to this time.
        decision: the incident of this decision, from 1, or −1 for the last one.

    Raises:  ConfigError: no round of that time can be read, or there is no such decision.
    """
    times_ns = recording.times_ns
    if not times_ns:
        raise ConfigError(source, "0 rounds", "must have a round that can be read")
    around_ns = None if decision is None else decision_of(recording, decision).wall_ns
    window = window_of(times_ns, [times_ns[each] for each in recording.decisions], since_ns, until_ns, around_ns)
    read = _Read(window)
    with without_collector():
        read.read(recording, window)
    if read.last is None:
        raise ConfigError(source, "no round", "has none of that time that can be read")
    events = recording.events()
    near = [each for each in events if window.has(each.wall_s)]
    found, outcomes = decided(read.carried, events), Outcomes(events)
    decisions = decisions_shown(found, outcomes, events, _Again(recording))
    lines, more = timeline(decisions, near, read.names)
    charts = charts_of(read.moments.found, read.names, [who.uid for each in found for who in each.victims])
    back = returned(found, outcomes, near, read.names)
    return Incident(
        node=recording.shards[0][1].header.node,
        source=source,
        kind="recording",
        first_s=window.first_ns / NS_PER_S,
        last_s=window.last_ns / NS_PER_S,
        summary=_summary(found, decisions, back, near),
        charts=charts,
        marks=marks_of(lines),
        heat=read.ledgers.map(),
        decisions=decisions,
        returned=back,
        timeline=lines,
        facts=facts_of(recording, read.last, read.moments.found, read.rounds),
        signals=signals_of(near) or signals_of(events),
        missing=_missing(recording, window, read, charts, events, more),
    )


class _Again:
    # Decides a round again; the pods are those that the decision saw.
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._decides = DecidesAgain()

    def __call__(self, place: int) -> FullDecision | None:
        each = self._recording.round(place)
        if each is None:
            return None
        try:
            carried = self._decides.decide(each.tick).carried
            return None if carried is None else FullDecision(carried, tick_view(each.tick).pods)
        except ConfigError as error:
            self._recording.problems.append(f"round {place + 1} cannot be decided again: {error}")
            return None


def _summary(
    found: Sequence[Decided],
    decisions: Sequence[DecisionShown],
    back: Sequence[Returned],
    events: Sequence[RecordedEvent],
) -> str:
    kills = sum(1 for each in events if each.kind == "OomKilled")
    ooms = (
        f"The kernel's OOM killer killed {counted(kills, 'process', 'processes')}."
        if kills
        else "There was no OOM kill."
    )
    if not found:
        return f"No pod was to be evicted. {ooms}"
    victims = {who.uid for each in found for who in each.victims}
    dry = " in dry run, so that none was evicted" if all(each.is_dry_run for each in decisions) else ""
    came = sum(1 for each in back if each.back_s is not None)
    memory = f" The memory of {came} came back." if back else ""
    chosen = f"{counted(len(found), 'decision')} chose {counted(len(victims), 'pod')}{dry}."
    return f"{chosen}{memory} {ooms}"


def _missing(
    recording: Recording,
    window: Window,
    read: _Read,
    charts: Sequence[Chart],
    events: Sequence[RecordedEvent],
    more_lines: int,
) -> tuple[str, ...]:
    there = {each.id for each in charts}
    said = []
    if window.is_part:
        said.append("The recording has more rounds than this page shows; --since and --until choose others.")
    absent: Mapping[str, str] = {
        "stalls": "Stalls were not measured.",
        "suppression": "The node's CPUs were not measured, or suppression was not judged.",
    }
    said += [text for name, text in absent.items() if name not in there]
    if not read.ledgers.has_any:
        said.append("No round has a ledger: nothing is known of who made whom stall.")
    if not signals_of(events):
        said.append("The recording does not say which kernel and which signals the decisions rest on.")
    if more_lines:
        said.append(f"{more_lines} earlier lines of the timeline are left out.")
    if lost := sum(each.data["rounds"] for each in events if each.kind == "RoundsLost" and window.has(each.wall_s)):
        said.append(f"{lost} rounds were lost by the recorder.")
    said += [f"Passed over: {problem}" for problem in recording.problems[:20]]
    return tuple(said)
