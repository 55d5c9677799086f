"""Lets news through and counts repeats."""

from __future__ import annotations

from collections import OrderedDict

from koordebpf.units import NS_PER_S

_MAX_KEYS = 256


class RepeatFilter:
    """Lets a sentence through when it is new, then at most every `every_ns` with the number that was held back.

    `key` says what the sentence is about (a guard's code, a pod's uid and result): numbers in the text may change with
    every tick without making it news.
    """

    def __init__(self, every_ns: int = 30 * NS_PER_S) -> None:
        self._every_ns = every_ns
        self._said: OrderedDict[str, tuple[int, int]] = OrderedDict()  # key → said at, held back since

    def admit(self, key: str, sentence: str, now_ns: int) -> str | None:
        """Return the sentence to print, or None."""
        said_ns, suppressed = self._said.get(key, (None, 0))
        if said_ns is not None and now_ns - said_ns < self._every_ns:
            self._said[key] = (said_ns, suppressed + 1)
            return None
        self._said[key] = (now_ns, 0)
        self._said.move_to_end(key)
        if len(self._said) > _MAX_KEYS:
            self._said.popitem(last=False)
        return f"{sentence} ({suppressed} more like this suppressed)" if suppressed else sentence
