"""`koordebpf top` of a recording: the node as it was, with travel in time."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

import msgspec

from koordebpf.decision.decide_tick import tick_view
from koordebpf.errors import ConfigError
from koordebpf.kernel.io.loop import Loop
from koordebpf.report.top import TopPage, top_of_frame
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.rounds import ReadRound
from koordebpf.tools.recorder.rounds import time_text
from koordebpf.tools.top.choice import Choice, pressed
from koordebpf.tools.top.page import SAMPLES, Around, Trails, shown_rows
from koordebpf.tools.top.screen import Keyboard
from koordebpf.units import NS_PER_S

_MINUTE_NS: Final = 60 * NS_PER_S


class Moment(msgspec.Struct, frozen=True):
    """One recorded round as a page, with what is shown around it."""

    page: TopPage
    choice: Choice
    around: Around


def moments(recording: Recording, at: int, choice: Choice, keyboard: Keyboard | None) -> Iterator[Moment]:
    """Yield the round at a place, and after each key the one that is chosen then, until q, SIGINT or SIGTERM.

    Without a keyboard it ends after the first. Containers and cgroups of a recording are not known: pods alone are.

    Raises:  ConfigError: it has no rounds, or one that is unusable.
    """
    if not len(recording):
        raise ConfigError(str(recording.path), "0 rounds", "has nothing to show")
    travel = _Travel(recording, at)
    keys: list[str] = []
    with Loop() as loop:
        loop.stop_on_signals()
        if keyboard and (fd := keyboard.fileno()) is not None:
            loop.watch(fd, lambda: keys.extend(keyboard.read()))
        while True:
            moment = travel.moment(choice)
            yield moment
            if keyboard is None or keyboard.fileno() is None:
                return
            while not loop.stopping and not keys:
                loop.wait(time.monotonic_ns() + _MINUTE_NS)
            if loop.stopping:
                return
            while keys:
                key = keys.pop(0)
                if choice.typing or not travel.moves(key):
                    names = [placed.row.name for placed in shown_rows(moment.page, choice, moment.around)]
                    choice = pressed(choice, key, names)
                choice = msgspec.structs.replace(choice, level="pod")
                if choice.stop:
                    return


class _Travel:
    def __init__(self, recording: Recording, at: int) -> None:
        self._recording = recording
        self._at = max(0, min(at, len(recording) - 1))
        self._trails: tuple[int, Trails] = (-1, Trails())

    # Whether the key is one of time; at an end time stands still.
    def moves(self, key: str) -> bool:
        times, decisions = self._recording.times_ns, self._recording.decisions
        now_ns = times[self._at]
        match key:
            case "t":
                at = self._at + 1
            case "T":
                at = self._at - 1
            case "j":
                at = max(bisect_right(times, now_ns + _MINUTE_NS) - 1, self._at + 1)
            case "J":
                at = bisect_left(times, now_ns - _MINUTE_NS)
            case "d":
                at = next((each for each in decisions if each > self._at), self._at)
            case "D":
                at = next((each for each in reversed(decisions) if each < self._at), self._at)
            case _:
                return False
        self._at = max(0, min(at, len(times) - 1))
        return True

    def moment(self, choice: Choice) -> Moment:
        read = self._recording.round(self._at)
        if read is None:
            raise ConfigError(str(self._recording.path), f"round {self._at + 1}", "cannot be read")
        page = _page(read, choice)
        trails = self._trail_to(self._at) if choice.detail is not None else Trails()
        return Moment(page, choice, Around(trails=trails.by_name, note=self._caption(read), replays=True))

    # What came before, of the rounds before; kept while the same round is shown.
    def _trail_to(self, at: int) -> Trails:
        kept_at, trails = self._trails
        if kept_at != at:
            trails = Trails()
            for each in self._recording.rounds(max(0, at - SAMPLES + 1), at + 1):
                trails.push(_page(each, Choice()).rows)
            self._trails = (at, trails)
        return trails

    def _caption(self, read: ReadRound) -> str:
        words = [time_text(read.wall_ns), f"round {self._at + 1} of {len(self._recording)}"]
        decisions = self._recording.decisions
        if self._at in decisions:
            words.append(f"decision {decisions.index(self._at) + 1} of {len(decisions)}: {_sentence(read.decision)}")
        return ", ".join(words)


class _Plan(msgspec.Struct, frozen=True):
    sentence: str = ""


class _Carried(msgspec.Struct, frozen=True):
    plan: _Plan = _Plan()


class _Decision(msgspec.Struct, frozen=True):
    plan: _Plan = _Plan()
    carried: _Carried | None = None


def _sentence(decision: bytes) -> str:
    said = msgspec.json.decode(decision, type=_Decision)
    return (said.carried.plan if said.carried else said.plan).sentence


def _page(read: ReadRound, choice: Choice) -> TopPage:
    return top_of_frame(read.tick.frame, tick_view(read.tick), None, choice.sort)
