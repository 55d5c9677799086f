"""Kubernetes quantities as numbers.

The kubernetes package has a parser too, but a node must not pay that package's 22 MB for it.
"""

from __future__ import annotations

import re
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
    """Return a quantity of bytes, a fraction rounded up as the API server's Quantity.Value() does.

    Raises:  ConfigError: it is no quantity, or negative.
    >>> quantity_bytes("1500m")
    2
    """
    number = parse_quantity(value, path)
    if number < 0:
        raise ConfigError(path, value, "must not be negative")
    return int(number.to_integral_value(rounding=ROUND_CEILING))


def quantity_millicpu(value: str | int | float, path: str = "quantity") -> int:
    """Return a quantity of CPUs in millicpu, a fraction rounded up as the API server's Quantity.MilliValue() does.

    Raises:  ConfigError: it is no quantity, or negative.
    >>> quantity_millicpu("1.5")
    1500
    """
    number = parse_quantity(value, path)
    if number < 0:
        raise ConfigError(path, value, "must not be negative")
    return int((number * 1000).to_integral_value(rounding=ROUND_CEILING))


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
