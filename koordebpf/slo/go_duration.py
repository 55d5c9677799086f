"""Go's text of a duration, as metav1.Duration has it in JSON: `5m0s`.

Source: Go src/time/format.go ParseDuration, src/time/time.go Duration.String.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

from koordebpf.errors import ConfigError

_UNIT_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_RULE: Final = 'must be a duration such as "5m" or "1h30m"'
_MAX_NS: Final = 2**63 - 1
_MAX_CHARS: Final = 40  # Why: the longest that Go writes has 25


def duration_ns(written: Any, path: str) -> int:
    """Return a duration that is not negative, in nanoseconds; what is finer is cut off.

    Raises:  ConfigError: it is none, or longer than Go can hold.
    >>> duration_ns("1h0m1.5s", "d")
    3601500000000
    """
    if not isinstance(written, str) or len(written) > _MAX_CHARS:
        raise ConfigError(path, written, _RULE)
    parts = _PART.findall(written)
    if "".join(number + unit for number, unit in parts) != written or not parts:
        if written == "0":
            return 0
        raise ConfigError(path, written, _RULE)
    ns = sum(int(Decimal(number) * _UNIT_NS[unit]) for number, unit in parts)
    if ns > _MAX_NS:
        raise ConfigError(path, written, _RULE)
    return ns


def go_duration(ns: int) -> str:
    """Return a duration that is not negative as Go writes it.

    >>> go_duration(300 * 10**9)
    '5m0s'
    """
    if ns < _UNIT_NS["s"]:
        unit = "ns" if ns < _UNIT_NS["us"] else "µs" if ns < _UNIT_NS["ms"] else "ms"
        return "0s" if ns == 0 else f"{_decimal(ns, _UNIT_NS[unit])}{unit}"
    minutes, rest_ns = divmod(ns, _UNIT_NS["m"])
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(rest_ns, _UNIT_NS['s'])}s"
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds


def _decimal(ns: int, unit_ns: int) -> str:
    whole, rest = divmod(ns, unit_ns)
    digits = len(str(unit_ns)) - 1
    fraction = f"{rest:0{digits}d}".rstrip("0") if rest else ""
    return f"{whole}.{fraction}" if fraction else str(whole)
