"""Kubernetes quantities as numbers, as Go reads them: what the API server takes, and what kubelet and scheduler count.

The kubernetes package has a parser too, but a node must not pay that package's 22 MB for it.

Source: k8s.io/apimachinery pkg/api/resource: quantity.go, amount.go, math.go, scale_int.go, suffix.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Final

import msgspec

from koordebpf.errors import ConfigError

# `E` alone is exa; before digits it is an exponent.
_TENS: Final = dict(zip(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), range(-9, 19, 3), strict=True))
_BITS: Final = {f"{suffix}i": 10 * place for place, suffix in enumerate("KMGTPE", start=1)}
_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?")
_EXPONENT = re.compile(r"[eE]([+-]?)([0-9]+)")
MOST_AMOUNT: Final = 2**63 - 1
_NANO: Final = -9  # the power of ten that Go rounds up to
_INT64_DIGITS: Final = 18
_BINARY_DIGITS: Final = 15  # with those of the suffix
_MOST_DIGITS: Final = 100  # 10^64 is a multiple of 2^64: digits before the last 64 do not change what wraps around
_MOST_SHOWN: Final = 80
_RULE = "must be a Kubernetes quantity such as 500m, 2Gi or 1e9"
_DECIMAL: Final = ("m", "", "k", "M", "G", "T", "P", "E")
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class Quantity(msgspec.Struct, frozen=True, gc=False):
    """A resource.Quantity: `unscaled` times ten to the power of `scale`.

    `is_dec`: Go keeps it as inf.Dec, otherwise as int64Amount. They differ in what Value() makes of a number that 64
    bits do not hold.
    """

    unscaled: int = 0
    scale: int = 0
    is_dec: bool = False

    def __lt__(self, other: Quantity) -> bool:
        """Tell whether it is the smaller number."""
        return self._in_nanos() < other._in_nanos()

    def plus(self, other: Quantity) -> Quantity:
        """Return the sum, as Quantity.Add() does."""
        if not (self.is_dec or other.is_dec):
            if not other.unscaled:
                return self
            if not self.unscaled:
                return other
        scale = min(self.scale, other.scale)
        unscaled = self.unscaled * _ten(self.scale - scale) + other.unscaled * _ten(other.scale - scale)
        return Quantity(unscaled, scale, self.is_dec or other.is_dec or unscaled > MOST_AMOUNT)

    def is_int64(self, scale: int = 0) -> bool:
        """Tell whether 64 bits hold it, in units of ten to the power of `scale`: no value of it wraps around."""
        return self._in_nanos() <= MOST_AMOUNT * _ten(scale - _NANO)

    def value(self) -> int:
        """Return Value(): a fraction is rounded up, what 64 bits do not hold wraps around, and a negative one is 0.

        >>> Quantity(15, -1).value(), Quantity(10, 18).value()
        (2, 0)
        """
        return self._scaled(0)

    def milli_value(self) -> int:
        """Return MilliValue() in the same way.

        >>> Quantity(15, -1).milli_value()
        1500
        """
        return self._scaled(-3)

    def _in_nanos(self) -> int:
        return self.unscaled * _ten(self.scale - _NANO)

    def _scaled(self, scale: int) -> int:
        power = self.scale - scale
        exact = self.unscaled * _ten(power) if power > 0 else -(-self.unscaled // _ten(-power))
        if exact <= MOST_AMOUNT:
            return exact
        # An inf.Dec is multiplied by an int64, and an int64Amount by ten at a time until it overflows, or at once.
        if power > _INT64_DIGITS if self.is_dec else power not in (1, 2, 3, 6, 9):
            return 0
        return max((exact + MOST_AMOUNT + 1) % 2**64 - MOST_AMOUNT - 1, 0)


def parse_quantity(value: str | int | float, path: str = "quantity") -> Decimal:
    """Return a quantity as a number, up to 10^100 an exact one; `path` names where it stood.

    Raises:  ConfigError: it is no quantity.
    >>> parse_quantity("500m"), parse_quantity("64E+0006")
    (Decimal('0.500'), Decimal('6.4E+7'))
    """
    found = _read(value, path)
    return Decimal(f"{found.unscaled}E{found.scale}")


def parse_amount(value: str | int | float, path: str = "quantity") -> Quantity:
    """Return a quantity as Go keeps it, to be added to others.

    Raises:  ConfigError: it is no quantity, or negative.
    """
    found = _read(value, path)
    if found.unscaled < 0:
        raise ConfigError(path, _shown(value), "must not be negative")
    return found


def quantity_bytes(value: str | int | float, path: str = "quantity") -> int:
    """Return what Go's Value() says of a quantity, such as of bytes; see `Quantity.value`.

    Raises:  ConfigError: it is no quantity, or negative.
    >>> quantity_bytes("1500m")
    2
    """
    return parse_amount(value, path).value()


def quantity_millicpu(value: str | int | float, path: str = "quantity") -> int:
    """Return what Go's MilliValue() says of a quantity of CPUs.

    Raises:  ConfigError: it is no quantity, or negative.
    >>> quantity_millicpu("1.5")
    1500
    """
    return parse_amount(value, path).milli_value()


def total(amounts: Iterable[int]) -> int:
    """Return the sum of amounts, `MOST_AMOUNT` at most: that of all pods is one amount, too.

    >>> total([MOST_AMOUNT, 1]) == MOST_AMOUNT, total([1, 2])
    (True, 3)
    """
    return min(sum(amounts), MOST_AMOUNT)


def within_int64(number: int) -> int:
    """Return a whole number of an object, the nearest that 64 bits hold: Kubernetes' own have no other."""
    return max(min(number, MOST_AMOUNT), -MOST_AMOUNT - 1)


