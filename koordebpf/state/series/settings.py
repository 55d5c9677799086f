"""How much of the past a node's series hold."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from koordebpf.units import MIB, NS_PER_S


class SeriesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the series of usage, and how they outlast a restart.

    `keep_ns`         how old a sample may get. Why 30 minutes: the longest window of a NodeMetric.
    `budget_bytes`    memory of all series of pods, containers and host applications; beyond it their oldest samples are
                      dropped. Why 16 MiB: 110 pods with 330 containers need 8 MiB for 30 minutes of CPU, memory and
                      throttling, 500 pods with 1,000 containers get 15 minutes of them.
    `snapshot_ns`     between two snapshots in the agent's folder below runDir, from which a restarted agent continues;
                      one more is written when the agent stops. Why 5 minutes: so much is lost when it is killed.
    """

    keep_ns: Annotated[int, Meta(ge=NS_PER_S, le=24 * 3600 * NS_PER_S)] = 1800 * NS_PER_S
    budget_bytes: Annotated[int, Meta(ge=MIB)] = 16 * MIB
    snapshot_ns: Annotated[int, Meta(ge=NS_PER_S)] = 300 * NS_PER_S
