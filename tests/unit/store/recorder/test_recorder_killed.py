"""SIGKILL at any moment: all but the round that was on its way is there, and every file is read.

KOORDEBPF_RECORDER_KILLS=1000: so many (`make soak`).
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import signal
import struct
import time
from pathlib import Path

import pytest

from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.recorder import Recorder
from koordebpf.store.recorder.ring import Run
from koordebpf.store.recorder.stores import Place, RingStore
from koordebpf.store.sink import RoundEnded
from koordebpf.tools.recorder.rounds import DecidesAgain
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import NOW_NS
from tests.support.values.rounds import WALL_NS, round_ended

KILLS = int(os.environ.get("KOORDEBPF_RECORDER_KILLS", "50"))
LONGEST_S = 0.06  # some dozens of rounds
# One in ten is a decision, and with it what was before is written.
ROUNDS = [round_ended(second, pods=40, used_mib=900 if second % 10 == 9 else 500) for second in range(400)]


class _Clock:
    second = 0.0

    def now_ns(self) -> int:
        return NOW_NS + int(self.second * NS_PER_S)

    def wall_s(self) -> float:
        return WALL_NS / NS_PER_S + self.second

    def suspended_ns(self) -> int:
        return 0


# As an agent: a round is published when the one before is written, long before the next one.
def _record(folder: Path, published: mmap.mmap, rounds: list[RoundEnded]) -> None:
    clock = _Clock()
    recorder = Recorder(RingStore([Place(folder, 4 * MIB)], Run("0123abcd", "node-1")), clock)
    for number, each in enumerate(rounds):
        clock.second = number
        recorder.publish(each)
        published[:4] = struct.pack("<I", number + 1)
        while recorder.counts.rounds <= number:
            time.sleep(0)
    os._exit(0)


def _killed(folder: Path, after_s: float) -> int:
    """Return how many rounds were published before the kill."""
    with mmap.mmap(-1, 4) as published:
        pid = os.fork()
        if pid == 0:
            try:
                _record(folder, published, ROUNDS)
            finally:
                os._exit(1)
        time.sleep(after_s)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return int(struct.unpack("<I", published[:4])[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_at_any_moment_one_round_is_lost_at_most(tmp_path: Path) -> None:
    chance, torn, rounds, again = random.Random(20), 0, 0, DecidesAgain()
    for number in range(KILLS):
        folder = tmp_path / str(number)
        published = _killed(folder, chance.uniform(0.0005, LONGEST_S))
        if published <= 1 and not any(folder.glob("*.rounds")):
            continue
        recording = Recording(folder) if _has_a_record(folder) else None
        found = len(recording) if recording else 0
        assert published - 1 <= found <= published, f"kill {number}: {found} of {published}"
        if recording:
            assert all("ends within a record" in each for each in recording.problems)
            torn += bool(recording.problems)
            for each in recording.rounds():
                assert each.is_same(again.decide(each.tick))
        rounds += found
        shutil.rmtree(folder)
    assert rounds > KILLS, "the kills came before there was anything to lose"


def _has_a_record(folder: Path) -> bool:
    return any(path.stat().st_size > 300 for path in folder.glob("*.rounds"))
