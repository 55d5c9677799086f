"""What an operator may set of shadow mode: section `shadow`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from koordebpf.units import MIB

Value = bool | int | float | str | None


class ShadowConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One configuration that is judged beside the acting one. `settings` differ from it, by name; none: it enforces."""

    name: Annotated[
        str,
        msgspec.Meta(
            pattern="^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", description="a name of small letters, digits and dashes"
        ),
    ]
    settings: dict[str, Value] = {}


class ShadowSettings(msgspec.Struct, frozen=True):
    """Configurations that are judged on the same rounds as the acting one, and never act.

    `configurations`     at most four, each a name and the settings that differ, as `eviction.coolTime: 2s` or
                         `memoryEvictThresholdPercent: 80`; without any it is the acting one, enforced. Why none: each
                         takes as long as a decision.
    `kubelet_hard_bytes` kubelet's hard threshold of memory.available. Why 100 MiB: kubelet's default.
    `folder`             keeps what they came to in the last week, in a folder `shadow`; None: only metrics have it. Why
                         /var/lib/koordebpf: a week is longer than an agent runs.
    """

    configurations: Annotated[tuple[ShadowConfiguration, ...], msgspec.Meta(max_length=4)] = ()
    kubelet_hard_bytes: int = 100 * MIB
    folder: Path | None = Path("/var/lib/koordebpf")
