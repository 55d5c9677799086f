"""Recorded frames and, beside each, the plan they have to give: FRAME.json and FRAME.plan.json.

After a change that is meant: `koordebpf plan --json FRAME.json > FRAME.plan.json`, and the difference is the review.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.decision.node_plan import NodePlan, decide_node
from koordebpf.decision.strategies import STRATEGY_OF
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.state.build import view_of_frame

FRAMES = sorted(path for path in (Path(__file__).parent / "frames").glob("*.json") if ".plan" not in path.suffixes)


def test_no_plan_stands_alone():
    assert len(FRAMES) >= 4
    plans = set((Path(__file__).parent / "frames").glob("*.plan.json"))
    assert plans == {frame.with_suffix(".plan.json") for frame in FRAMES}


@pytest.mark.parametrize("path", FRAMES, ids=lambda path: path.stem)
def test_the_frame_gives_its_plan(path):
    frame = decode_frame(path.read_bytes(), path.name)
    expected = _plan_in(path.with_suffix(".plan.json").read_bytes())
    again = decode_frame(encode_frame(frame), path.name)
    for each in (frame, again):
        assert decide_node(view_of_frame(each), EvictSettings()) == expected


# What a strategy explains is of a type that it alone knows.
def _plan_in(raw: bytes) -> NodePlan:
    plan = msgspec.json.decode(raw, type=NodePlan)
    typed = {
        name: each
        if each.explained is msgspec.UNSET
        else replace(each, explained=msgspec.convert(each.explained, STRATEGY_OF[name].explanation))
        for name, each in plan.strategies.items()
    }
    return replace(plan, strategies=typed)
