"""The fuzzer of `make fuzz`: it begins with valid input, and what no caller expects is a finding."""

from __future__ import annotations

import random

import pytest

from koordebpf.errors import DecodeError
from tests.fuzz import decoders, finding, mutated


@pytest.mark.parametrize("name", decoders())
def test_its_seeds_are_valid(name: str) -> None:
    decoder = decoders()[name]
    assert decoder.seeds
    for seed in decoder.seeds:
        decoder.read(seed)


@pytest.mark.parametrize("name", decoders())
def test_a_few_mutations_have_no_finding(name: str) -> None:
    decoder, chance = decoders()[name], random.Random(1)
    for _ in range(100):
        assert finding(decoder.read, mutated(chance.choice(decoder.seeds), chance)) is None


@pytest.mark.parametrize(("error", "is_found"), [(DecodeError("known"), False), (RecursionError(), True)])
def test_an_error_that_no_caller_expects_is_a_finding(error: Exception, is_found: bool) -> None:
    def read(_: bytes) -> object:
        raise error

    assert (finding(read, b"") is not None) == is_found
