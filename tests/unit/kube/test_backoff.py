"""Jitter: agents that failed together do not return together."""

from __future__ import annotations

import re
from pathlib import Path

import koordebpf
from koordebpf.kube.http.refusal import Backoff

AGENTS = 200
PACKAGE = Path(koordebpf.__file__).parent


def test_waits_double_up_to_the_cap_and_those_of_many_agents_are_spread_over_half_of_each() -> None:
    agents = [Backoff(0.5, 30.0) for _ in range(AGENTS)]
    for ceiling_s in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        waits = [each.next_s() for each in agents]
        assert ceiling_s / 2 <= min(waits) < 0.6 * ceiling_s and 0.9 * ceiling_s < max(waits) <= ceiling_s
    agents[0].reset()
    assert agents[0].next_s() <= 0.5


def test_jitter_has_one_home() -> None:
    own = re.compile(r"random\.(uniform\(0\.5|expovariate|betavariate|gauss)|\b(backoff|wait|pause)\w* \*= 2")
    files = [path for path in PACKAGE.rglob("*.py") if own.search(path.read_text())]
    assert [str(path.relative_to(PACKAGE)) for path in files] == ["kube/http/refusal.py"]
