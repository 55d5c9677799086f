"""Every decision of a live agent, decided again from the frame of its round."""

from __future__ import annotations

from pathlib import Path

from koordebpf.decision.decide_tick import decided_again
from koordebpf.errors import ConfigError
from koordebpf.store.frames import read_ticks
from koordebpf.store.recorder.read import Recording, shards_of
from koordebpf.tools.recorder.rounds import DecidesAgain
from tests.support.decided_again import counts


def replay(frames: Path) -> None:
    """Decide each round in a file of frames again: the decision must be the same, bit for bit."""
    for path in (frames.with_name(f"{frames.name}.1"), frames):
        if not path.exists():
            continue
        for number, recorded in enumerate(read_ticks(path), start=1):
            again = decided_again(recorded.tick)
            assert recorded.is_same(again), f"{path}:{number} is decided otherwise than by the agent"
            counts["rounds"] += 1
            counts["with victims"] += bool(again.carried and again.carried.plan.victims)
            counts["with a rung of the ladder"] += bool(again.step and again.step.begin)
            counts["with CPU suppression"] += "suppress" in again.strategies


def replay_recording(folder: Path) -> None:
    """Decide each round that its recorder kept again, as `koordebpf replay` does: the same, bit for bit."""
    if not folder.is_dir() or not shards_of(folder):
        return
    try:
        recording, again = Recording(folder), DecidesAgain()
    except ConfigError as error:
        assert "its header: no round is in it" in str(error)  # of an agent that was killed at its first write
        return
    for each in recording.rounds():
        assert each.is_same(again.decide(each.tick)), f"{folder}: {each.wall_ns} is decided otherwise than by the agent"
        counts["recorded rounds"] += 1
    assert [each for each in recording.problems if "ends within a record" not in each] == []
