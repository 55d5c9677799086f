"""Everything that a plan or an audit record holds is in its JSON."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import fields, replace

from koordebpf.decision.node_plan import NodePlan
from koordebpf.policy.guards.closed import ClosedGuard
from koordebpf.policy.plan import Plan
from koordebpf.store.audit_record import AuditRecord
from koordebpf.store.v1 import types as v1
from koordebpf.store.v1.decode import node_plan_of_json
from koordebpf.store.v1.encode import candidate_json, node_plan_json
from tests.support.values.builders import frame, node_plan_of, plan_of, pod


def test_the_guards_that_were_closed_are_in_it() -> None:
    plan = replace(node_plan_of(frame([pod("a")])), guards=(ClosedGuard("records_lost", "records were lost"),))
    raw = msgspec.json.encode(node_plan_json(plan))
    assert node_plan_of_json(msgspec.json.decode(raw, type=v1.NodePlan)) == plan


@pytest.mark.parametrize(
    ("value", "written"), [(Plan, v1.Plan), (NodePlan, v1.NodePlan), (AuditRecord, v1.AuditRecord)]
)
def test_no_field_is_left_out(value: type[msgspec.Struct], written: type[msgspec.Struct]) -> None:
    assert {each.name for each in fields(value)} <= {each.name for each in fields(written)}


def test_of_a_pod_without_requests_and_of_a_line_that_names_none_no_memory_is_requested() -> None:
    candidate = replace(plan_of(frame([pod("a", anon=300)], used=900)).features[0].candidates[0], holdings=())
    written = candidate_json(candidate)
    assert (written.request_resource, written.request_bytes) == ("memory", 0)
    line = msgspec.to_builtins(written)
    del line["request_resource"], line["request_bytes"]
    assert msgspec.convert(line, v1.Candidate) == written
