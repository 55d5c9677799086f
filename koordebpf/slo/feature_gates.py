"""Feature gates: what koordlet's `--feature-gates` may name and this agent adds to them, and how they are read.

Source: koordinator pkg/features/koordlet_features.go; k8s.io/component-base featuregate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from koordebpf.errors import ConfigError
from koordebpf.slo.manager.shapes import no_such

# koordlet's gates and their defaults; those that are on are beta, the others alpha.
_BETA = ("BECPUSuppress", "CPUBurst", "RdtResctrl", "NodeTopologyReport")
_ALPHA = (
    *("AuditEvents", "AuditEventsHTTPHandler", "BECPUManager", "BECPUEvict", "CPUEvict", "CPUAllocatableEvict"),
    *("BEMemoryEvict", "MemoryEvict", "MemoryAllocatableEvict", "SystemConfig", "ResctrlCollector"),
    *("CgroupReconcile", "Accelerators", "RDMADevices", "CPICollector", "Libpfm4", "PSICollector", "BlkIOReconcile"),
    *("ColdPageCollector", "HugePageReport", "PodResourcesProxy", "HamiCoreVGPUMonitor", "PerCPUMetric"),
    "NodeMetricPromMetrics",
)
KOORDLET_GATES: Mapping[str, bool] = {**dict.fromkeys(_BETA, True), **dict.fromkeys(_ALPHA, False)}
_STAGES = {"AllAlpha": _ALPHA, "AllBeta": _BETA}

# strconv.ParseBool
_BOOLS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


def parse_feature_gates(
    given: Sequence[str], path: str = "--feature-gates", *, own: Collection[str] = ()
) -> dict[str, bool]:
    """Return what `Name=true,Other=false` sets, the last of a name counting; each text may hold several.

    AllAlpha and AllBeta stand for the gates of their stage that are not named themselves. `own` are gates that koordlet
    has not, so that none of its stages stands for them.

    Raises:  ConfigError: there is no such gate, or a value is no boolean.
    """
    named: dict[str, bool] = {}
    for entry in (part.strip() for text in given for part in text.split(",")):
        if not entry:
            continue
        name, _, value = (part.strip() for part in entry.partition("="))
        if name not in KOORDLET_GATES and name not in own and name not in _STAGES:
            raise ConfigError(path, entry, no_such(name, (*KOORDLET_GATES, *_STAGES, *own), "gate"))
        if value not in _BOOLS:
            raise ConfigError(path, entry, "must be NAME=true or NAME=false")
        named[name] = _BOOLS[value]
    staged = {name: named[stage] for stage, names in _STAGES.items() if stage in named for name in names}
    return staged | {name: value for name, value in named.items() if name not in _STAGES}
