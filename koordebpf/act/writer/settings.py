"""What an operator may set about writing files."""

from __future__ import annotations

import msgspec

from koordebpf.act.writer.foreign import ForeignPolicy
from koordebpf.units import NS_PER_S


class WriterSettings(msgspec.Struct, frozen=True):
    """How often the writer looks at files that it has no reason to change, and what it does about others.

    `refresh_ns`     a file is looked at again after so long. Why 10 s: Koordinator looks each 60 s, and a kubelet that
                     resets a file has it for so long.
    `looks_per_call` files that are only looked at again, at most so many at a time. Why 48: they are 2 ms; at one call
                     a second 440 files are seen to within the 10 s.
    """

    refresh_ns: int = 10 * NS_PER_S
    looks_per_call: int = 48
    foreign: ForeignPolicy = ForeignPolicy()
