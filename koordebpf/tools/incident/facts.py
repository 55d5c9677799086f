"""What a recording knows of its node, its kernel and its signals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from koordebpf.decision.tick_frame import TickFrame
from koordebpf.errors import ConfigError
from koordebpf.report.incident.values import Fact
from koordebpf.state.build import strategy_of_frame
from koordebpf.state.view import Frame
from koordebpf.store.recorder.events import SIGNALS_SEEN
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.values import RecordedEvent
from koordebpf.tools.incident.moments import Moment
from koordebpf.units import format_bytes

_LABELS = ("node.kubernetes.io/instance-type", "topology.kubernetes.io/zone", "kubernetes.io/arch")


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
