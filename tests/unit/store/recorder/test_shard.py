"""The bytes of a shard, whole and damaged at any place."""

from __future__ import annotations

import random
import struct
import zlib

import pytest

from koordebpf.errors import DecodeError
from koordebpf.store.recorder.rounds import ReadRound, RoundEncoder, ShardReader, ShardRounds
from koordebpf.store.recorder.shard import (
    HEAD_BYTES,
    INDEX_BYTES,
    MAGIC,
    Damage,
    Kind,
    ShardContent,
    ShardEncoder,
    heads,
    index_entry,
    parse_head,
)
from koordebpf.store.recorder.values import Pace, RecordedEvent, RecordingHeader
from tests.support.values.rounds import encoded, round_at, wall_ns

HEADER = RecordingHeader(koordebpf="0.1.0", run="0123abcd", node="node-1", pace=Pace.ALL, wall_s=1.0)
ROUNDS = 10


def shard(rounds: int = ROUNDS, **asked: object) -> list[bytes]:
    """Return the records of a shard, as a file has them."""
    made, encoder = ShardRounds(HEADER, with_samples=True), RoundEncoder()
    records = [made.start(wall_ns(0))]
    for second in range(rounds):
        records += made.add(encoded(second, encoder, **asked), b"", [])
    return records


def read(data: bytes, index: bytes = b"") -> tuple[list[ReadRound], ShardReader]:
    reader = ShardReader(data, index)
    return [found for head in reader.rounds if (found := reader.round(head))], reader


def index_of(records: list[bytes]) -> bytes:
    offset, entries = 0, []
    for each in records:
        entries.append(index_entry(each, offset))
        offset += len(each)
    return b"".join(entries)


def test_each_round_is_read_as_it_was_written() -> None:
    found, reader = read(b"".join(shard()))
    assert reader.damages == []
    assert reader.header == HEADER
    for second, each in enumerate(found):
        tick, decision = round_at(second)
        assert (each.tick, each.wall_ns) == (tick, wall_ns(second))
        assert each.is_same(decision)
    assert len(found) == ROUNDS


def test_objects_are_stored_once_for_each_change() -> None:
    made, encoder = ShardRounds(HEADER, with_samples=True), RoundEncoder()
    records = [made.start(0)]
    for second, pods in enumerate((4, 4, 5, 5, 4)):
        records += made.add(encoded(second, encoder, pods=pods), b"", [])
    found, reader = read(b"".join(records))
    assert [head.kind for head in reader.content.records].count(Kind.OBJECTS) == 3
    assert [len(each.tick.frame.pods) - 1 for each in found] == [4, 4, 5, 5, 4]
    assert found[0].tick.frame.pods is found[1].tick.frame.pods


def test_rounds_alone_name_the_record_that_their_objects_are_in() -> None:
    heads = [parse_head(each, 0) for each in shard(rounds=3)]
    (objects,) = (head.number for head in heads if head.kind == Kind.OBJECTS)
    assert {(head.kind, head.objects) for head in heads} == {
        (Kind.HEADER, 0),
        (Kind.OBJECTS, 0),
        (Kind.ROUND, objects),
    }


def test_a_round_that_resembles_the_first_takes_a_fraction_of_it() -> None:
    records = shard(pods=110)
    first, second = records[2], records[3]
    assert len(second) * 5 < len(first)


def test_each_round_is_compressed_against_the_one_before() -> None:
    assert [parse_head(each, 0).base for each in shard(rounds=6)[2:]] == [0, 3, 4, 5, 6, 7]


def test_what_hardly_resembles_the_one_before_needs_none() -> None:
    encoder, chance = ShardEncoder(HEADER), random.Random(1)
    records = [encoder.start(0)]
    records += [encoder.round(chance.randbytes(1000), 0, is_decision=False) for _ in range(4)]
    assert [parse_head(each, 0).base for each in records[1:]] == [0, 0, 0, 0]


def test_a_group_ends_after_32_rounds() -> None:
    records = shard(rounds=70)
    bases = [parse_head(each, 0).base for each in records[2:]]
    assert [number for number, base in enumerate(bases) if base == 0] == [0, 32, 64]


