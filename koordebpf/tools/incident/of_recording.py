"""A recording as an incident. Rounds are read once, in order; of each one only what the page shows is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koordebpf.decision.decide_tick import tick_view
from koordebpf.decision.tick_frame import TickFrame
from koordebpf.errors import ConfigError
from koordebpf.kube.cache.objects import Pod
from koordebpf.report.incident.amounts import counted
from koordebpf.report.incident.values import Chart, DecisionShown, Incident, Returned
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.values import RecordedEvent
from koordebpf.tools.incident.charts import charts_of
from koordebpf.tools.incident.decisions import Decided, FullDecision, Outcomes, decided, decisions_shown
from koordebpf.tools.incident.facts import facts_of, signals_of
from koordebpf.tools.incident.heat import Ledgers
from koordebpf.tools.incident.moments import Moments
from koordebpf.tools.incident.recorded import RecordedDecision, read_decision
from koordebpf.tools.incident.returned import returned
from koordebpf.tools.incident.timeline import marks_of, timeline
from koordebpf.tools.incident.window import Window, window_of
from koordebpf.tools.recorder.rounds import DecidesAgain, decision_of, place_at, without_collector
from koordebpf.units import NS_PER_S

_POINTS = 900  # of a plot. Why: a wide screen has as many pixels for two hours' plot on paper, and a page stays small


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
            self.moments.take(each, decision)
            self.ledgers.take(each.wall_ns, each.tick.frame.measured.ledger)
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
