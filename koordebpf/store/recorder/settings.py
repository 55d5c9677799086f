"""The recorder's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from koordebpf.units import MIB


class RecorderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where an agent records its rounds, and how much of the disk that may take.

    `folder`          each node's agent has a folder of its own below it; None: nothing is recorded. Where it cannot be
                      written, 4 MiB are kept in runDir, which is in memory. Why /var/lib/koordebpf: what led to a
                      decision is asked for after the machine has restarted too.
    `max_size_bytes`  of all files of a node, those that are written to now and indexes included. Why 64 MiB: an hour
                      of a round each second and a day of one each 5 s with 110 pods, and 16 MiB for what was around
                      decisions.
    `file`            a file that gets every round, in place of the folder, up to 1 GiB; it replaces one, - is standard
                      output. Why none: it is what `koordebpf record` asks for.
    """

    folder: Path | None = Path("/var/lib/koordebpf")
    max_size_bytes: Annotated[int, Meta(ge=MIB)] = 64 * MIB
    file: Path | None = None