def test_a_decision_shows_without_being_decoded() -> None:
    made, encoder = ShardRounds(HEADER, with_samples=True), RoundEncoder()
    records = [made.start(0)]
    for second, used_mib in enumerate((500, 900)):
        records += made.add(encoded(second, encoder, used_mib=used_mib), b"", [])
    assert [head.is_decision for head in ShardReader(b"".join(records)).rounds] == [False, True]


def test_events_and_samples_come_back_in_order() -> None:
    made = ShardRounds(HEADER, with_samples=True)
    event = RecordedEvent("OomKilled", 3.0, {"comm": "hog"})
    records = [made.start(0), *made.add(encoded(0), b"[[1,2,3,null,null,null]]", [event]), made.events([event], 5)]
    reader = ShardReader(b"".join(records))
    assert list(reader.events()) == [event, event]
    assert [each.at_ns for each in reader.samples()] == [1]


@pytest.mark.parametrize("has_index", [True, False])
def test_cut_at_any_byte_it_loses_the_last_record_alone(has_index: bool) -> None:
    records = shard()
    data, index = b"".join(records), index_of(records) if has_index else b""
    ends = [sum(map(len, records[:number])) for number in range(1, len(records) + 1)]
    for cut in range(len(records[0]), len(data)):
        whole = sum(end <= cut for end in ends)
        reader = ShardReader(data[:cut], index)
        assert len(reader.content.records) == whole
        assert [damage.is_end for damage in reader.damages] == ([] if cut in ends else [True])


def test_cut_within_its_header_it_has_no_round_and_says_so() -> None:
    for cut in range(len(shard()[0])):
        with pytest.raises(DecodeError, match="the file ends within a record, its header: no round is in it"):
            ShardReader(b"".join(shard())[:cut])


@pytest.mark.parametrize("data", [b"not a recording", b"x" * 400, b"".join(shard()[1:])])
def test_without_a_header_it_is_no_recording(data: bytes) -> None:
    with pytest.raises(DecodeError, match="does not begin with the header"):
        ShardReader(data)


@pytest.mark.parametrize("has_index", [True, False])
def test_a_damaged_record_is_passed_over_and_named_by_its_offset(has_index: bool) -> None:
    records = shard()
    index = index_of(records) if has_index else b""
    lost = 5
    offset = sum(map(len, records[:lost]))
    for at in (0, 6, HEAD_BYTES - 1, HEAD_BYTES, len(records[lost]) - 1):
        data = bytearray(b"".join(records))
        data[offset + at] ^= 0x40
        found, reader = read(bytes(data), index)
        assert [each.wall_ns for each in found] == [
            wall_ns(second) for second in range(lost - 2)
        ]  # the group's end too
        assert (reader.damages[0].offset, reader.damages[0].length) == (offset, len(records[lost]))
        assert all("needs record" in str(damage) for damage in reader.damages[1:])
        assert str(offset) in str(reader.damages[0])


def test_without_its_base_a_group_is_passed_over_and_the_next_one_read() -> None:
    records = shard(rounds=70)
    data = bytearray(b"".join(records))
    data[len(records[0]) + len(records[1]) + HEAD_BYTES] ^= 1
    found, reader = read(bytes(data))
    assert len(found) == 70 - 32
    assert "needs record 3" in str(reader.damages[1])


def test_without_its_objects_a_round_is_passed_over() -> None:
    records = shard(rounds=3)
    data = bytearray(b"".join(records))
    data[len(records[0]) + HEAD_BYTES] ^= 1
    found, reader = read(bytes(data))
    assert found == []
    assert "needs record 2" in str(reader.damages[-1])


def test_a_false_index_leads_nowhere() -> None:
    records = shard()
    data = bytearray(b"".join(records))
    data[len(b"".join(records[:4]))] ^= 1
    entry = struct.pack("<QQIIBB2x", len(data) * 2, 0, 9, 1, 3, 0)
    false = entry + struct.pack("<I", zlib.crc32(entry))
    reader = ShardReader(bytes(data), false + bytes(INDEX_BYTES) + b"x")
    assert len(reader.rounds) == ROUNDS - 1


