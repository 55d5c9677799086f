"""What SystemConfig is set by, and what is measured."""

from __future__ import annotations

from typing import Annotated

import msgspec

from koordebpf.slo.strategies.system import SystemStrategy


class SystemConfigSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the NodeSLO may not do to the kernel.

    `most_min_free_percent` a minFreeKbytesFactor that would keep more of the memory free is refused. Why 10: the kernel
                            keeps 0.3 % of 24 GiB by itself; too high a value makes it kill processes at once
                            (Documentation/admin-guide/sysctl/vm.rst). koordlet takes up to 10 GiB of any node.
    """

    most_min_free_percent: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10


class SystemMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of one moment. `strategy` is spec.systemStrategy; None: there is no NodeSLO."""

    strategy: SystemStrategy | None = None
