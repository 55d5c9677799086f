from __future__ import annotations

import time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.errors import ConfigError
from koordebpf.quantity import (
    MOST_AMOUNT,
    cpu_text,
    memory_text,
    parse_amount,
    parse_quantity,
    quantity_bytes,
    quantity_millicpu,
    total,
    within_int64,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", "0"),
        ("7", "7"),
        ("+7", "7"),
        ("-7", "-7"),
        ("1.", "1"),
        (".5", "0.5"),
        ("500n", "0.0000005"),
        ("500u", "0.0005"),
        ("500m", "0.5"),
        ("1k", "1000"),
        ("1M", "1000000"),
        ("1G", "1000000000"),
        ("1T", "1000000000000"),
        ("1P", "1000000000000000"),
        ("1E", "1000000000000000000"),
        ("1Ki", "1024"),
        ("1Mi", "1048576"),
        ("1.5Gi", "1610612736"),
        ("1Ti", "1099511627776"),
        ("1Pi", "1125899906842624"),
        ("1Ei", "1152921504606846976"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("12e-1", "1.2"),
        ("1e+2", "100"),
        (64, "64"),
        (0.5, "0.5"),
        (1e21, "1000000000000000000000"),
    ],
)
def test_quantities(text: str | int | float, number: str) -> None:
    assert parse_quantity(text) == Decimal(number)


@pytest.mark.parametrize("rubbish", ["", "1 Gi", True, False, None, [], float("nan"), float("inf")])
def test_rubbish_is_named(rubbish: object) -> None:
    with pytest.raises(ConfigError, match="must be a Kubernetes quantity") as caught:
        parse_quantity(rubbish, "spec.limits.memory")  # type: ignore[arg-type]
    assert caught.value.path == "spec.limits.memory"
    assert caught.value.value is rubbish or caught.value.value == rubbish


@pytest.mark.parametrize(("text", "number"), [("1500m", 2), ("1m", 1), ("0.1", 1), ("16Gi", 17179869184), ("0", 0)])
def test_bytes_are_rounded_up(text: str, number: int) -> None:
    assert quantity_bytes(text) == number


@pytest.mark.parametrize("text", ["8Ei", "9223372036854775807", "9223372036854775806.5"])
def test_what_64_bits_hold_at_the_most(text: str) -> None:
    assert quantity_bytes(text) == MOST_AMOUNT
    assert total([quantity_bytes(text)] * 3) == MOST_AMOUNT


@pytest.mark.parametrize("text", ["1e30", "9e999", "10E", "1e2000000000", "9223372036854775808", 1e300])
def test_what_64_bits_do_not_hold_is_no_amount(text: str | float) -> None:
    assert not parse_amount(text).is_int64()
    assert quantity_bytes(text) == quantity_millicpu(text) == 0


def test_what_neither_kind_of_number_holds_wraps_around_as_in_go() -> None:
    assert quantity_bytes("18446744074783293440") == 1 << 30  # 2^64 + 2^30


ZEROS, ONES = "0" * 10**6, "1" * 10**6
LONG = [f"{ZEROS}x", f"-{ONES}", f"0.{ZEROS}1", ONES, f"{ONES}e-500000", f"1.{ONES}Ki", f"1e{ZEROS}3", "1e-99999999"]


@pytest.mark.parametrize("text", LONG, ids=[text[:4] + text[-4:] for text in LONG])
def test_a_text_as_long_as_an_object_takes_no_longer_than_it_takes_to_read(text: str) -> None:
    started_s = time.process_time()
    try:
        quantity_bytes(text)
    except ConfigError as error:
        assert len(str(error)) < 200
    assert time.process_time() - started_s < 2


@given(st.integers())
def test_a_whole_number_is_the_nearest_of_64_bits(number: int) -> None:
    found = within_int64(number)
    assert -(2**63) <= found < 2**63
    assert found == number or abs(number) >= 2**63


def test_negative_bytes_are_refused() -> None:
    with pytest.raises(ConfigError, match="must not be negative"):
        quantity_bytes("-1Gi")


@given(st.integers(min_value=0, max_value=2**60), st.sampled_from(["", "Ki", "Mi", "Gi"]))
def test_whole_numbers_are_exact(number: int, suffix: str) -> None:
    factor = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}[suffix]
    assert parse_quantity(f"{number}{suffix}") == min(number * factor, MOST_AMOUNT)


LIKE_ONE = st.from_regex(r"[-+]?[0-9]{0,30}\.?[0-9]{0,30}([eE][-+]?[0-9]{1,25}|[KMGTPE]i?)?", fullmatch=True)


@given(st.text(max_size=12) | LIKE_ONE)
def test_any_text_is_an_amount_of_64_bits_or_a_config_error(text: str) -> None:
    try:
        assert parse_quantity(text).is_finite()
        assert 0 <= quantity_bytes(text) <= MOST_AMOUNT
        assert 0 <= quantity_millicpu(text) <= MOST_AMOUNT
    except ConfigError as e:
        assert e.value == text


def test_there_is_no_suffix_beyond_the_largest() -> None:
    assert (memory_text(1 << 70), cpu_text(10**24)) == ("1024Ei", "1000E")
