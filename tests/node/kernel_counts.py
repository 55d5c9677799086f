"""What the guest's kernel counts itself, by a histogram of one of its trace events: exact, and nothing is lost."""

from __future__ import annotations

import re
from typing import Self

from tests.node.guest import Guest

_TRACING = "/sys/kernel/tracing"
_LINE = re.compile(r"^\{ (?P<keys>.*?) *\} hitcount: +(?P<count>\d+)", re.MULTILINE)


class KernelCounts:
    """Counts an event from `with` on, `counts()` by the value of a field.

    Args:
        guest: where.
        event: below tracing/events, as `cgroup/cgroup_mkdir`.
        key: the field.
        probe: a kernel function that the event is made of, by kprobe_events; None: the kernel has the event.
    Source:  Documentation/trace/histogram.rst
    """

    def __init__(self, guest: Guest, event: str, key: str, *, probe: str | None = None) -> None:
        self._guest, self._event, self._key, self._probe = guest, event, key, probe
        self._folder = f"{_TRACING}/events/{event}"
        self._trigger = f"hist:keys={key}:size=4096"

    def __enter__(self) -> Self:
        if self._probe:
            self._guest.check(f"echo 'p:{self._event} {self._probe}' >>{_TRACING}/kprobe_events")
        self._guest.check(f"echo '{self._trigger}' >{self._folder}/trigger")
        return self

    def counts(self) -> dict[str, int]:
        """Return how often it came, by the field's value."""
        text = self._guest.check(f"cat {self._folder}/hist")
        return {found["keys"].partition(":")[2].strip(): int(found["count"]) for found in _LINE.finditer(text)}

    def __exit__(self, *_: object) -> None:
        self._guest.run(f"echo '!{self._trigger}' >{self._folder}/trigger")
        if self._probe:
            self._guest.run(f"echo '-:{self._event}' >>{_TRACING}/kprobe_events")