def test_another_version_is_no_recording() -> None:
    with pytest.raises(DecodeError):
        ShardReader(b"".join(shard()).replace(MAGIC, b"KRR2"))
    with pytest.raises(DecodeError, match="none of this version"):
        ShardContent(_Other(HEADER).start(0))


class _Other(ShardEncoder):
    def _record(self, kind: int, flags: int, base: int, payload: bytes, raw_length: int, wall_ns: int) -> bytes:
        payload = payload.replace(b"recording/v1", b"recording/v9")
        return super()._record(kind, flags, base, payload, len(payload), wall_ns)


def test_a_length_that_is_a_lie_is_not_allocated() -> None:
    for raw_length in (0, 5, (64 << 20) + 1, (1 << 32) - 1):
        records = [*shard(rounds=1)[:-1]]
        record = bytearray(shard(rounds=1)[-1])
        struct.pack_into("<I", record, 24, raw_length)
        struct.pack_into("<I", record, HEAD_BYTES - 4, zlib.crc32(record[: HEAD_BYTES - 4]))
        found, reader = read(b"".join(records) + bytes(record))
        assert found == []
        assert len(reader.damages) == 1


def test_a_record_that_is_its_own_base_is_passed_over() -> None:
    record = bytearray(shard(rounds=1)[-1])
    struct.pack_into("<I", record, 12, parse_head(record, 0).number)
    struct.pack_into("<I", record, HEAD_BYTES - 4, zlib.crc32(record[: HEAD_BYTES - 4]))
    found, reader = read(b"".join(shard(rounds=1)[:-1]) + bytes(record))
    assert found == [] and len(reader.damages) == 1


def test_content_of_another_form_is_passed_over() -> None:
    encoder = ShardEncoder(HEADER)
    records = [
        encoder.start(0),
        encoder.objects(b"{}", 0),
        encoder.round(b'{"tick": 1}', 0, is_decision=False),
        encoder.loose(Kind.EVENTS, b"\xff", 0),
        encoder.loose(Kind.SAMPLES, b"[[1]]", 0),
    ]
    found, reader = read(b"".join(records))
    assert (found, list(reader.events()), list(reader.samples())) == ([], [], [])
    assert len(reader.damages) == 3


def test_only_a_record_has_an_entry_in_the_index() -> None:
    with pytest.raises(DecodeError):
        index_entry(b"x" * 100, 0)


def test_an_empty_shard_has_no_record() -> None:
    assert list(heads(b"")) == []
    assert list(heads(b"x" * 200)) == [Damage(0, 200, "the file ends within a record", is_end=True)]


def test_rounds_are_read_in_any_order() -> None:
    reader = ShardReader(b"".join(shard(rounds=40)))
    for second in (39, 0, 31, 32, 5, 5, 38):
        found = reader.round(reader.rounds[second])
        assert found is not None and found.tick == round_at(second)[0]
    assert reader.damages == []


@pytest.mark.parametrize("most", [5, 6, 7])
def test_more_records_than_a_file_can_have_are_not_all_looked_at(most: int) -> None:
    data = b"".join(shard(rounds=5))
    assert len(ShardContent(data).records) == 7  # with its header and its objects
    if most == 7:
        assert len(ShardContent(data, most_records=most).records) == 7
    else:
        with pytest.raises(DecodeError, match=f"more than {most} records"):
            ShardContent(data, most_records=most)


def test_a_small_change_of_large_objects_is_a_small_record() -> None:
    encoder, raw = ShardEncoder(HEADER), random.Random(7).randbytes(160_000).hex()
    encoder.objects(raw.encode(), 0)
    encoder.objects(f"{raw[:70_000]}changed{raw[70_007:]}".encode(), 1)
    assert len(encoder.objects(f"{raw[:70_000]}again{raw[70_005:]}".encode(), 2)) < 1024
