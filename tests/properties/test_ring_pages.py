"""Whatever lies in a ring, exactly the committed records are found, in their order, and nothing is released unseen."""

from __future__ import annotations

import mmap
import random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from koordebpf.errors import DecodeError
from koordebpf.kernel.bpf import ring as ring_pages
from koordebpf.kernel.bpf.ring import Batch, look
from tests.support.values.ring_image import BUSY, DISCARD, page_offset, ring_image

RING_BYTES = 4 * mmap.PAGESIZE
SIZES = [0, 1, 8, 24, 40, 64, 80, 88, 176, 1000]


class Image:
    """A ring drawn by hypothesis: runs of one size, some discarded, perhaps one not committed, perhaps full."""

    def __init__(self, data: st.DataObject) -> None:
        draw = data.draw
        seed = random.Random(draw(st.integers(0, 2**32)))
        self.consumer = 8 * draw(st.integers(0, 2**40))
        runs = draw(st.lists(st.tuples(st.sampled_from(SIZES), st.integers(1, 400)), max_size=8))
        looks_like = draw(st.sampled_from(["zeros", "noise", "headers"]))
        wrong_pages = draw(st.booleans())  # only speed may depend on what the kernel says there
        discards = draw(st.sampled_from([0, 0.01, 0.5, 1]))
        self.records: list[tuple[int, bytes]] = []
        used = 0
        for size, count in runs:
            stride = 8 + (size + 7) // 8 * 8
            for _ in range(min(count, (RING_BYTES - used) // stride)):
                body = self._body(looks_like, size, self.consumer + used, seed)
                self.records.append((DISCARD if seed.random() < discards else 0, body))
                used += stride
        if draw(st.booleans()):  # full to the last byte
            while used < RING_BYTES:
                size = min(RING_BYTES - used - 8, 64)
                self.records.append((0, seed.randbytes(size)))
                used += 8 + size
        self.busy = draw(st.integers(0, len(self.records) - 1)) if self.records and draw(st.booleans()) else None
        if self.busy is not None:
            flags, body = self.records[self.busy]
            self.records[self.busy] = (flags | BUSY, body)
        self.memory, self.producer = ring_image(
            RING_BYTES, self.consumer, self.records, (lambda _: 3) if wrong_pages else page_offset
        )

    @staticmethod
    def _body(looks_like: str, size: int, at: int, seed: random.Random) -> bytes:
        match looks_like:
            case "zeros":
                return bytes(size)
            case "noise":
                return seed.randbytes(size)
        # Words that say the right page and a length: those that only the chain can tell from headers.
        page = page_offset(at % RING_BYTES)
        words = [(seed.choice(SIZES) | page << 32).to_bytes(8, "little") for _ in range(size // 8 + 1)]
        return b"".join(words)[:size]

    @property
    def committed(self) -> list[bytes]:
        return [body for flags, body in self.records[: self.busy] if not flags & DISCARD]


def bodies(batch: Batch) -> list[bytes]:
    return [
        batch.memory[at : at + size].tobytes()
        for at, size in zip(batch.offsets.tolist(), batch.sizes.tolist(), strict=True)
    ]


# The second row is for a ring much larger than a batch, of which this one is a small image.
@pytest.mark.parametrize(("batch_words", "short_words"), [(1 << 17, 1024), (300, 1)])
@given(data=st.data())
def test_exactly_the_committed_records_are_found(data: st.DataObject, batch_words: int, short_words: int) -> None:
    image = Image(data)
    limit = data.draw(st.none() | st.integers(1, 500))
    found: list[bytes] = []
    consumer = image.consumer
    with patch.multiple(ring_pages, _BATCH_WORDS=batch_words, _SHORT_WORDS=short_words):
        while batch := look(image.memory, consumer, image.producer, limit):
            assert batch.begin == consumer < batch.end <= image.producer
            assert limit is None or batch.count <= limit
            assert len(batch.frames) == batch.end - batch.begin
            found += bodies(batch)
            consumer = batch.end
    assert found == image.committed
    assert image.busy is not None or consumer == image.producer


@given(st.data())
def test_the_chain_is_the_walk_or_nothing(data: st.DataObject) -> None:
    image = Image(data)
    heads: NDArray[np.uint32] = image.memory.view("<u4")
    begin = image.consumer % RING_BYTES // 8
    end = begin + (image.producer - image.consumer) // 8
    chain = ring_pages._chain(heads, begin, end) if begin < end else None
    if chain is not None:
        starts, stop = ring_pages._walk(heads, begin, chain[1], None)
        assert chain[0].tolist() == starts.tolist()
        assert chain[1] == stop


def frames(count: int, size: int = 64) -> list[tuple[int, bytes]]:
    return [(0, i.to_bytes(size, "little")) for i in range(count)]


@pytest.mark.parametrize("consumer", [0, RING_BYTES - 72, 5 * RING_BYTES + 4096])
def test_a_burst_of_one_size_is_one_view(consumer: int) -> None:
    memory, producer = ring_image(RING_BYTES, consumer, frames(RING_BYTES // 72))
    batch = look(memory, consumer, producer)
    assert batch is not None
    assert batch.stride_bytes == 72
    assert np.shares_memory(batch.memory, memory)
    assert bodies(batch) == [body for _, body in frames(RING_BYTES // 72)]


def test_a_mixture_is_found_by_its_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [(0, bytes([i % 256]) * (40, 88, 176)[i % 3]) for i in range(120)]
    memory, producer = ring_image(RING_BYTES, 8, records)
    monkeypatch.setattr(ring_pages, "_walk", None)  # it would be called
    batch = look(memory, 8, producer)
    assert batch is not None
    assert bodies(batch) == [body for _, body in records]


def test_a_long_run_comes_before_what_follows_it() -> None:
    memory, producer = ring_image(RING_BYTES, 0, [*frames(300, 24), *frames(20, 40), *frames(50, 24)])
    first = look(memory, 0, producer)
    assert first is not None
    second = look(memory, first.end, producer)
    assert second is not None
    assert (first.count, first.stride_bytes, second.count, second.stride_bytes) == (300, 32, 70, None)


def test_nothing_is_found_where_nothing_is_committed() -> None:
    memory, producer = ring_image(RING_BYTES, 64, [(BUSY, bytes(64)), *frames(3)])
    assert look(memory, 64, producer) is None
    assert look(memory, 64, 64) is None


def test_what_was_discarded_is_released_without_a_record() -> None:
    memory, producer = ring_image(RING_BYTES, 64, [(DISCARD, bytes(64))] * 3)
    batch = look(memory, 64, producer)
    assert batch is not None
    assert (batch.count, batch.end) == (0, producer)


@pytest.mark.parametrize("count", [1, 200])
def test_a_record_past_the_producer_is_refused(count: int) -> None:
    memory, producer = ring_image(RING_BYTES, 0, [*frames(count), (0, bytes(80))])
    consumer = 0
    with pytest.raises(DecodeError, match="past the producer"):
        while batch := look(memory, consumer, producer - 16):
            consumer = batch.end
    assert consumer <= count * 72
