"""The agent's own settings, as one checked value. Koordinator's settings come from the NodeSLO, not from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.units import NS_PER_MS, NS_PER_S

SourceName = Literal["file", "kubelet", "api"]
ExecutorName = Literal["api", "cgroup"]

# The gates this agent knows, and their defaults. Why on: nothing is evicted before NodeSLO's `enable` and --enforce say
# so too, so a third switch that is off by default would only hide what the agent would have done.
FEATURE_GATES: Mapping[str, bool] = {"BEMemoryEvict": True}


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent runs with."""

    source: SourceName = "file"
    files: tuple[Path, ...] = ()  # source file
    node_name: str | None = None  # sources api and kubelet
    kubeconfig: Path | None = None
    kubelet_url: str | None = None
    kubelet_token_file: Path | None = None
    kubelet_ca_file: Path | None = None
    kubelet_insecure: bool = False
    node_cgroup: Path | None = None  # None: the machine is the node
    executor: ExecutorName = "cgroup"
    enforce: bool = False
    feature_gates: Mapping[str, bool] = msgspec.field(default_factory=lambda: dict(FEATURE_GATES))
    listen: str | None = "127.0.0.1:9320"
    audit: Path | None = None  # None: no audit file; "-": standard output
    # Why 1 ms: direct reclaim below it is what healthy nodes do all day; koordebpf counts it and keeps quiet.
    min_stall_ns: int = NS_PER_MS
    # Why 4 ms: epoll rounds up to the next, and a scan of 330 cgroups takes 0.3 ms of it.
    sample_floor_ns: int = 4 * NS_PER_MS
    sample_cap_ns: int = NS_PER_S
    # Why 4 s: Koordinator's memory-evict-cool-time-seconds; it ends early once the memory is back.
    cool_time_ns: int = 4 * NS_PER_S
    evictions_per_minute: int = 10  # Why: act/guards.py GuardLimits
    pods_max_age_s: float | None = None  # None: what the source needs (agent/run.py)
    kill_after_s: float | None = None  # executor api: kill the cgroup when the API server fails for so long
    lock_memory: bool = True


def parse_feature_gates(given: Sequence[str]) -> dict[str, bool]:
    """Return every known gate with what `Name=true,Other=false` says of it.

    Raises:  ConfigError: an unknown gate, or a value that is neither true nor false.
    """
    gates = dict(FEATURE_GATES)
    for entry in ",".join(given).split(","):
        if not entry.strip():
            continue
        name, _, value = entry.strip().partition("=")
        if name not in gates:
            raise ConfigError("--feature-gates", entry, f"no such gate; known are {', '.join(gates)}")
        if value not in ("true", "false"):
            raise ConfigError("--feature-gates", entry, "must be NAME=true or NAME=false")
        gates[name] = value == "true"
    return gates
