"""What system configuration decides from: the part of the NodeSLO that is in force."""

from __future__ import annotations

import msgspec

from koordebpf.slo.strategies.system import SystemStrategy


class SystemMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of one moment. `strategy` is spec.systemStrategy; None: there is no NodeSLO."""

    strategy: SystemStrategy | None = None
