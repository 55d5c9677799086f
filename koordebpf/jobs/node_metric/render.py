"""The status of a NodeMetric, field by field as koordlet reports it. Pure.

Source: koordinator pkg/koordlet/statesinformer/impl/states_nodemetric.go; apis/slo/v1alpha1/nodemetric_types.go.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final, Literal, get_args

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.quantity import cpu_text, memory_text
from koordebpf.slo.go_duration import duration_ns, go_duration
from koordebpf.slo.pods.qos import koord_priority, koord_qos_or_default
from koordebpf.slo.strategies.host_applications import HostApplication
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.prediction import Amounts, ProdPrediction
from koordebpf.state.series import kinds
from koordebpf.state.series.aggregate import aggregated
from koordebpf.state.series.kinds import SeriesKey
from koordebpf.state.series.store import SeriesStore
from koordebpf.units import NS_PER_S

MemoryPolicy = Literal["usageWithoutPageCache", "usageWithHotPageCache", "usageWithPageCache"]
_LEAST_AGGREGATE_S: Final = 60
_LEAST_INTERVAL_S: Final = 30
_PLACE: Final = "spec.metricCollectPolicy"
_MOST_S: Final = 86_400  # Why: of a longer one no series of a node is
_MOST_DURATIONS: Final = 16  # Why: each one is 10 numbers in each report
Json = dict[str, Any]
GPU_CORE: Final = "koordinator.sh/gpu-core"
GPU_MEMORY: Final = "koordinator.sh/gpu-memory"
GPU_MEMORY_RATIO: Final = "koordinator.sh/gpu-memory-ratio"
_Gpu = tuple[str, str]  # minor number and UUID, as in the keys of series
Resources = dict[str, str]
_AGGREGATIONS: Final = ("avg", "p50", "p90", "p95", "p99")
_MOST_NUMA_NODES: Final = 1024  # CONFIG_NODES_SHIFT is 10 at most
_PODS_A_STEP: Final = 8  # Why: 0.3 ms, and the loop's thread is wanted each millisecond under pressure


# spec.metricCollectPolicy: over which times usage is reported, how often, and what counts as memory.
#
# Source: koordinator apis/slo/v1alpha1/nodemetric_types.go, NodeMetricCollectPolicy; pkg/koordlet/statesinformer/impl/
# states_nodemetric.go, defaultNodeMetricSpec.


class CollectPolicy(msgspec.Struct, frozen=True):
    """The effective policy. The defaults are koordlet's.

    `aggregate_ns`  usage is the average over so long.
    `interval_ns`   between two reports.
    `durations_ns`  of the aggregated usages, one entry of percentiles each.
    `memory`        what counts as memory of nodes, pods and host applications.
    """

    aggregate_ns: int = 300 * NS_PER_S
    interval_ns: int = 60 * NS_PER_S
    durations_ns: tuple[int, ...] = (300 * NS_PER_S, 600 * NS_PER_S, 1800 * NS_PER_S)
    memory: MemoryPolicy = "usageWithoutPageCache"


def collect_policy(spec: Any) -> CollectPolicy:
    """Return the policy of a NodeMetric's spec; fields that are absent or null have koordlet's defaults.

    What is shorter than koordlet's least (60 s of aggregation, 30 s between reports) counts as that.

    Raises:  ConfigError: a value of another type, not above zero or longer than a day, or an unknown memory policy.
    """
    written = _object(spec, "spec").get("metricCollectPolicy")
    policy = _object(written, _PLACE)
    default = CollectPolicy()
    aggregate_s = _seconds(policy, "aggregateDurationSeconds", default.aggregate_ns, _LEAST_AGGREGATE_S)
    interval_s = _seconds(policy, "reportIntervalSeconds", default.interval_ns, _LEAST_INTERVAL_S)
    memory = policy.get("nodeMemoryCollectPolicy", None)
    names = get_args(MemoryPolicy)
    if memory is not None and memory not in names:
        raise ConfigError(f"{_PLACE}.nodeMemoryCollectPolicy", memory, f"must be one of {', '.join(names)}")
    return CollectPolicy(
        aggregate_ns=aggregate_s * NS_PER_S,
        interval_ns=interval_s * NS_PER_S,
        durations_ns=_durations(policy) or default.durations_ns,
        memory=memory or default.memory,
    )


def _object(written: Any, path: str) -> dict[str, Any]:
    if written is None:
        return {}
    if not isinstance(written, dict):
        raise ConfigError(path, written, "must be an object")
    return written


def _seconds(policy: dict[str, Any], name: str, default_ns: int, least_s: int) -> int:
    written = policy.get(name)
    if written is None:
        return default_ns // NS_PER_S
    if isinstance(written, bool) or not isinstance(written, int) or not 0 < written <= _MOST_S:
        raise ConfigError(f"{_PLACE}.{name}", written, f"must be seconds, more than 0 and at most {_MOST_S}")
    return max(written, least_s)


# An empty list is none: Go leaves it out of JSON, and the default stays.
def _durations(policy: dict[str, Any]) -> tuple[int, ...]:
    place = f"{_PLACE}.nodeAggregatePolicy"
    written = _object(policy.get("nodeAggregatePolicy"), place).get("durations")
    if written is None:
        return ()
    if not isinstance(written, list) or len(written) > _MOST_DURATIONS:
        raise ConfigError(f"{place}.durations", written, f"must be a list of at most {_MOST_DURATIONS}")
    found = []
    for index, each in enumerate(written):
        path = f"{place}.durations[{index}]"
        ns = duration_ns(each, path)
        if not 0 < ns <= _MOST_S * NS_PER_S:
            raise ConfigError(path, each, "must be more than 0 and at most a day")
        found.append(ns)
    return tuple(dict.fromkeys(found))


# GPUs in the usages of a NodeMetric. Pure.
#
# Source: koordinator pkg/koordlet/statesinformer/impl/states_nodemetric.go, collectNodeGPUMetric;
# apis/scheduling/v1alpha1/device_types.go; apis/extension/device_share.go.


class Devices:
    """What a node and its pods use of GPUs: averages over a window of what the collector of GPUs appended.

    A GPU is left out where its usage or its memory as a whole was not measured in the window.
    """

    def __init__(self, usage: SeriesStore, now_ns: int, window_ns: int) -> None:
        """Look which GPUs there are, and who used them."""
        self._usage = usage
        self._window = now_ns, window_ns
        self._of_node: list[_Gpu] = [(minor, uuid) for _, minor, uuid in usage.keys(kinds.NODE_GPU_CORE)]
        self._of_pods: dict[str, list[_Gpu]] = defaultdict(list)
        for _, uid, minor, uuid in usage.keys(kinds.POD_GPU_CORE) if self._of_node else ():
            self._of_pods[uid].append((minor, uuid))

    def of_node(self) -> list[Json]:
        """Return `nodeUsage.devices`, by minor number."""
        return self._used(self._of_node, (kinds.NODE_GPU_CORE,), (kinds.NODE_GPU_MEMORY,))

    def of_pod(self, uid: str) -> list[Json]:
        """Return `podUsage.devices` of a pod, by minor number."""
        return self._used(self._of_pods.get(uid, []), (kinds.POD_GPU_CORE, uid), (kinds.POD_GPU_MEMORY, uid))

    def _used(self, gpus: list[_Gpu], core: tuple[str, ...], memory: tuple[str, ...]) -> list[Json]:
        found = []
        for minor, uuid in sorted(gpus, key=lambda gpu: int(gpu[0])):
            percent = self._usage.query((*core, minor, uuid), *self._window, "avg")
            used = self._usage.query((*memory, minor, uuid), *self._window, "avg")
            whole = self._usage.query((kinds.NODE_GPU_MEMORY_TOTAL, minor, uuid), *self._window, "latest")
            if percent is None or used is None or not whole:
                continue
            resources = {
                GPU_CORE: str(int(percent)),
                GPU_MEMORY: memory_text(int(used)),
                GPU_MEMORY_RATIO: str(int(100 * used / whole)),
            }
            # koordlet does not know whether a GPU is well, and its field has to be there.
            found.append({"type": "gpu", "id": uuid, "minor": int(minor), "health": False, "resources": resources})
        return found


class Reported(msgspec.Struct, frozen=True):
    """What a report is made of besides the series.

    `time` is that of the report, RFC 3339 in seconds.
    """

    now_ns: int
    time: str
    policy: CollectPolicy
    pods: Sequence[PodFacts]
    host_applications: Sequence[HostApplication] = ()


class _Memory(msgspec.Struct, frozen=True):
    # Kinds of node, pods and host applications.
    node: str
    pod: str
    host_application: str


# Of host applications hot pages are not measured apart.
_MEMORY: Final[dict[MemoryPolicy, _Memory]] = {
    "usageWithoutPageCache": _Memory(kinds.NODE_MEMORY, kinds.POD_MEMORY, kinds.HOST_APPLICATION_MEMORY),
    "usageWithPageCache": _Memory(
        kinds.NODE_MEMORY_WITH_PAGE_CACHE,
        kinds.POD_MEMORY_WITH_PAGE_CACHE,
        kinds.HOST_APPLICATION_MEMORY_WITH_PAGE_CACHE,
    ),
    "usageWithHotPageCache": _Memory(
        kinds.NODE_MEMORY_WITH_HOT_PAGES, kinds.POD_MEMORY_WITH_HOT_PAGES, kinds.HOST_APPLICATION_MEMORY
    ),
}


class Rendering:
    """One report, made in steps that are short each: `steps()`, and then `status`.

    `status` is None where the node's own usage was not measured: a report without it would say that all is free.
    `unmeasured` are pods without samples, which are left out of it.
    """

    def __init__(self, usage: SeriesStore, of: Reported) -> None:
        self.status: Json | None = None
        self.unmeasured: list[PodFacts] = []
        self.measured: list[PodFacts] = []  # to be predicted, as koordlet does
        self.now_ns = of.now_ns
        self._usage = usage
        self._of = of
        self._memory = _MEMORY[self._memory_policy()]
        self._devices = Devices(usage, of.now_ns, of.policy.aggregate_ns)

    def steps(self) -> Iterator[None]:
        """Make it; all of it is of the same moment, however long the caller waits between two steps."""
        of = self._of
        node = self._average((kinds.NODE_CPU,), (self._memory.node,))
        if node is None:
            return
        system = self._average((kinds.SYSTEM_CPU,), (kinds.SYSTEM_MEMORY,))
        info: Json = {"nodeUsage": _usage(node, self._devices.of_node())}
        of_node: list[Json] = []
        of_system: list[Json] = []
        for span_ns in of.policy.durations_ns:
            entry = yield from self._aggregated((kinds.NODE_CPU,), (self._memory.node,), span_ns)
            of_node.append(entry)
            entry = yield from self._aggregated((kinds.SYSTEM_CPU,), (kinds.SYSTEM_MEMORY,), span_ns)
            of_system.append(entry)
        info["aggregatedNodeUsages"] = of_node
        info["systemUsage"] = _usage(system)
        info["aggregatedSystemUsages"] = of_system
        # Their numbers begin at 0 and have no gaps, as koordlet demands of a node.
        numa = list(itertools.takewhile(lambda each: each is not None, map(self._numa, range(_MOST_NUMA_NODES))))
        if numa:
            info["numaUsages"] = numa
        pods: list[Json] = []
        in_order = sorted(of.pods, key=lambda pod: (pod.namespace, pod.name))
        for index, pod in enumerate(in_order):
            if index % _PODS_A_STEP == 0:
                yield
            if (rendered := self._pod(pod)) is None:
                self.unmeasured.append(pod)
            else:
                self.measured.append(pod)
                pods.append(rendered)
        yield
        status: Json = {"updateTime": of.time, "nodeMetric": info}
        if pods:
            status["podsMetric"] = pods
        if applications := self._host_applications():
            status["hostApplicationMetric"] = applications
        self.status = status

    # Where the kernel does not track idle pages, as koordlet without kidled.
    def _memory_policy(self) -> MemoryPolicy:
        policy = self._of.policy.memory
        if policy == "usageWithHotPageCache":
            window_ns = self._of.policy.aggregate_ns
            if self._usage.query((kinds.NODE_MEMORY_WITH_HOT_PAGES,), self._of.now_ns, window_ns, "avg") is None:
                return "usageWithoutPageCache"
        return policy

    def _average(self, cpu: SeriesKey, memory: SeriesKey) -> Resources | None:
        now_ns, window_ns = self._of.now_ns, self._of.policy.aggregate_ns
        cores = self._usage.query(cpu, now_ns, window_ns, "avg")
        used_bytes = self._usage.query(memory, now_ns, window_ns, "avg")
        return None if cores is None or used_bytes is None else _resources(cores, used_bytes)

    # Empty where the samples of CPU span less than half of the time, as in koordlet.
    def _aggregated(self, cpu: SeriesKey, memory: SeriesKey, duration_ns: int) -> Generator[None, None, Json]:
        usage: Json = {each: {} for each in _AGGREGATIONS}
        yield
        window = self._usage.window(cpu, self._of.now_ns, duration_ns)
        if window.values and 2 * (window.last_ns - window.first_ns) >= duration_ns:
            yield
            cores = aggregated(window.values, 0)
            yield
            window = self._usage.window(memory, self._of.now_ns, duration_ns)
            if window.values:
                yield
                used = aggregated(window.values, 0)
                usage = {each: _usage(_resources(getattr(cores, each), getattr(used, each))) for each in usage}
        return {"usage": usage, "duration": go_duration(duration_ns)}

    def _numa(self, number: int) -> Json | None:
        at = str(number)
        node = self._average((kinds.NODE_NUMA_CPU, at), (kinds.NODE_NUMA_MEMORY, at))
        if node is None:
            return None
        system = self._average((kinds.SYSTEM_NUMA_CPU, at), (kinds.SYSTEM_NUMA_MEMORY, at))
        return {"numaNodeID": number, "nodeUsage": _usage(node), "systemUsage": _usage(system)}

    def _pod(self, pod: PodFacts) -> Json | None:
        used = self._average((kinds.POD_CPU, pod.uid), (self._memory.pod, pod.uid))
        if used is None:
            return None
        labels = pod.pod.metadata.labels
        qos = koord_qos_or_default(labels, pod.kube_qos)
        priority = koord_priority(labels, pod.priority, qos)
        named = {"name": pod.name, "namespace": pod.namespace, "podUsage": _usage(used, self._devices.of_pod(pod.uid))}
        return named | _written(priority=priority, qos=qos)

    def _host_applications(self) -> list[Json]:
        found = []
        for each in sorted(self._of.host_applications, key=lambda application: application.name):
            cpu, memory = (kinds.HOST_APPLICATION_CPU, each.name), (self._memory.host_application, each.name)
            if (used := self._average(cpu, memory)) is not None:
                named = {"name": each.name, "usage": _usage(used)}
                found.append(named | _written(priority=each.priority, qos=each.qos))
        return found


def with_prediction(status: Json, prediction: ProdPrediction | None) -> Json:
    """Return a status with what is predicted of koord-prod pods.

    Where that is not known, koordlet's prodReclaimableMetric is empty and prodPeakMetric is left out.
    """
    reclaimable = prediction.reclaimable if prediction else None
    peak = prediction.peak if prediction else None
    said = {"prodReclaimableMetric": {"resource": _amounts(reclaimable)}}
    if peak is not None:
        said["prodPeakMetric"] = {"resource": _amounts(peak)}
    return status | said


def _amounts(amounts: Amounts | None) -> Json:
    if amounts is None:
        return {}
    return {"resources": {"cpu": cpu_text(amounts.cpu_millicpu), "memory": memory_text(amounts.memory_bytes)}}


# A ResourceList of what was measured; fractions of a millicpu and of a byte are cut off.
def _resources(cpu_cores: float, memory_bytes: float) -> Resources:
    return {"cpu": cpu_text(int(cpu_cores * 1000)), "memory": memory_text(int(memory_bytes))}


# A ResourceMap: Go leaves out a list of resources or devices that is empty.
def _usage(known: Resources | None, devices: list[Json] | None = None) -> Json:
    usage: Json = {} if known is None else {"resources": known}
    return usage | {"devices": devices} if devices else usage


def _written(**fields: str | None) -> Json:
    return {name: value for name, value in fields.items() if value}
