"""Tries every signal on this host, attached and detached again within a second."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import socket
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import msgspec

from koordebpf.act.eviction_hook_settings import WebhookHook
from koordebpf.act.writer.places import Original, Places, Unusable, read_held
from koordebpf.attribution.kubelet_root import KubeletRoot
from koordebpf.attribution.owner import OwnerKind
from koordebpf.collect.cpu.owners import best_effort_root
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import NodeScope, open_scope
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import HOOK_GATES, KERNEL_FILES, STRATEGIES
from koordebpf.errors import ConfigError, SupportError, os_reason
from koordebpf.events import run_queue
from koordebpf.events.layout import check_cpu_layout
from koordebpf.jobs.usage_series.cpu import cpu_mounts
from koordebpf.kernel.backends.select import WantedBackend, wanted_backend
from koordebpf.kernel.bpf.deadman import support_of_dead_man
from koordebpf.kernel.bpf.iterators import CpuHierarchy, support_of_cpu_pass
from koordebpf.kernel.bpf.sched_latency import support_of_tracing
from koordebpf.kernel.bpf.throttle_events import support_of_throttle_events
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, find_controllers, find_memory_hierarchy
from koordebpf.kernel.host.cpu_support import support_of_isolation, support_of_suppression
from koordebpf.kernel.host.machine import host_facts
from koordebpf.kernel.host.strategy_files import support_of_strategies
from koordebpf.kernel.host.support import host_line, support_of_files
from koordebpf.kernel.signals import SUMS_ONLY_NS, BackendName, SignalSource
from koordebpf.kube.cache.objects import Pod
from koordebpf.policy.guards import is_unusual
from koordebpf.policy.reconcile import FileKey
from koordebpf.report.http.local_socket import agent_socket, asked
from koordebpf.report.known import KnownObjects
from koordebpf.state.balance import memory_balance
from koordebpf.strategies.cpu_burst.decide import CPU_BURST
from koordebpf.strategies.cpu_burst.values import is_above_limit, written_limits
from koordebpf.tools.doctor.page import AskedSources, BackendTry, DoctorReport, doctor_report
from koordebpf.tools.doctor.remedies import fixes_of
from koordebpf.tools.pod_explain import known_originals
from koordebpf.units import format_bytes

_HOOK_COST = "evictions are made all the same, and this is not called"
_HOOK_REMEDY = "Mount it into the agent's container, readable, and writable by root alone."
_NRI = "NRI"
_NRI_COST = "containers are adjusted by the reconciler, up to 10 s after their start"
_CONNECT_S = 2.0
_QUOTA_SIGNAL = "CPU quotas"
_SHOWN_QUOTAS = 3
_QUOTA_REMEDY = (
    "If no koordlet runs here, which would raise them now: restart these pods, or write the quota of the limit into "
    "these files."
)
_QUOTA_COST = (
    "they keep it, also on an overloaded node and after the agent: what koordlet's CPU burst left raised counts as "
    "the container's own"
)
_MEMORY_SIGNAL = "memory in use"
_MEMORY_REMEDY = (
    "Look for what holds it: a driver, a file system's cache, a virtual machine outside of its pod's cgroup."
)
_MEMORY_COST = (
    "while the node is short by it alone, pods that do not release enough by themselves stay"
    " (guards.unexplainedMaxRatio)"
)
_KOORDLET = "koordlet"  # the value of its pods' label koord-app, and the name of their container
_ORDER: tuple[BackendName, ...] = ("co-re", "bcc", "files")
_SHOWN_ROOTS = 4
_PASSED_OVER = "backend "  # how kernel/backends/select.py begins the signal's name of one that failed


def eviction_hook_sources(config: AgentConfig) -> tuple[SignalSource, ...]:
    """Return one line for each hook that is set: whether its files are there."""
    return tuple(map(_hook_line, config.eviction_hooks.webhooks))


def _hook_line(hook: WebhookHook) -> SignalSource:
    signal = f"eviction hook {hook.name}"
    problem = _unreadable(hook.url_file, hook.ca_file, hook.headers_file)
    if problem is None:
        return SignalSource(signal, "posts to its URL", True)
    return SignalSource(signal, "", False, problem, _HOOK_REMEDY, _HOOK_COST)


def _unreadable(*paths: str | None) -> str | None:
    for path in paths:
        if path is not None:
            try:
                with Path(path).open("rb"):
                    pass
            except OSError as error:
                return f"{path}: {error.strerror}"
    return None


def nri_sources(config: AgentConfig) -> tuple[SignalSource, ...]:
    """Return one line where `nri.enabled` is set; () where it is not."""
    settings = config.nri
    if not settings.enabled:
        return ()
    if not any(config.feature_gates.get(gate) for gate in HOOK_GATES):
        remedy = f"Switch one on in featureGates: {', '.join(sorted(HOOK_GATES))}."
        return (SignalSource(_NRI, "", False, "no runtime hook's feature gate is on", remedy, _NRI_COST),)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trunk:
        trunk.settimeout(_CONNECT_S)
        try:
            trunk.connect(settings.socket)
        except (FileNotFoundError, ConnectionRefusedError):
            remedy = (
                "Enable NRI in the runtime: containerd 1.7 has disable = false under"
                ' [plugins."io.containerd.nri.v1.nri"], later ones have it on, CRI-O has enable_nri = true; and mount'
                " the socket's directory into the pod."
            )
            return (SignalSource(_NRI, "", False, f"no runtime listens at {settings.socket}", remedy, _NRI_COST),)
        except OSError as error:
            reason = f"{settings.socket}: {os_reason(error)}"
            return (SignalSource(_NRI, "", False, reason, "Run as root, as the runtime does.", _NRI_COST),)
    return (SignalSource(_NRI, f"a runtime listens at {settings.socket}", True),)


class Quotas(msgspec.Struct, frozen=True):
    """One reading: how many quotas were compared, and of the cgroups above their limits a sentence each."""

    compared: int
    above: dict[str, str]
    has_koordlet: bool


def quota_notes(watch: NodeWatch, run_dir: Path) -> list[SignalSource]:
    """Return a line on the quotas of the containers whose limits a running agent knows; [] where none runs or has pods.

    Of a container that the agent itself has raised it is the quota before that. Agent, kubelet and runtime may write
    between two looks: what one reading finds above its limit has to be so in the next one.
    """
    read = _read_quotas(watch, run_dir)
    if read is not None and read.above:
        again = _read_quotas(watch, run_dir)
        above = {path: found for path, found in again.above.items() if path in read.above} if again else {}
        read = msgspec.structs.replace(again, above=above) if again else None
    if read is None or not read.compared:
        return []
    if not (above := read.above):
        return [SignalSource(_QUOTA_SIGNAL, f"none of {read.compared} is above its container's limit", works=True)]
    how = f"{len(above)} of {read.compared} are above their containers' limits"
    if read.has_koordlet:
        return [
            SignalSource(
                _QUOTA_SIGNAL, f"{how}: koordlet runs here, whose CPU burst raises and lowers them", works=True
            )
        ]
    reason = "; ".join(sorted(above.values())[:_SHOWN_QUOTAS]) + ("; …" if len(above) > _SHOWN_QUOTAS else "")
    return [SignalSource(_QUOTA_SIGNAL, how, True, reason, _QUOTA_REMEDY, _QUOTA_COST)]


# None: no agent answers.
def _read_quotas(watch: NodeWatch, run_dir: Path) -> Quotas | None:
    try:
        socket = agent_socket(run_dir)
        pods = msgspec.json.decode(asked(socket, "known"), type=KnownObjects).pods or ()
    except (ConfigError, OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    limits = {each.container_id: each for pod in pods for each in written_limits(pod)}
    places, originals = Places(find_controllers()), known_originals(socket.parent, run_dir)
    compared, above = 0, dict[str, str]()
    for owner in filter(None, (watch.index.owner(each) for each in watch.index)):
        if owner.kind is not OwnerKind.CONTAINER or not (limit := limits.get(owner.container_id or "")):
            continue
        path = owner.path.strip("/")
        if (found := _quota_and_period(places, path, originals)) is None:
            continue
        compared += 1
        quota, period = found
        if is_above_limit(quota, period, limit.millicpu):
            above[path] = f"{limit.name} has {quota} of {period} µs for a limit of {limit.millicpu}m"
    return Quotas(compared, above, any(map(_is_koordlet, pods)))


def _quota_and_period(places: Places, path: str, originals: dict[FileKey, Original]) -> tuple[int, int] | None:
    key = (path, CgroupFile.CPU_QUOTA)
    try:
        held, period = read_held(places, key, 0), read_held(places, (path, CgroupFile.CPU_PERIOD), 0).value
    except Unusable:
        return None
    original = originals.get(key)
    is_ours = original is not None and original.inode == held.inode
    quota = places.parse(key, original.text) if original is not None and is_ours else held.value
    return (quota, period) if isinstance(quota, int) and isinstance(period, int) else None


def _is_koordlet(pod: Pod) -> bool:
    if pod.status.phase != "Running":
        return False
    is_labelled = (pod.metadata.labels or {}).get("koord-app") == _KOORDLET
    return is_labelled or any(each.name == _KOORDLET for each in pod.spec.containers)


def examine(
    node_cgroup: Path | None,
    backend: WantedBackend | None = None,
    cgroup_root: str | None = None,
    config: AgentConfig | None = None,
) -> DoctorReport:
    """Return the backend, how each signal is measured here, and what is missing; with `config` what its features lack.

    Raises:  ConfigError: `node_cgroup` is none of the memory hierarchy, `cgroup_root` none of a kubelet, or
             KOORDEBPF_BACKEND none of the backends.
    """
    wanted = wanted_backend(backend)
    sources: list[SignalSource] = []
    taken: BackendName | None = None
    asked, notes = AskedSources(), tuple[SignalSource, ...]()
    try:
        scope = open_scope(find_memory_hierarchy(), node_cgroup, cgroup_root)
        sources += support_of_files(scope.hierarchy)
        sources.append(support_of_tracing(run_queue.check_layout))
        sources.append(_usage_of_pods(scope))
        if config:
            sources += [support_of_dead_man()] if config.dead_man.action != "nothing" else []
            sources += [support_of_throttle_events()] if config.feature_gates.get(CPU_BURST.gate) else []
            sources += [*nri_sources(config), *eviction_hook_sources(config)]
        with NodeWatch(scope, None, SUMS_ONLY_NS, backend=wanted) as watch:
            taken, quality = watch.signals.name, watch.quality.sentence
            sources += [*watch.signals.sources, kubelet_root_source(watch.index.kubelet), *_suppression(scope, watch)]
            notes = (*quota_notes(watch, (config or AgentConfig()).run_dir), *_memory_note(watch))
            if config:
                asked = AskedSources(own_sources(config, scope, watch), _strategies(config, watch))
    except SupportError as error:
        sources.append(SignalSource(error.feature, "", False, error.reason, error.remedy, "the agent cannot run"))
        quality = ""
    tries = backend_tries(sources, wanted, taken)
    sources = [source for source in sources if not source.signal.startswith(_PASSED_OVER)]
    # A backend that failed gets a fix too: it would have been the better one.
    failed = [
        SignalSource(f"backend {each.name}", "", False, each.reason, each.remedy) for each in tries if each.failed
    ]
    fixes = fixes_of([*sources, *failed], host_facts())
    return doctor_report(host_line(), tries, sources, fixes, quality, asked, notes)


# No pod is known here by name, so that each counts by its cgroup.
def _memory_note(watch: NodeWatch) -> list[SignalSource]:
    with contextlib.closing(MemoryCollector(watch.scope, watch.signals, watch.index)) as collector:
        measured = collector.everything({}, (), None)
    balance = memory_balance(measured, measured.node.used_bytes)
    if balance is None:
        return []
    parts = ", ".join(f"{name} {format_bytes(held)}" for name, held in balance.parts().items())
    how = f"{format_bytes(balance.used_bytes)}: {parts}"
    if not is_unusual(balance):
        return [SignalSource(_MEMORY_SIGNAL, how, works=True)]
    return [SignalSource(_MEMORY_SIGNAL, how, False, balance.sentence(), _MEMORY_REMEDY, _MEMORY_COST)]


def own_sources(config: AgentConfig, scope: NodeScope, watch: NodeWatch) -> tuple[SignalSource, ...]:
    """Return what strategies that are on find out by themselves."""
    modules = dict.fromkeys(each.doctor_module for each in STRATEGIES if config.feature_gates.get(each.gate))
    found = [import_module(module).sources(config, scope, watch) for module in modules if find_spec(module)]
    return tuple(itertools.chain.from_iterable(found))


def kubelet_root_source(kubelet: KubeletRoot) -> SignalSource:
    """Return the line on where the kubelet's cgroups begin."""
    # Without pods none is learned: several are named, and which one is the kubelet's is left open.
    name, paths = "kubelet's cgroup root", ", ".join(each.path for each in kubelet.counting[:_SHOWN_ROOTS])
    if kubelet.is_given and not paths:
        return SignalSource(name, "", False, kubelet.missing(), kubelet.remedy(), "the agent evicts no pod")
    if kubelet.is_given:
        return SignalSource(name, f"{kubelet.path}, as given: {paths}", True)
    if len(roots := list(dict.fromkeys(f"/{each.root}" for each in kubelet.counting))) > 1:
        seen = ", ".join(roots[:_SHOWN_ROOTS])
        return SignalSource(name, f"one of {seen}: learned from the pods, or --cgroup-root", True)
    return SignalSource(name, f"{roots[0]}: {paths}" if roots else "learned once the kubelet has made it", True)


