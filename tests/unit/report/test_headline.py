"""The first sentence of a plan says what is done, and names fields as they are typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from koordebpf.decision.frames import decode_frame
from koordebpf.decision.node_plan import NodePlan, OtherDecision, decide_node
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.report.sentences import headline, plain_words
from koordebpf.state.build import view_of_frame

FRAMES = Path(__file__).parents[2] / "scenarios" / "frames"


def plan_of(name: str) -> NodePlan:
    frame = decode_frame((FRAMES / f"{name}.json").read_bytes(), name)
    return decide_node(view_of_frame(frame), EvictSettings())


def test_an_eviction_comes_first() -> None:
    plan = plan_of("hog-is-evicted")
    assert headline(plan) == plan.sentence
    assert headline(plan).startswith("evicting ")


def test_suppression_is_said_where_nothing_is_evicted() -> None:
    plan = plan_of("best-effort-is-held")
    assert plan.sentence == "no action: feature gate BEMemoryEvict is off"
    assert headline(plan) == "limits best-effort pods to 7 CPUs; no eviction: feature gate BEMemoryEvict is off"


def with_suppression(plan: NodePlan, **changes: Any) -> NodePlan:
    made = plan.strategies["suppress"]
    explained = msgspec.structs.replace(made.explained, **changes)
    return msgspec.structs.replace(plan, strategies={"suppress": msgspec.structs.replace(made, explained=explained)})


def test_a_limit_that_is_lifted_is_no_limit() -> None:
    plan = plan_of("best-effort-is-held")
    lifted = msgspec.structs.replace(plan.strategies["suppress"].explained.decision, held_millicpu=None)
    changed = with_suppression(plan, decision=lifted)
    assert headline(changed).startswith("lifts what best-effort pods were limited to; no eviction: ")


def test_what_suppression_skips_is_not_said() -> None:
    plan = plan_of("best-effort-is-held")
    skipped = msgspec.structs.replace(plan.strategies["suppress"].explained.decision, skipped="first_sample")
    changed = with_suppression(plan, decision=skipped)
    assert headline(changed) == plan.sentence


def test_files_of_other_strategies_are_counted() -> None:
    plan = plan_of("best-effort-is-held")
    (write, *_) = plan.strategies["suppress"].writes
    plan = with_suppression(plan, differences=())
    others = {
        "a": OtherDecision("x", writes=(write,)),
        "b": OtherDecision("y", writes=(write, write)),
        "c": OtherDecision("z"),
    }
    changed = msgspec.structs.replace(plan, strategies={**plan.strategies, **others})
    assert headline(changed).startswith("a writes 1 file; b writes 2 files; no eviction: ")


@pytest.mark.parametrize(
    ("said", "plain"),
    [
        ("x: EvictEnabledPriorityThreshold not config", "x: set evictEnabledPriorityThreshold"),
        ("MemoryAllocatableEvictLowerPercent not config", "set memoryAllocatableEvictLowerPercent"),
        (
            "CPUEvictBESatisfactionLowerPercent or CPUEvictBESatisfactionUpperPercent not config",
            "set cpuEvictBESatisfactionLowerPercent or cpuEvictBESatisfactionUpperPercent",
        ),
        ("resourceThresholdStrategy not config", "set resourceUsedThresholdWithBE"),
        ("node at 70 % < 80 %", "node at 70 % < 80 %"),
    ],
)
def test_koordinators_words_for_a_missing_field_become_what_to_set(said: str, plain: str) -> None:
    assert plain_words(said) == plain
