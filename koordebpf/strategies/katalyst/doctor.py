"""Which parts of Katalyst's eviction manager work on this host: what each plugin lacks, by the agent's own code."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from koordebpf.collect.cluster_view import frame_of
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import NodeScope
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import settings_of
from koordebpf.errors import ConfigError, DecodeError, KubeDenied, KubeError
from koordebpf.kernel.signals import SignalSource
from koordebpf.kube.sources.file import FileSource
from koordebpf.printable import printable
from koordebpf.state.build import view_of_frame
from koordebpf.state.cnr import Cnr, cnr_of
from koordebpf.state.measured import Measured
from koordebpf.strategies.katalyst.decide import GATE, KATALYST_EVICTION
from koordebpf.strategies.katalyst.inner import INNER, judge_inside
from koordebpf.strategies.katalyst.measure import KatalystMemory, links_of
from koordebpf.strategies.katalyst.plugin import Seen
from koordebpf.strategies.katalyst.plugins.memory import NUMA_MEMORY, SYSTEM_MEMORY
from koordebpf.strategies.katalyst.registry import folder_problem, sockets_below
from koordebpf.strategies.katalyst.rootfs import RootfsCollector
from koordebpf.strategies.katalyst.run import open_rootfs
from koordebpf.strategies.katalyst.settings import KatalystSettings, is_listed
from koordebpf.strategies.katalyst.values import ImageFs, KatalystMeasured, RootfsMeasured

_DISK_S, _LOOK_S = 2.0, 0.02
_SUFFIX = "-eviction-plugin"
_REMEDIES = {
    "CustomNodeResource": "Install Katalyst's CRD and its agent, or switch the plugin off: eviction.katalyst.plugins.",
    "image filesystem": "Set eviction.katalyst.inner.rootfsPressure.imageFs.",
    "NUMA": "Run without --node-cgroup: a cgroup has no NUMA nodes of its own.",
}


def sources(config: AgentConfig, scope: NodeScope, watch: NodeWatch) -> tuple[SignalSource, ...]:
    """Return each plugin inside and what carries decisions out, as they work here.

    The node is measured and judged once, without pods: no pod is evicted, nothing is written.
    """
    settings = settings_of(KATALYST_EVICTION, config)
    with contextlib.ExitStack() as stack:
        memory = MemoryCollector(scope, watch.signals, watch.index)
        stack.callback(memory.close)
        collector = stack.enter_context(KatalystMemory(watch, memory.pressure, lambda _: False, lambda _: False))
        node = memory.node()
        measured = collector.measure(node, is_round=True)
        rootfs = open_rootfs(settings, watch, stack)
        image_fs = _image_fs(rootfs) if rootfs is not None else None
    cnr, of_cnr = _cnr(config)
    links = links_of(cnr) if cnr is not None else {}
    now_ns = time.monotonic_ns()
    layers = RootfsMeasured(now_ns, now_ns, {}) if rootfs is not None else None  # an agent's first pass ends soon
    measured = replace(measured, cnr=cnr, links=links, image_fs=image_fs, rootfs=layers)
    frame = frame_of(None, Measured(now_ns, now_ns, node), feature_gates={GATE: True}, executor="api")
    view = view_of_frame(replace(frame, strategyInForce=None))
    return (
        of_cnr,
        *_plugins(Seen(view, measured, (), ()), settings),
        *_outside(settings),
        _taints(config, settings),
        _notices(config, settings),
    )


# Its thread looks at once; a disk that hangs is one that is not measured.
def _image_fs(rootfs: RootfsCollector) -> ImageFs | None:
    ends_s = time.monotonic() + _DISK_S
    while (found := rootfs.measure()[0]) is None and time.monotonic() < ends_s:
        time.sleep(_LOOK_S)
    return found


def _plugins(seen: Seen, settings: KatalystSettings) -> Iterator[SignalSource]:
    answers, _ = judge_inside(seen, {}, settings.inner, lambda name: is_listed(name, settings.plugins))
    lacks = {each.plugin: each.problem for each in answers}
    for section, plugin in INNER.items():
        name = plugin.name.removesuffix(_SUFFIX)
        if plugin.name not in lacks:
            yield SignalSource(name, "off: eviction.katalyst.plugins does not name it", True)
        elif not _is_on(getattr(settings.inner, section)):
            yield SignalSource(name, f"off: inner.{section}.isOn", True)
        elif (problem := lacks[plugin.name]) is not None:
            remedy = next((text for word, text in _REMEDIES.items() if word in problem), "")
            yield SignalSource(name, "", False, problem, remedy, "it judges nothing")
        else:
            yield _judging(name, plugin.name, seen.measured)


def _is_on(section: Any) -> bool:
    return bool(getattr(section, "is_on", True))


def _judging(name: str, plugin: str, measured: KatalystMeasured) -> SignalSource:
    if plugin == SYSTEM_MEMORY.name and measured.system is not None and measured.system.pressure is None:
        reason = "no PSI of pods: cgroup v1, or no burstable level yet"
        return SignalSource(name, "free memory and its watermark", True, reason, "", "pressure of pods is not judged")
    if plugin == NUMA_MEMORY.name and measured.numa is not None:
        nodes = len(measured.numa)
        how = f"{nodes} NUMA nodes" if nodes > 1 else "one NUMA node: its memory is the machine's"
        return SignalSource(name, how, True)
    return SignalSource(name, "judges", True)


def _cnr(config: AgentConfig) -> tuple[Cnr | None, SignalSource]:
    name, cost = "CustomNodeResource", "plugins that need it judge nothing"
    if config.source != "api" and config.files:
        return _cnr_of_files(config)
    if config.source != "api" or config.node_name is None:
        reason = "no files are given" if config.source != "api" else "this node's name is not known"
        return None, SignalSource(name, "", False, reason, "Use source api, and set node.name.", cost)
    from koordebpf.kube.clients.access import cnr_now
    from koordebpf.kube.http.transport import open_cluster

    try:
        with contextlib.closing(open_cluster(config.kubeconfig, config.kube_context)) as transport:
            written = cnr_now(transport, config.node_name)
        if written is not None:
            return cnr_of(written), SignalSource(name, f"of node {config.node_name}", True)
    except KubeDenied as error:
        remedy = f"Allow {error.verb} on {error.resource}."
        return None, SignalSource(name, "", False, str(error), remedy, cost)
    except (KubeError, ConfigError) as error:
        return None, SignalSource(name, "", False, str(error), "", cost)
    remedy = "Install Katalyst's CRD and its agent."
    return None, SignalSource(name, "", False, f"there is none of node {config.node_name}", remedy, cost)


def _cnr_of_files(config: AgentConfig) -> tuple[Cnr | None, SignalSource]:
    name, cost = "CustomNodeResource", "plugins that need it judge nothing"
    source = FileSource(config.files, config.config_map)
    try:
        source.start(lambda: None)
        written = source.state().cnr
        if written is not None:
            return cnr_of(written), SignalSource(name, "of the files with pods", True)
    except ConfigError as error:
        return None, SignalSource(name, "", False, str(error), "", cost)
    remedy = "Put one into these files, or use source api."
    return None, SignalSource(name, "", False, "the files with pods have none", remedy, cost)


def _outside(settings: KatalystSettings) -> Iterator[SignalSource]:
    name, folder = "plugins outside", Path(settings.sockets)
    if not settings.sockets:
        yield SignalSource(name, "off: eviction.katalyst.sockets", True)
        return
    if (problem := folder_problem(folder)) is not None:
        yield SignalSource(name, "", False, f"{folder} {problem}", "Remove what stands there.", "none is called")
        return
    if not folder.is_dir():
        remedy = "Mount the node's directory; plugins make it when they start."
        yield SignalSource(name, "", False, f"{folder} is not there", remedy, "none is called")
        return
    sockets = sorted(sockets_below(folder))
    yield SignalSource(name, f"{len(sockets)} {'socket' if len(sockets) == 1 else 'sockets'} in {folder}", True)
    with ThreadPoolExecutor(max(len(sockets), 1)) as pool:
        yield from pool.map(lambda path: _tried(path, settings), sockets)


# What one socket says of itself, and whether its plugin answers: a call with no pods.
def _tried(path: Path, settings: KatalystSettings) -> SignalSource:
    from koordebpf.strategies.katalyst.registry import PluginAccess, Refusal, try_plugin

    shown = printable(path.name)
    try:
        found = try_plugin(path, [each.name for each in INNER.values()], PluginAccess(settings.access))
    except (Refusal, KubeError, DecodeError) as error:
        remedy = "Look at the plugin's own log; it is asked again, later each time."
        return SignalSource(shown, "", False, str(error), remedy, "this plugin is not called")
    return SignalSource(found.name, f"answers by {shown}", True)


def _taints(config: AgentConfig, settings: KatalystSettings) -> SignalSource:
    name, cost = "taints of conditions", "the node is not tainted"
    if not settings.taints:
        return SignalSource(name, "off: eviction.katalyst.taints", True)
    if config.source == "file" or config.node_name is None:
        reason = "source file knows no API server" if config.source == "file" else "this node's name is not known"
        return SignalSource(name, "", False, reason, "Use source api, and set node.name.", cost)
    from koordebpf.kube.clients.access import may
    from koordebpf.kube.http.transport import open_cluster

    try:
        with contextlib.closing(open_cluster(config.kubeconfig, config.kube_context)) as transport:
            denied = [verb for verb in ("get", "patch") if not may(transport, verb, "nodes", config.node_name)]
    except (KubeError, ConfigError) as error:
        return SignalSource(name, "", False, str(error), "", cost)
    if denied:
        reason = f"no right to {' and '.join(denied)} node {config.node_name}"
        return SignalSource(name, "", False, reason, "Apply deploy/components/node-mark.", cost)
    return SignalSource(name, f"on node {config.node_name}, with --enforce", True)


def _notices(config: AgentConfig, settings: KatalystSettings) -> SignalSource:
    name, cost = "notices of soft evictions", "pods that want a notice get none, and are not evicted softly"
    if not settings.notices:
        return SignalSource(name, "off: eviction.katalyst.notices", True)
    folder = Path(settings.notices)
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        return SignalSource(name, "", False, f"{there} cannot be written", "Mount it writable.", cost)
    made = "" if there == folder else ", made for the first pod that wants one"
    return SignalSource(name, f"in {folder}{made}, with --enforce", True)
