"""Logs what is wrong with the cluster's objects, however many of them there are and however often they change."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from koordebpf.store.repeat_filter import RepeatFilter
from koordebpf.units import NS_PER_S, format_ns

log = logging.getLogger("koordebpf")

_SPAN_NS: Final = 30 * NS_PER_S
_MOST: Final = 10  # of one reason in a span. Why: enough to see a pattern; 300 pods that change are one piece of news


class _Span(msgspec.Struct):
    since_ns: int
    logged: int = 0
    suppressed: int = 0
    level: int = logging.NOTSET  # the highest of what was suppressed


class ProblemLog:
    """Logs a problem once as long as it lasts, and of each reason at most ten in 30 s, with the number of the others.

    A reason is a word of ours, as `pods`; sentences name what tenants wrote, and there may be any number of them.
    """

    def __init__(self) -> None:
        self._lasting: dict[str, frozenset[str]] = {}
        self._repeats = RepeatFilter(_SPAN_NS)  # one that keeps coming back is no news each time
        self._spans: dict[str, _Span] = {}

    def report(self, by_reason: Mapping[str, Iterable[str]], now_ns: int) -> None:
        """Log what is new; `by_reason` holds everything that is wrong now."""
        for reason, sentences in by_reason.items():
            before = self._lasting.get(reason, frozenset())
            now = dict.fromkeys(sentences)
            self._lasting[reason] = frozenset(now)
            for sentence in now:
                if sentence not in before:
                    self.add(reason, sentence, now_ns)

    def add(self, reason: str, sentence: str, now_ns: int, level: int = logging.WARNING) -> None:
        """Log one sentence, or count it."""
        span = self._spans.get(reason)
        if span is None or now_ns - span.since_ns >= _SPAN_NS:
            self.flush(now_ns)
            span = self._spans[reason] = _Span(now_ns)
        if span.logged >= _MOST:
            span.suppressed += 1
            span.level = max(span.level, level)
        elif said := self._repeats.say(f"{reason}:{sentence}", sentence, now_ns):
            span.logged += 1
            log.log(level, "%s", said)

    def flush(self, now_ns: int) -> None:
        """Log how many were suppressed in the spans that are over."""
        for reason, span in list(self._spans.items()):
            if now_ns - span.since_ns >= _SPAN_NS:
                del self._spans[reason]
                if span.suppressed:
                    within = format_ns(now_ns - span.since_ns)
                    log.log(span.level, "%s: %d more suppressed within %s", reason, span.suppressed, within)
