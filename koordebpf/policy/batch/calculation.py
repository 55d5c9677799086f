"""A number and the terms that it is the sum of, so that people can check it."""

from __future__ import annotations

import msgspec


class Term(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One summand; negative: it is taken off. `source` is where its value comes from."""

    name: str
    value: int
    source: str = ""


class Calculation(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The amount of one resource: `result` is the sum of `terms`.

    `resource` is its name in node.status.allocatable. `reset`: why the node has none of it; then `result` is None.
    """

    resource: str
    result: int | None
    terms: tuple[Term, ...] = ()
    reset: str = ""


class Sum:
    """Terms as they are added up. A term that is zero changes nothing, and is left out unless `keep`."""

    def __init__(self, resource: str) -> None:
        self.total = 0
        self._resource = resource
        self._terms: list[Term] = []

    def add(self, name: str, value: int, source: str = "", *, keep: bool = False) -> None:
        """Add a summand."""
        if value or keep:
            self._terms.append(Term(name, value, source))
            self.total += value

    def at_least_zero(self) -> None:
        """Raise what is below zero to it."""
        if self.total < 0:
            self.add("raised to zero", -self.total, "there is nothing left")

    def at_most(self, limit: int, source: str) -> None:
        """Cut what is above a limit."""
        if self.total > limit:
            self.add("cut to the limit", limit - self.total, source)

    def calculation(self) -> Calculation:
        """Return the result with its terms."""
        return Calculation(self._resource, self.total, tuple(self._terms))
