"""What a recording holds, as one value."""

from __future__ import annotations

from collections import Counter

import msgspec

from koordebpf.store.recorder.read import Recording
from koordebpf.tools.recorder.rounds import time_text


class ShardSummary(msgspec.Struct, frozen=True):
    """One file of a recording."""

    file: str
    run: str
    node: str
    pace: str
    koordebpf: str
    redacted: bool
    rounds: int
    first: str | None
    last: str | None


class RecordingSummary(msgspec.Struct, frozen=True):
    """All of it. `rounds`: each once, also where several paces have it. `decisions`: times, the first is number 1."""

    rounds: int
    first: str | None
    last: str | None
    decisions: tuple[str, ...]
    events: dict[str, int]  # by kind
    samples: int
    shards: tuple[ShardSummary, ...]
    problems: tuple[str, ...]


def summary_of(recording: Recording) -> RecordingSummary:
    """Return it; nothing is decided again."""
    times = recording.times_ns
    shards = [
        ShardSummary(
            file=str(path),
            run=shard.header.run,
            node=shard.header.node,
            pace=str(shard.header.pace),
            koordebpf=shard.header.koordebpf,
            redacted=shard.header.redacted,
            rounds=len(shard.rounds),
            first=time_text(shard.rounds[0].wall_ns) if shard.rounds else None,
            last=time_text(shard.rounds[-1].wall_ns) if shard.rounds else None,
        )
        for path, shard in recording.shards
    ]
    return RecordingSummary(
        rounds=len(recording),
        first=time_text(times[0]) if times else None,
        last=time_text(times[-1]) if times else None,
        decisions=tuple(time_text(times[place]) for place in recording.decisions),
        events=dict(Counter(each.kind for each in recording.events())),
        samples=sum(1 for _ in recording.samples()),
        shards=tuple(shards),
        problems=tuple(recording.problems),
    )