def _read(value: str | int | float, path: str) -> Quantity:
    # YAML and JSON hand over bare numbers as int or float; a bool is an int to Python, not to Kubernetes.
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(path, value, _RULE)
    found = _parsed(value if isinstance(value, str) else repr(value))
    if found is None:
        raise ConfigError(path, _shown(value), _RULE)
    return found


def _shown(value: str | int | float) -> str | int | float:
    return value[:_MOST_SHOWN] if isinstance(value, str) else value


# ParseQuantity. An int64Amount has few digits and no part of a nano; an inf.Dec is rounded up to nanos.
def _parsed(text: str) -> Quantity | None:
    match = _NUMBER.match(text)
    if match is None or not text:
        return None
    sign, written, fraction = match.groups(default="")
    suffix = text[match.end() :]
    bits = _BITS.get(suffix, 0)
    power = 0 if bits else _power_of_ten(suffix)
    if power is None:
        return None
    whole = written.lstrip("0")
    n_digits, scale = len(whole or "0") + len(fraction), _int32(power - len(fraction))
    is_int64_amount = n_digits <= _INT64_DIGITS and scale >= _NANO
    if bits:
        is_int64_amount = not fraction and n_digits + bits * 3 // 10 < _BINARY_DIGITS
    if is_int64_amount:
        found = Quantity(int(whole + fraction or "0") << bits, min(scale, _MOST_DIGITS))
    elif not (written or fraction):
        return None
    else:
        nanos = _nanos(whole, fraction, power, bits)
        is_capped = bits and nanos > MOST_AMOUNT * 10**9
        found = Quantity(MOST_AMOUNT, 0, is_dec=True) if is_capped else Quantity(nanos, _NANO, is_dec=True)
    return Quantity(-found.unscaled, found.scale, found.is_dec) if sign == "-" else found


# An exponent is read into 64 bits, of which 32 are kept; None: it is no suffix, or 64 bits do not hold it.
def _power_of_ten(suffix: str) -> int | None:
    if (power := _TENS.get(suffix)) is not None:
        return power
    if (match := _EXPONENT.fullmatch(suffix)) is None:
        return None
    sign, digits = match[1], match[2].lstrip("0")
    if len(digits) > _INT64_DIGITS + 1:
        return None
    number = int(f"{sign}{digits or 0}")
    return _int32(number) if within_int64(number) == number else None


def _int32(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


# Rounded up. Of a number of very many digits those are left out that change no amount.
def _nanos(whole: str, fraction: str, power: int, bits: int) -> int:
    digits, point = whole + fraction, len(whole) + power
    if point < 0:
        digits, point = "0" * min(-point, _MOST_DIGITS) + digits, 0
    digits += "0" * min(max(point - len(digits), 0), _MOST_DIGITS)
    whole, fraction = digits[:point].lstrip("0"), digits[point:]
    if len(whole) > _MOST_DIGITS:
        whole = f"1{whole[-_MOST_DIGITS:]}"
    if len(fraction) > _MOST_DIGITS:
        is_more = fraction[_MOST_DIGITS:].strip("0")
        fraction = fraction[:_MOST_DIGITS] + ("1" if is_more else "")
    unscaled = int(whole + fraction or "0") << bits
    return -(-unscaled * 10**9 // _ten(len(fraction)))


def _ten(power: int) -> int:
    return int(10**power)


def cpu_text(millicpu: int) -> str:
    """Return an amount of CPU as Go writes it; a whole number of CPUs has no suffix, or one of thousands.

    Source:  k8s.io/apimachinery pkg/api/resource/quantity.go NewMilliQuantity.
    >>> cpu_text(1500), cpu_text(2000), cpu_text(0)
    ('1500m', '2', '0')
    """
    return _shortest(millicpu, 1000, _DECIMAL) if millicpu else "0"


def memory_text(n_bytes: int) -> str:
    """Return an amount of memory as Go writes it; what is not a whole number of KiB is in bytes.

    Less than a KiB has decimal suffixes.

    Source:  k8s.io/apimachinery pkg/api/resource/quantity.go CanonicalizeBytes, NewQuantity.
    >>> memory_text(1 << 30), memory_text(1_500_000), memory_text(1000)
    ('1Gi', '1500000', '1k')
    """
    if n_bytes < 1024:
        return _shortest(n_bytes, 1000, _DECIMAL[1:]) if n_bytes else "0"
    return _shortest(n_bytes, 1024, _BINARY)


def _shortest(n: int, step: int, suffixes: tuple[str, ...]) -> str:
    place = 0
    while n % step == 0 and place + 1 < len(suffixes):
        n //= step
        place += 1
    return f"{n}{suffixes[place]}"
