"""What this process could not have and works without: said once, shown by /readyz until it is there.

A file or folder is needed by one part of an agent. Where it is full, read-only or something else, that part has less;
the agent as a whole starts, and evicts. Only the node's lock and its configuration are conditions of all of it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from koordebpf.errors import ConfigError, os_reason

log = logging.getLogger("koordebpf")


class Degraded:
    """One file or folder. `problem`: why it cannot be used; None: it can, as far as is known.

    Args:
        name: its path, for people.
        without: what the agent does without it, as the rest of a sentence.
    """

    def __init__(self, name: object, without: str) -> None:
        self.name = str(name)
        self.problem: str | None = None
        self._without = without
        with _lock:
            _all.add(self)

    def report(self, error: OSError | ConfigError | str | None) -> None:
        """Set why it cannot be used, None: it can; the log has each change."""
        problem = reason_of(error) if isinstance(error, Exception) else error
        before, self.problem = self.problem, problem
        if problem is None and before is not None:
            log.info("%s can be used again", self.name)
        elif problem is not None and problem != before:
            log.warning("%s: %s: %s", self.name, problem, self._without)

    def watching(self, write: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """Return a call that writes to it, and notes whether that was possible."""

        def watched(data: bytes) -> None:
            try:
                write(data)
            except OSError as error:
                self.report(error)
                raise
            self.report(None)

        return watched

    def end(self) -> None:
        """Be shown no more: the part that needed it has ended."""
        self.problem = None

    @property
    def sentence(self) -> str | None:
        """Why it cannot be used, and what comes of that; None: it can."""
        problem = self.problem
        return None if problem is None else f"{problem}: {self._without}"


def reason_of(error: OSError | ConfigError) -> str:
    """Return why a file cannot be used, without its path."""
    return error.rule if isinstance(error, ConfigError) else os_reason(error)


_lock = threading.Lock()  # some come while others are listed
_all: weakref.WeakSet[Degraded] = weakref.WeakSet()


def degradations() -> dict[str, str]:
    """Return why each of this process's files cannot be used, and what comes of that, by name."""
    with _lock:
        found = list(_all)
    return {each.name: sentence for each in sorted(found, key=lambda each: each.name) if (sentence := each.sentence)}
