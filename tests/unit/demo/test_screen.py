"""A demo's screen, whole: as it is for people, in colour and without."""

from __future__ import annotations

import io

import pytest

from koordebpf.demo.output import Event
from koordebpf.demo.screen import Screen
from koordebpf.demo.story import STORIES
from koordebpf.demo.verdict import Rounds, judge
from koordebpf.units import GIB
from tests.unit.demo.test_verdict import MS, events, facts


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(out: io.StringIO) -> str:
    screen = Screen(out)
    screen.begin(STORIES["hog"], GIB)
    for event in events():
        screen.tell(event)
    story = facts(above=Rounds(7, MS, 2 * MS, 3 * MS), trouble=None)
    screen.end(story, judge(story))
    return out.getvalue()


SCREEN = """\
koordebpf demo: a best-effort pod eats the node

The node: a cgroup of 1.0 GiB with one latency-sensitive (LS) and two
best-effort (BE) pods. When 80 % of it are used, BE pods are evicted, lowest
priority first, until it is below 75 %. The agent is the real one: koordebpf run
--enforce.

  web     LS, priority 9500: works all the time and times every round
  train   BE, priority 5500: grows to 250 MiB
  hog     BE, priority 5000: grows without end, from second 3

  second  # used  : page cache  | evicts above     MiB by pod
    0.00  hog begins
    0.10  [###############:::::::::|::::::]  50 %  web 100 hog 1024
    0.40  koordebpf: boom
    0.40  koordebpf: Traceback: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
            xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
            xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
            xxxxxxxxxxxxxxxx

      +0.0 ms  crossed  last reading below 80 % (from outside, about each ms)
      +2.0 ms  seen     koordebpf notices
      +3.0 ms  decided  evicting default/hog (priority 5000)
      +4.0 ms  killed   SIGKILL is out to every process of the pod
     +37.0 ms  back     400 MiB are free again
               why      lowest priority first: hog (5000), train (5500)


verdict: as it should be
  ok  evicted                 hog, the best-effort pod of lowest priority (5000)
  ok  no one else             1 eviction was enough; web and train kept running
      crossing to decision    3.0 ms
      decision to SIGKILL     1.0 ms
      SIGKILL to memory back  33.0 ms
  ok  OOM kills               0 by the kernel in the node
  ok  web                     kept running
      web's stalls            0.0 ms in 0 direct reclaims (kernel's count)

  web (LS) timed itself:        rounds     median        p99    slowest
    before                         100     1.0 ms     2.0 ms     3.0 ms
    while it was eaten               0
    from crossing to memory back     7     1.0 ms     2.0 ms     3.0 ms

without an eviction: koordebpf demo --story page-cache, --story own-limit
"""


def test_it_is_the_story_as_it_happens_and_what_it_came_to() -> None:
    assert shown(io.StringIO()) == SCREEN


@pytest.mark.parametrize(
    ("out", "environment", "is_painted"),
    [
        (Terminal, {"TERM": "xterm"}, True),
        (Terminal, {"TERM": "xterm", "NO_COLOR": ""}, True),
        (Terminal, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal, {"TERM": "dumb"}, False),
        (io.StringIO, {"TERM": "xterm"}, False),
    ],
)
def test_only_a_terminal_that_wants_colour_has_it(
    out: type[io.StringIO], environment: dict[str, str], is_painted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    text = shown(out())
    assert ("\x1b[" in text) is is_painted
    if is_painted:
        assert "\x1b[1mkoordebpf demo: a best-effort pod eats the node\x1b[0m" in text
        for word, code in (("web     ", 32), ("train   ", 36), ("hog     ", 31), ("hog begins", 33), ("ok", 32)):
            assert f"\x1b[{code}m{word}\x1b[0m" in text


def usage(used: int, cached: int) -> str:
    out = io.StringIO()
    screen = Screen(out)
    screen.begin(STORIES["hog"], 100)
    numbers = {"used_bytes": used, "usage_bytes": cached, "pods_usage_bytes": {}}
    screen.tell(Event(0, "usage", numbers=numbers))
    return out.getvalue().splitlines()[-1].strip()


@pytest.mark.parametrize(
    ("used", "cached", "bar"),
    [
        (0, 0, f"[{' ' * 24}|{' ' * 6}]   0 %"),
        (79, 79, f"[{'#' * 23} |{' ' * 6}]  79 %"),
        (80, 100, f"[{'#' * 24}|{':' * 6}]  80 %"),
        (100, 100, f"[{'#' * 24}|{'#' * 6}] 100 %"),
    ],
)
def test_the_bar_tells_what_is_used_from_page_cache(used: int, cached: int, bar: str) -> None:
    assert usage(used, cached) == f"0.00  {bar}"


@pytest.mark.parametrize(("used", "colour"), [(79, 32), (80, 31)])
def test_it_is_red_above_the_threshold(used: int, colour: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    screen = Screen(out)
    screen.begin(STORIES["hog"], 100)
    numbers = {"used_bytes": used, "usage_bytes": used, "pods_usage_bytes": {}}
    screen.tell(Event(0, "usage", numbers=numbers))
    assert f"[\x1b[{colour}m#" in out.getvalue()


@pytest.mark.parametrize(
    ("moments", "first"), [((3, 5, 7), "crossed"), ((None, 5, 7), "seen"), ((None, None, 7), "decided")]
)
def test_an_eviction_is_timed_from_the_first_moment_that_is_known(moments: tuple[int | None, ...], first: str) -> None:
    names = ("crossed_ns", "seen_ns", "decided_ns")
    numbers = {name: None if ms is None else ms * MS for name, ms in zip(names, moments, strict=True)}
    out = io.StringIO()
    screen = Screen(out)
    screen.begin(STORIES["hog"], GIB)
    rest = {"sent_ns": 8 * MS, "freed_ns": None, "credit_bytes": None, "ranking": []}
    screen.tell(Event(0, "evicted", "x: y", "hog", {**numbers, **rest}))
    steps = [line.split()[:3] for line in out.getvalue().splitlines() if " ms  " in line]
    zero = next(ms for ms in moments if ms is not None)
    assert steps[0] == ["+0.0", "ms", first] and steps[-1] == [f"+{8 - zero}.0", "ms", "killed"]
