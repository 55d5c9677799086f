"""Any round comes out of a shard as it went in, and any bytes are read without an error that no caller expects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickFrame, decided_again
from koordebpf.errors import DecodeError
from koordebpf.quantity import MOST_AMOUNT
from koordebpf.state.build import view_of_frame
from koordebpf.state.cpu.view import be_request_millicpu
from koordebpf.state.pods.effective import effective
from koordebpf.state.pods.facts import facts_of_pods
from koordebpf.state.pods.requests import cpu_requests, memory_requests
from koordebpf.store.recorder.rounds import RoundEncoder, ShardReader, ShardRounds
from koordebpf.store.recorder.shard import Kind, ShardContent, ShardEncoder, heads, index_entry
from koordebpf.store.recorder.values import Pace, RecordingHeader, joined, objects_of, without_objects
from tests.properties.test_tick_replay import ticks
from tests.support.values.builders import pod
from tests.support.values.rounds import tick_at
from tests.unit.store.recorder.test_shard import index_of, shard

HEADER = RecordingHeader(koordebpf="0", run="0123abcd", node="n", pace=Pace.ALL, wall_s=0.5)
SHARD = shard(rounds=6)


@given(tick=ticks())
def test_a_round_is_the_same_in_two_parts(tick: TickFrame) -> None:
    assert joined(without_objects(tick), objects_of(tick)) == tick


@pytest.mark.story
@given(rounds=st.lists(ticks(), min_size=1, max_size=4))
def test_rounds_are_read_and_decided_as_they_were(rounds: list[TickFrame]) -> None:
    made, encoder = ShardRounds(HEADER, with_samples=False), RoundEncoder()
    records = [made.start(0)]
    for at, tick in enumerate(rounds):
        records += made.add(encoder.encode(tick, decided_again(tick), at), b"", [])
    reader = ShardReader(b"".join(records))
    assert len(reader.rounds) == len(rounds)
    for tick, head in zip(rounds, reader.rounds, strict=True):
        found = reader.round(head)
        assert found is not None
        assert found.tick == tick
        assert found.is_same(decided_again(found.tick))


AMOUNTS = st.one_of(
    st.sampled_from(["1e30", "9e999", "8Ei", "9223372036854775807", "100m", "1Gi", "4E", "64e0006", "1e-1002"]),
    st.integers(min_value=0, max_value=10**40).map(str),
    st.builds("{}{}".format, st.integers(0, 10**20), st.sampled_from(["k", "E", "Ei", "e18", "e2000000000", "n"])),
)
RESOURCES = ("memory", "cpu", "kubernetes.io/batch-memory", "kubernetes.io/batch-cpu")


@given(amounts=st.lists(st.dictionaries(st.sampled_from(RESOURCES), AMOUNTS, min_size=1), min_size=1, max_size=6))
def test_no_amount_that_a_pod_asks_for_keeps_a_round_from_being_recorded(amounts: list[dict[str, str]]) -> None:
    tick = tick_at(1, used_mib=900)
    large = [pod(f"large-{at}", requests=each).pod for at, each in enumerate(amounts)]
    threes = [replace(each, spec=replace(each.spec, containers=each.spec.containers * 3)) for each in large]
    for each in threes:
        assert max(memory_requests(effective(each)).of(name) for name in RESOURCES) <= MOST_AMOUNT
        assert max(cpu_requests(effective(each)).of(name) for name in RESOURCES) <= MOST_AMOUNT
    tick = replace(tick, frame=replace(tick.frame, pods=(*tick.frame.pods, *threes)))
    view = view_of_frame(tick.frame, facts=facts_of_pods(tick.frame.pods))
    assert be_request_millicpu(view.pods) <= MOST_AMOUNT  # what a round measures of it is in the frames after it
    made = ShardRounds(HEADER, with_samples=False)
    records = [made.start(0), *made.add(RoundEncoder().encode(tick, decided_again(tick), 1), b"", [])]
    reader = ShardReader(b"".join(records))
    found = reader.round(reader.rounds[0])
    assert found is not None and found.tick == tick
    assert found.is_same(decided_again(tick))


@given(raws=st.lists(st.tuples(st.sampled_from([Kind.ROUND, Kind.OBJECTS, Kind.EVENTS]), st.binary(max_size=300))))
def test_any_content_comes_back(raws: list[tuple[Kind, bytes]]) -> None:
    encoder, records = ShardEncoder(HEADER), []
    records.append(encoder.start(0))
    for kind, raw in raws:
        match kind:
            case Kind.ROUND:
                records.append(encoder.round(raw, 1, is_decision=False))
            case Kind.OBJECTS:
                records.append(encoder.objects(raw, 1))
            case _:
                records.append(encoder.loose(kind, raw, 1))
    content = ShardContent(b"".join(records))
    assert [(head.kind, content.raw(head)) for head in content.records[1:]] == raws
    assert content.damages == []


@given(data=st.binary(max_size=2000), index=st.binary(max_size=100))
def test_any_bytes_are_records_and_damages_that_cover_them(data: bytes, index: bytes) -> None:
    at = 0
    for each in heads(data, index):
        assert each.offset == at
        at = each.end if hasattr(each, "end") else each.offset + each.length
    assert at == len(data)


@given(
    flips=st.lists(st.tuples(st.integers(0, sum(map(len, SHARD)) - 1), st.integers(1, 255)), min_size=1, max_size=4),
    has_index=st.booleans(),
)
def test_a_damage_takes_no_record_that_it_is_not_in(flips: list[tuple[int, int]], has_index: bool) -> None:
    data = bytearray(b"".join(SHARD))
    for at, bits in flips:
        data[at] ^= bits
    touched, start = 0, 0
    for record in SHARD:
        touched += bytes(data[start : start + len(record)]) != record
        start += len(record)
    found = list(heads(bytes(data), index_of(SHARD) if has_index else b""))
    assert sum(hasattr(each, "end") for each in found) == len(SHARD) - touched
    try:
        reader = ShardReader(bytes(data))
    except DecodeError:
        return
    for head in reader.rounds:
        reader.round(head)


@given(cut=st.integers(0, sum(map(len, SHARD))))
def test_what_a_crash_leaves_is_read_up_to_the_record_that_it_was_in(cut: int) -> None:
    data = b"".join(SHARD)[:cut]
    whole = [number for number in range(len(SHARD) + 1) if sum(map(len, SHARD[:number])) <= cut][-1]
    found = list(heads(data))
    assert sum(hasattr(each, "end") for each in found) == whole
    assert len(found) - whole <= 1


def test_an_entry_of_the_index_is_the_place_of_its_record() -> None:
    assert len({index_entry(record, 7) for record in SHARD}) == len(SHARD)
