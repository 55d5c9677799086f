"""Compares how an object's BTF lays out a structure with what this package expects of it."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from koordebpf.errors import SupportError

Members = tuple[tuple[str, str], ...]  # member and struct code, in the order of the C structure
Layouts = Mapping[str, Members]


def offsets_of(members: Members) -> tuple[int, dict[str, int]]:
    """Return the size of a structure and the offset of each member, in bytes."""
    offsets: dict[str, int] = {}
    size = 0
    for member, code in members:
        offsets[member] = size
        size += struct.calcsize("<" + code)
    return size, offsets


def compare_layout(name: str, actual: tuple[int, Mapping[str, int]], members: Members) -> None:
    """Hold the structure of this name against its members.

    Raises:  SupportError: a member is missing, moved, or the size differs.
    """
    expected = offsets_of(members)
    if actual != expected:
        raise SupportError(
            f"BPF record {name}",
            f"the object lays it out as {actual}, this package as {expected}",
            "Build the objects from this package's sources: make bpf.",
        )