def _usage_of_pods(scope: NodeScope) -> SignalSource:
    memory = ControllerMount(scope.hierarchy.version, scope.hierarchy.mount_point)
    accounting = cpu_mounts(find_controllers(), memory)[0]
    root = CpuHierarchy(accounting.mount_point / scope.node_path, accounting.version == 2)
    return support_of_cpu_pass(root, check_cpu_layout)


def _suppression(scope: NodeScope, watch: NodeWatch) -> list[SignalSource]:
    owned = {owner.path.strip("/"): owner for each in watch.index if (owner := watch.index.owner(each))}
    online_cpus = os.sysconf("SC_NPROCESSORS_ONLN")
    by_policy = support_of_suppression(find_controllers(), scope.node_path, best_effort_root(owned), online_cpus)
    return [*by_policy, *support_of_isolation()]


def _strategies(config: AgentConfig, watch: NodeWatch) -> tuple[SignalSource, ...]:
    owners = [owner for each in watch.index if (owner := watch.index.owner(each))]
    pod = next((Path(each.path.strip("/")) for each in owners if each.kind is OwnerKind.POD), None)
    parts = (each for each in KERNEL_FILES if config.feature_gates.get(each[0]))
    return support_of_strategies(parts, pod, find_controllers())


def backend_tries(
    sources: Sequence[SignalSource], wanted: WantedBackend, taken: BackendName | None
) -> list[BackendTry]:
    """Return for each backend whether it is taken, else why not; where none is, the last source says why."""
    failed = {source.signal.removeprefix(_PASSED_OVER): source for source in sources}
    tries = []
    for name in _ORDER:
        if name == taken:
            tries.append(BackendTry(name, True))
        elif source := failed.get(name):
            tries.append(BackendTry(name, False, source.reason, source.remedy, failed=True))
        elif wanted not in ("auto", name):
            tries.append(BackendTry(name, False, f"not tried: {wanted} is wanted"))
        elif taken is None:
            tries.append(BackendTry(name, False, sources[-1].reason, sources[-1].remedy, failed=True))
        else:
            tries.append(BackendTry(name, False, f"not needed: {taken} works"))
    return tries
