"""Amounts of CPU and memory as Go's resource.Quantity writes them. Pure.

Source: k8s.io/apimachinery pkg/api/resource/quantity.go CanonicalizeBytes, NewMilliQuantity, NewQuantity.
"""

from __future__ import annotations

from typing import Final

_DECIMAL: Final = ("m", "", "k", "M", "G", "T", "P", "E")
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")

Resources = dict[str, str]


def cpu_text(millicpu: int) -> str:
    """Return an amount of CPU; a whole number of CPUs has no suffix, or one of thousands.

    >>> cpu_text(1500), cpu_text(2000), cpu_text(0)
    ('1500m', '2', '0')
    """
    return _shortest(millicpu, 1000, _DECIMAL) if millicpu else "0"


def memory_text(n_bytes: int) -> str:
    """Return an amount of memory; what is not a whole number of KiB is in bytes.

    Go writes less than a KiB in decimal suffixes.

    >>> memory_text(1 << 30), memory_text(1_500_000), memory_text(1000)
    ('1Gi', '1500000', '1k')
    """
    if n_bytes < 1024:
        return _shortest(n_bytes, 1000, _DECIMAL[1:]) if n_bytes else "0"
    return _shortest(n_bytes, 1024, _BINARY)


def resources(cpu_cores: float, memory_bytes: float) -> Resources:
    """Return a ResourceList of what was measured; fractions of a millicpu and of a byte are cut off."""
    return {"cpu": cpu_text(int(cpu_cores * 1000)), "memory": memory_text(int(memory_bytes))}


def _shortest(n: int, step: int, suffixes: tuple[str, ...]) -> str:
    place = 0
    while n % step == 0 and place + 1 < len(suffixes):
        n //= step
        place += 1
    return f"{n}{suffixes[place]}"
