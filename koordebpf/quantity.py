"""Kubernetes quantities as numbers.

The kubernetes package has a parser too, but a node must not pay that package's 22 MB for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import ROUND_CEILING, Decimal
from typing import Final

from koordebpf.errors import ConfigError

# apimachinery/pkg/api/resource/suffix.go. `E` alone is exa; before digits it is an exponent, and that is tried first.
_FACTORS: Final[dict[str, Decimal]] = {
    "": Decimal(1),
    **{
        suffix: Decimal(10) ** power
        for suffix, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
    },
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,3})|(?P<suffix>[KMGTPE]i|[numkMGTPE])?)"
)
# Go counts in 64 bits: apimachinery's ParseQuantity reads more than this with a binary suffix as this, and Value() of
# any other such number wraps.
MOST_AMOUNT: Final = 2**63 - 1
_RULE = "must be a Kubernetes quantity such as 500m, 2Gi or 1e9"
_DECIMAL: Final = ("m", "", "k", "M", "G", "T", "P", "E")
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def parse_quantity(value: str | int | float, path: str = "quantity") -> Decimal:
    """Return a quantity as an exact number; `path` names where it stood.

    Raises:  ConfigError: it is no quantity.
    >>> parse_quantity("1.5Gi")
    Decimal('1610612736.0')
    """
    # YAML and JSON hand over bare numbers as int or float; a bool is an int to Python, not to Kubernetes.
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(path, value, _RULE)
    match = _QUANTITY.fullmatch(value if isinstance(value, str) else repr(value))
    if match is None:
        raise ConfigError(path, value, _RULE)
    number = Decimal(match["number"])
    if match["exponent"] is not None:
        return number.scaleb(int(match["exponent"]))
    return number * _FACTORS[match["suffix"] or ""]


def quantity_bytes(value: str | int | float, path: str = "quantity") -> int:
    """Return a quantity of bytes, a fraction rounded up as the API server's Quantity.Value() does; at most 2^63 - 1.

    Raises:  ConfigError: it is no quantity, or negative.
    >>> quantity_bytes("1500m")
    2
    """
    return _amount(value, 1, path)


def quantity_millicpu(value: str | int | float, path: str = "quantity") -> int:
    """Return a quantity of CPUs in millicpu, a fraction rounded up as Quantity.MilliValue() does; at most 2^63 - 1.

    Raises:  ConfigError: it is no quantity, or negative.
    >>> quantity_millicpu("1.5")
    1500
    """
    return _amount(value, 1000, path)


def total(amounts: Iterable[int]) -> int:
    """Return the sum of amounts, `MOST_AMOUNT` at most: that of a pod's containers is one amount, too.

    >>> total([MOST_AMOUNT, 1]) == MOST_AMOUNT, total([1, 2])
    (True, 3)
    """
    return min(sum(amounts), MOST_AMOUNT)


def within_int64(number: int) -> int:
    """Return a whole number of an object, the nearest that 64 bits hold: Kubernetes' own have no other."""
    return max(min(number, MOST_AMOUNT), -MOST_AMOUNT - 1)


def _amount(value: str | int | float, times: int, path: str) -> int:
    number = parse_quantity(value, path)
    if number < 0:
        raise ConfigError(path, value, "must not be negative")
    # Compared first: rounded as a whole, 1e999 is a number of a thousand digits.
    return (
        MOST_AMOUNT
        if number > MOST_AMOUNT
        else min(int((number * times).to_integral_value(ROUND_CEILING)), MOST_AMOUNT)
    )


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
