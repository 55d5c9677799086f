"""Tries every signal on this host, attached and detached again within a second."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from koordebpf.attribution.kubelet_root import KubeletRoot
from koordebpf.attribution.owner import OwnerKind
from koordebpf.collect.cpu.owners import best_effort_root
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import NodeScope, open_scope
from koordebpf.collect.usage.cpu import cpu_mounts
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import KERNEL_FILES
from koordebpf.errors import SupportError
from koordebpf.events import run_queue
from koordebpf.events.cpu_rows import check_cpu_layout
from koordebpf.kernel.backends.select import WantedBackend, wanted_backend
from koordebpf.kernel.bpf.cpu_iter import CpuHierarchy, support_of_cpu_pass
from koordebpf.kernel.bpf.deadman import support_of_dead_man
from koordebpf.kernel.bpf.sched_latency import support_of_tracing
from koordebpf.kernel.bpf.throttle_events import support_of_throttle_events
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, find_controllers, find_memory_hierarchy
from koordebpf.kernel.host.cpu_support import support_of_suppression
from koordebpf.kernel.host.machine import host_facts
from koordebpf.kernel.host.support import host_line, support_of_files
from koordebpf.kernel.node_files.strategy_files import support_of_strategies
from koordebpf.kernel.signals.interface import SUMS_ONLY_NS, BackendName, SignalSource
from koordebpf.report.pages.doctor import AskedSources, BackendTry, DoctorReport, doctor_report
from koordebpf.report.pages.remedies import fixes_of
from koordebpf.strategies.cpu_burst.decide import CPU_BURST
from koordebpf.tools.doctor_eviction_hooks import eviction_hook_sources
from koordebpf.tools.doctor_katalyst import katalyst_sources
from koordebpf.tools.doctor_nri import nri_sources
from koordebpf.tools.doctor_quotas import quota_notes

_ORDER: tuple[BackendName, ...] = ("co-re", "bcc", "files")
_SHOWN_ROOTS = 4
_PASSED_OVER = "backend "  # how kernel/backends/select.py begins the signal's name of one that failed


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
            notes = tuple(quota_notes(watch, (config or AgentConfig()).run_dir))
            if config:
                asked = AskedSources(katalyst_sources(config, scope, watch), _strategies(config, watch))
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
    return support_of_suppression(find_controllers(), scope.node_path, best_effort_root(owned), online_cpus)


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
