"""A plan is its own JSON: every field is written, and read back."""

from __future__ import annotations

from msgspec.structs import replace

from koordebpf.state.guard_facts import ClosedGuard
from tests.support.values.builders import frame, node_plan_of, pod, read_back


def test_a_plan_with_guards_reads_back() -> None:
    plan = node_plan_of(frame([pod("a", anon=300)], used=900))
    plan = replace(plan, guards=(ClosedGuard("records_lost", "records were lost"),))
    assert read_back(plan) == plan
