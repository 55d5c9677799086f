"""Samples in a compact form."""

from __future__ import annotations

import math

import pytest

from koordebpf.errors import DecodeError
from koordebpf.state.series.aggregate import percentile_index
from koordebpf.state.series.block import HEADER, decode_block, encode_block, moved, rounds_of


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ([7.5] * 64, 0),
        ([0.0] * 64, 0),
        ([float(2**40 + each * 4096) for each in range(64)], 1),
        ([float(2**40 + each * each * 4096) for each in range(64)], 2),
        ([0.0, 1.0, 65_534.0], 2),
        ([-254.0, 0.0, -254.0], 1),
    ],
)
def test_whole_numbers_with_few_steps_between_them_are_exact(values, width):
    block = encode_block(5, values)
    assert decode_block(block) == values
    assert len(block) == HEADER.size + width * len(values)
    assert rounds_of(block) == (5, len(values))


@pytest.mark.parametrize(
    ("values", "width", "most"),
    [
        ([1.0 + each / 1e5 for each in range(64)], 1, 1 / 65_536),
        ([each / 7 for each in range(64)], 2, 9 / 131_068),
        ([0.0, 1e299, 3e250], 2, 1e299 / 131_068),
        ([-1e299, 1e299, 0.7], 1, 1e299 / 65_534),
        ([-1e3, 1e3, 0.7], 2, 1e3 / 65_534),
        ([1e-310, 2e-310, 7e-320], 2, 1e-310),
        ([0.0, 65_536.0, 3.0], 2, 0.51),
    ],
)
def test_other_values_are_off_by_a_known_part(values, width, most):
    block = encode_block(0, values)
    assert len(block) == HEADER.size + width * len(values)
    assert max(abs(a - b) for a, b in zip(decode_block(block), values, strict=True)) <= most


@pytest.mark.parametrize("known", [[3.0], [3.0, 3.0], [1.0, 2.0], [0.1, 700.3, 0.2]])
def test_rounds_without_a_sample_stay_without(known):
    values = [known[0], math.nan, *known[1:], math.nan, known[0]]
    found = decode_block(encode_block(0, values))
    assert [math.isnan(value) for value in found] == [math.isnan(value) for value in values]


def test_a_block_is_moved_to_other_rounds():
    block = encode_block(5, [1.0, 2.5])
    assert (rounds_of(moved(block, 100)), decode_block(moved(block, 100))) == ((105, 2), decode_block(block))


@pytest.mark.parametrize("cut", [0, 1, 22, 23, 86])
def test_a_block_that_is_cut_short_has_another_layout(cut):
    block = encode_block(5, [each / 7 for each in range(64)])
    with pytest.raises(DecodeError):
        decode_block(block[:cut])
    with pytest.raises(DecodeError):
        decode_block(block[:6] + b"\x03" + block[7:])


def test_the_index_of_a_percentile_is_that_of_a_product_of_32_bits():
    # what Go makes of int(float32(n) * float32(p)) - 1
    assert [percentile_index(20, each) for each in (0.5, 0.9, 0.95, 0.99)] == [9, 17, 18, 18]
    assert [percentile_index(100, each) for each in (0.5, 0.9, 0.95, 0.99)] == [49, 89, 94, 98]
    assert [percentile_index(1800, each) for each in (0.5, 0.9, 0.95, 0.99)] == [899, 1619, 1709, 1781]
