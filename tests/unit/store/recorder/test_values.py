from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickFrame
from koordebpf.state.measured import NodeMeasure, PsiLine
from koordebpf.state.view import Frame, PendingRelease
from koordebpf.store.recorder.values import (
    OBJECT_FIELDS,
    NodeSample,
    RoundObjects,
    decode_round,
    encode_round,
    joined,
    objects_of,
    pack_sample,
    recording_schema,
    unpack_samples,
    without_objects,
)
from tests.support.values.rounds import tick_at


def test_the_objects_are_fields_of_a_frame_with_the_same_types_and_defaults() -> None:
    of_frame = {each.name: each for each in msgspec.structs.fields(Frame)}
    for each in msgspec.structs.fields(RoundObjects):
        if each.name != "settings":
            assert each.type == of_frame[each.name].type, each.name
            assert (each.default, each.default_factory) == (
                of_frame[each.name].default,
                of_frame[each.name].default_factory,
            ), each.name


def test_a_round_is_whole_again() -> None:
    tick = tick_at(1, used_mib=900)
    assert joined(without_objects(tick), objects_of(tick)) == tick


def test_without_its_objects_a_round_has_none() -> None:
    tick = tick_at(1)
    rest = without_objects(tick)
    assert all(name not in msgspec.to_builtins(rest.frame) for name in OBJECT_FIELDS)
    assert rest.frame.measured == tick.frame.measured
    assert rest.guards == tick.guards


@pytest.mark.parametrize(("number", "kept"), [(10**30, 2**63 - 1), (2**64 - 1, 2**64 - 1), (5, 5)])
def test_a_number_that_msgpack_cannot_hold_costs_no_round(number: int, kept: int) -> None:
    tick = tick_at(1)
    tick = replace(tick, frame=replace(tick.frame, lastEvictNs=number, pending=(PendingRelease("u", 1, number),)))
    found, decision = decode_round(encode_round(tick, b"{}"), objects_of(tick))
    assert found.frame.lastEvictNs == found.frame.pending[0].credit_bytes == kept
    assert found.frame.measured == tick.frame.measured
    assert (found.guards, found.states, decision) == (tick.guards, tick.states, b"{}")


@pytest.mark.parametrize(
    ("node", "sample"),
    [
        (NodeMeasure("machine", 10, None), NodeSample(7, 10, None, None, None, None)),
        (
            NodeMeasure(
                "machine", 10, 0, growth_bytes_per_s=-0.5, psi_some=PsiLine(0, 0, 0, 3), psi_full=PsiLine(0, 0, 0, 0)
            ),
            NodeSample(7, 10, 0, -0.5, 3, 0),
        ),
    ],
)
def test_a_sample_keeps_what_is_not_known_apart_from_zero(node: NodeMeasure, sample: NodeSample) -> None:
    assert unpack_samples(pack_sample(7, node) * 2) == [sample, sample]


def test_the_schema_names_every_kind_of_record() -> None:
    schema = recording_schema()
    assert set(schema["properties"]) == {"header", "objects", "round", "samples", "events"}
    assert TickFrame.__name__ in schema["$defs"]
