"""One part of the agent that reports by itself whether it works. It is shown; readiness does not depend on it."""

from __future__ import annotations

import msgspec

from koordebpf.units import NS_PER_S


class HealthCheck(msgspec.Struct, frozen=True):
    """What a part said last. `at_ns` None: nothing yet; `max_silence_ns`: after that it counts as failing."""

    name: str
    problem: str | None
    at_ns: int | None
    max_silence_ns: int

    def failure(self, now_ns: int) -> str | None:
        """Return why it does not work, as a sentence; None: it does."""
        if self.at_ns is None:
            return self.problem or "no answer yet"
        silence_ns = now_ns - self.at_ns
        if silence_ns > self.max_silence_ns:
            longest = f"{self.max_silence_ns / NS_PER_S:g} s"
            return f"no answer for {silence_ns / NS_PER_S:.0f} s > {longest}"
        return self.problem
