"""The agent's own settings, as one checked value. Koordinator's settings come from the NodeSLO, not from here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from koordebpf.act.eviction_hook_settings import EvictionHookSettings
from koordebpf.act.writer.settings import WriterSettings
from koordebpf.decision.dead_man import DeadManSettings
from koordebpf.decision.strategies import (
    FEATURE_GATES,
    JOB_GATES,
    OWN_GATES,
    QOS_GATES,
    STRATEGIES,
    StrategySettings,
    settings_of,
)
from koordebpf.errors import ConfigError
from koordebpf.jobs.node_metric.values import NodeMetricSettings
from koordebpf.jobs.prediction.values import PredictionSettings
from koordebpf.jobs.usage_series.values import UsageSettings
from koordebpf.kernel.backends.select import WantedBackend
from koordebpf.kube.config_map import ConfigMapName
from koordebpf.kube.runtime_settings import NriSettings, RuntimeProxySettings
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.foresight import EvictionWarningSettings
from koordebpf.policy.guards import EmergencySettings, GuardLimits
from koordebpf.policy.strategy import NamedExecutor
from koordebpf.policy.taint import NodeMarkSettings
from koordebpf.slo import feature_gates
from koordebpf.state.series.store import SeriesSettings
from koordebpf.state.view import ExecutorName
from koordebpf.strategies.cpu_suppress.values import WakeSettings
from koordebpf.units import MIB, NS_PER_MS, NS_PER_S

SourceName = Literal["file", "kubelet", "api"]
Compat = Literal["none", "strict"]
T = TypeVar("T", bound=msgspec.Struct)
# How old the view of pods may get: a healthy watch proves itself by bookmarks and new requests, at most 75 s apart
# (kube/cache/reflector.py); a kubelet answers each 10 s.
_PODS_MAX_AGE_NS: Mapping[SourceName, int] = {"api": 90 * NS_PER_S, "kubelet": 30 * NS_PER_S, "file": 30 * NS_PER_S}
_ASKING_THE_SERVER = frozenset({"api", "delete"})


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


class ShadowConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One configuration that is judged beside the acting one. `settings` differ from it, by name; none: it enforces."""

    name: Annotated[
        str,
        msgspec.Meta(
            pattern="^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", description="a name of small letters, digits and dashes"
        ),
    ]
    settings: dict[str, bool | int | float | str | None] = {}


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


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent runs with; the reasons are part of the configuration file's schema.

    `source`          where pods, Node and NodeSLO come from. Why file: it needs no cluster, so that a first try works
                      anywhere.
    `files`           source file: YAML or JSON with Pods, Node, NodeSLO or slo-controller-config, PodDisruptionBudgets
                      with their status, or directories of such. Source kubelet: the NodeSLO, of which kubelets know
                      nothing, and budgets. Why none: it cannot be guessed.
    `node_name`       this node's name, for sources api and kubelet. Why none: the DaemonSet sets NODE_NAME.
    `kubeconfig`      credentials for the API server. Why none: as kubectl, $KUBECONFIG, then ~/.kube/config, then the
                      pod's ServiceAccount.
    `kube_context`    the context of the kubeconfig. Why none: its current-context.
    `kubelet_url`     source kubelet, and what asks for kubelet's configuration (NodeTopologyReport): its HTTPS address.
                      Why none: nodes differ in it.
    `kubelet_token_file` source kubelet: a token. Why none: the pod's ServiceAccount token.
    `kubelet_ca_file` source kubelet: the CA of its serving certificate. Why none: the system's certificates.
    `kubelet_insecure` source kubelet: do not verify its certificate. Why false: a forged list of pods chooses victims.
    `config_map`      the ConfigMap with Koordinator's settings; its own fields say why.
    `node_cgroup`     the node is this cgroup with a memory limit, as in kind. Why none: the machine is the node.
    `cgroup_root`     the kubelet's own --cgroup-root, / or /custom, below the node: only cgroups there are pods'. Why
                      none: it is learned from where the node's own pods are found first, and stays so; a second
                      kubepods is named in the log. Give it where there are several kubelets (kind on a node).
    `run_dir`         a folder on a tmpfs: which agent acts on this node, and what it is carrying out. Why /run: it ends
                      with the machine, as every pod does. All agents of a machine have to share it.
    `stand_by`        with --enforce: where another agent acts on this node, watch until it ends and act then. Why
                      false: with --enforce users expect an agent that acts. The DaemonSet has it, whose update
                      begins the new pod before it ends the old one.
    `backend`         where signals come from. Why auto: the best that works here, and `koordebpf doctor` shows which.
    `min_stall_ns`    stalls from this duration on are sent one by one, shorter ones only counted. Why 1 ms: direct
                      reclaim below it is what healthy nodes do all day.
    `sample_floor_ns` between two looks at the node when the threshold is near. Why 4 ms: epoll rounds up to the next,
                      and a scan of 330 cgroups takes 0.3 ms of it.
    `sample_cap_ns`   the same when it is far. Why 1 s: as often as koordlet looks; BPF and PSI wake the agent earlier.
    `executor`        way of evicting: api creates an Eviction, cri stops its containers, which the kubelet may start
                      again, cgroup kills all of its processes. Why: cgroup with source file, which knows no API server,
                      else api, which respects PodDisruptionBudgets.
    `cri_socket`      executor cri: the container runtime's socket. Why none: the first that is there of containerd's,
                      CRI-O's and k3s's.
    `kill_after_s`    executor api: kill the cgroup of a pod not evicted for so long, or evicted and holding its memory
                      for so long and for longer than its grace period, where the memory that it holds is what is short.
                      Why none: it passes over PodDisruptionBudgets and grace periods.
    `lift_limits`     kills by cgroup: lift the CPU quota and weight of the pod while it dies, and restore them where
                      its cgroup survives. Why false: on Linux 6.18 that saves no time; kernels whose exiting tasks are
                      throttled have not been measured.
    `enforce`         act. Why false: an agent that was only tried out must not evict.
    `feature_gates`   the feature gate of Koordinator; StallEvict is koordebpf's own. Why: BEMemoryEvict and
                      BECPUSuppress are on, because the NodeSLO and --enforce have to allow it too and a third switch
                      would only hide what would have been done; others are off, as in koordlet, and so is what koordlet
                      may do on the same node. Under compat: strict the strategies' are as in koordlet.
    `compat`          strict restores Koordinator's own choices where that is safe, see deploy/koordinator.md. Why none:
                      each of them is one that its users complain of.
    `listen`          HOST:PORT of /metrics, empty for none; it answers /healthz and /readyz too, as far as its clients
                      leave room. Why loopback: who may read it from elsewhere is the operator's decision.
    `probe_listen`    HOST:PORT of /healthz and /readyz alone, empty for none; None: the host of report.listen, its port
                      + 2. Why a port of its own: clients of the metrics cannot keep the kubelet's probes from an
                      answer.
    `audit`           a file for one JSON line per plan or changed file, - for standard output. It is rotated by size,
                      64 MiB at most. Lines that cannot be written wait in memory, 4,000 or 4 MiB at most. Why none:
                      which disk may have them is the operator's decision.
    `frames`          a file for one JSON line per round, with everything it was decided from: `koordebpf plan` decides
                      it again. It is rotated by size, 128 MiB at most. Why none: a line is some hundred KiB on a
                      large node, and holds what the pods' objects hold.
    `koordinator_metrics` Koordinator's names too, as koordlet_pod_eviction. Why true: dashboards and alerts that were
                      made for koordlet work; where both run, their jobs tell them apart.
    `pod_series`      the most series of metrics that have a pod's name in a label, 0 for none; only pods that stalled
                      or grow have any; what is above it is counted as _other. Why 70: with the node's own 200.
    `log_format`      of the log on standard error. Why text: people read it first.
    `lock_memory`     lock the agent into memory and raise its priority. Why true: an evictor that is itself reclaimed
                      is useless.
    """

    source: SourceName = "file"
    files: tuple[Path, ...] = ()
    node_name: str | None = None
    kubeconfig: Path | None = None
    kube_context: str | None = None
    kubelet_url: str | None = None
    kubelet_token_file: Path | None = None
    kubelet_ca_file: Path | None = None
    kubelet_insecure: bool = False
    config_map: ConfigMapName = ConfigMapName()
    node_cgroup: Path | None = None
    cgroup_root: str | None = None
    run_dir: Path = Path("/run/koordebpf")
    stand_by: bool = False
    backend: WantedBackend = "auto"
    min_stall_ns: int = NS_PER_MS
    sample_floor_ns: Annotated[int, Meta(ge=NS_PER_MS)] = 4 * NS_PER_MS
    sample_cap_ns: Annotated[int, Meta(ge=NS_PER_MS, le=10 * NS_PER_S)] = NS_PER_S
    executor: ExecutorName = "cgroup"
    cri_socket: Path | None = None
    kill_after_s: float | None = None
    lift_limits: bool = False
    enforce: bool = False
    feature_gates: Mapping[str, bool] = msgspec.field(default_factory=lambda: dict(FEATURE_GATES))
    compat: Compat = "none"
    eviction: EvictSettings = EvictSettings()
    guards: GuardLimits = GuardLimits()
    strategies: StrategySettings = StrategySettings()
    wake: WakeSettings = WakeSettings()
    writer: WriterSettings = WriterSettings()
    emergency: EmergencySettings = EmergencySettings()
    dead_man: DeadManSettings = DeadManSettings()
    node_mark: NodeMarkSettings = NodeMarkSettings()
    eviction_warning: EvictionWarningSettings = EvictionWarningSettings()
    eviction_hooks: EvictionHookSettings = EvictionHookSettings()
    prediction: PredictionSettings = PredictionSettings()
    series: SeriesSettings = SeriesSettings()
    usage: UsageSettings = UsageSettings()
    node_metric: NodeMetricSettings = NodeMetricSettings()
    nri: NriSettings = NriSettings()
    runtime_proxy: RuntimeProxySettings = RuntimeProxySettings()
    recorder: RecorderSettings = RecorderSettings()
    shadow: ShadowSettings = ShadowSettings()
    listen: str = "127.0.0.1:9320"
    probe_listen: str | None = None
    audit: Path | None = None
    frames: Path | None = None
    koordinator_metrics: bool = True
    pod_series: Annotated[int, Meta(ge=0, le=2_000)] = 70
    log_format: Literal["text", "json"] = "text"
    lock_memory: bool = True


def defaults_for(source: SourceName, compat: Compat) -> AgentConfig:
    """Return the defaults that go with this source and this compatibility."""
    gates, eviction = dict(FEATURE_GATES), EvictSettings()
    if compat == "strict":
        gates = {name: {**feature_gates.KOORDLET_GATES, **OWN_GATES, **JOB_GATES, **QOS_GATES}[name] for name in gates}
        eviction = EvictSettings(
            strict_compat=True, prefer_aggressor=False, spread_owners=False, max_grace_seconds=None
        )
    return AgentConfig(
        source=source,
        compat=compat,
        executor="cgroup" if source == "file" else "api",
        feature_gates=gates,
        eviction=eviction,
        guards=GuardLimits(pods_max_age_ns=_PODS_MAX_AGE_NS[source]),
    )


def with_values(base: T, given: Mapping[str, Any]) -> T:
    """Return `base` with what is given; mappings are laid over structs and mappings, at any depth."""
    changes: dict[str, Any] = {}
    for name, value in given.items():
        below = getattr(base, name)
        if isinstance(below, msgspec.Struct):
            changes[name] = with_values(below, value)
        elif isinstance(below, Mapping):
            changes[name] = {**below, **value}
        else:
            changes[name] = value
    return replace(base, **changes)


def named_gates(given: Sequence[str]) -> tuple[dict[str, bool], tuple[str, ...]]:
    """Return what is said of the gates of this agent, and the names of others that koordlet has.

    Raises:  ConfigError: a gate that koordlet does not have, or a value that is neither true nor false.
    """
    named = feature_gates.parse_feature_gates(given, own=OWN_GATES)
    here = {name: value for name, value in named.items() if name in FEATURE_GATES}
    return here, tuple(name for name in named if name not in FEATURE_GATES)


def named_executors(config: AgentConfig) -> tuple[NamedExecutor, ...]:
    """Return the executors that settings name; none of strategies that are off."""
    is_on = config.feature_gates.get
    asked = [each for each in STRATEGIES if is_on(each.gate)]
    return tuple(named for each in asked for named in each.executors_named(settings_of(each, config)))


def asks_the_server(config: AgentConfig) -> bool:
    """Tell whether one of them needs the API server."""
    return any(each.executor in _ASKING_THE_SERVER for each in named_executors(config))


def check_executors(config: AgentConfig) -> None:
    """Refuse an executor that this source cannot have.

    Raises:  ConfigError: it asks the API server, and pods are read from files.
    """
    for each in named_executors(config):
        if config.source == "file" and each.executor in _ASKING_THE_SERVER:
            raise ConfigError(each.place, each.value, "needs source api or kubelet: files know no API server")
