"""Offers this node's detectors of memory shortage to a Katalyst agent, as an eviction plugin on a socket of its own.

It measures, and answers; it evicts and writes nothing. The pods are those that the agent asks about.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from koordebpf.collect.cluster_view import ClusterView, frame_of
from koordebpf.collect.history import NodeHistory
from koordebpf.collect.memory.collector import MemoryCollector
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import settings_of
from koordebpf.errors import ConfigError, KoordebpfError
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.kernel.cgroup.kill import raise_thread_priority
from koordebpf.kernel.host.protection import lock_memory, set_oom_score_adj, share_one_arena
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.io.loop import Loop
from koordebpf.kernel.io.regular_file import read_regular_file
from koordebpf.kernel.signals import SUMS_ONLY_NS
from koordebpf.kube.clients.protobuf import decode, encode
from koordebpf.kube.plugins.connection import CallFailed, Methods
from koordebpf.kube.plugins.given_source import GivenPods
from koordebpf.kube.plugins.messages import (
    CNR_CONDITION,
    GREATER_THAN,
    HARD_MET,
    LESS_THAN,
    NODE_CONDITION,
    PLUGIN_MESSAGES,
    PLUGIN_SERVICE,
    PLUGIN_TYPE,
    REGISTRATION_MESSAGES,
    REGISTRATION_SERVICE,
    SOFT_MET,
    VERSION,
)
from koordebpf.kube.plugins.server import GrpcServer
from koordebpf.printable import printable
from koordebpf.slo.katalyst import Selectors, qos_level
from koordebpf.state.build import view_of_frame
from koordebpf.state.pods.facts import PodFacts
from koordebpf.strategies.katalyst.decide import KATALYST_EVICTION
from koordebpf.strategies.katalyst.measure import KatalystMemory
from koordebpf.strategies.katalyst.plugin import Seen, candidates, katalyst_pods
from koordebpf.strategies.katalyst.plugins.memory import asks_pods
from koordebpf.strategies.katalyst.served import (
    STALL_GATES,
    STALL_SCOPE,
    STALL_STRATEGY,
    ServedSettings,
    ServedState,
    served_threshold,
    served_top,
)
from koordebpf.strategies.katalyst.settings import KatalystSettings
from koordebpf.strategies.katalyst.values import Threshold, TopPods
from koordebpf.units import NS_PER_MS, NS_PER_S

log = logging.getLogger("koordebpf")
_FRESH_NS = 100 * NS_PER_MS  # Why: an agent makes its calls of a round within it, and all see the same node
_NAME_LENGTH = 100
_TOKEN_BYTES = 1 << 13
_FAILED_MAX = 10  # measurements in a row


# What a plugin of ours answers, from values to the bytes of evictionplugin.v1alpha1.


def plugin_info(name: str) -> bytes:
    """Return PluginInfo: the plugin is called by the socket that it was found by."""
    info = {"type": PLUGIN_TYPE, "name": name, "supported_versions": [VERSION]}
    return encode(REGISTRATION_MESSAGES, "PluginInfo", info)


def threshold_message(threshold: Threshold | None) -> bytes:
    """Return ThresholdMetResponse; None: NOT_MET."""
    if threshold is None:
        return b""
    found: dict[str, object] = {
        "threshold_value": threshold.value,
        "observed_value": threshold.observed,
        "threshold_operator": LESS_THAN if threshold.operator == "less_than" else GREATER_THAN,
        "met_type": HARD_MET if threshold.met == "hard" else SOFT_MET,
        "eviction_scope": threshold.scope,
        "grace_period_seconds": threshold.grace_s,
    }
    if (condition := threshold.condition) is not None:
        found["condition"] = {
            "condition_type": NODE_CONDITION if condition.kind == "node" else CNR_CONDITION,
            "effects": condition.effects,
            "condition_name": condition.name,
            "met_condition": True,
        }
    return encode(PLUGIN_MESSAGES, "ThresholdMetResponse", found)


def top_message(top: TopPods, pods: Mapping[str, bytes]) -> bytes:
    """Return GetTopEvictionPodsResponse; `pods` are those of the request, by UID, which are sent back unchanged."""
    found: dict[str, object] = {"target_pods": [pods[uid] for uid in top.uids]}
    if top.grace_s is not None:
        found["deletion_options"] = {"grace_period_seconds": top.grace_s}
    return encode(PLUGIN_MESSAGES, "GetTopEvictionPodsResponse", found)


def by_uid(uids: Sequence[str | None], pods: Sequence[bytes]) -> dict[str, bytes]:
    """Return the pods of a request by their UIDs, without those that cannot be read."""
    return {uid: data for uid, data in zip(uids, pods, strict=True) if uid is not None}


# The plugin as a process.


class ServeOptions(msgspec.Struct, frozen=True):
    """What one plugin is: its name and its socket. `token_file`: what GetToken answers; None: nothing."""

    name: str
    directory: Path
    token_file: Path | None = None

    @property
    def socket(self) -> Path:
        """Where it is served, as katalyst-api's skeleton does."""
        return self.directory / f"{self.name}.sock"


def serve_plugin(config: AgentConfig, options: ServeOptions) -> None:
    """Serve until SIGTERM or SIGINT; the socket is gone afterwards.

    Raises:  ConfigError: the name, the socket or the token is unusable, or another server is alive there.
             SupportError: something that it measures with does not work here.
    """
    check_name(options.name)
    read_token(options.token_file)
    share_one_arena()
    scope = open_scope(find_memory_hierarchy(), config.node_cgroup, config.cgroup_root)
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(Loop())
        loop.stop_on_signals()
        pods = GivenPods()
        watch = stack.enter_context(NodeWatch(scope, pods, SUMS_ONLY_NS, backend=config.backend))
        node = stack.enter_context(ServedNode(config, watch))
        plugin = MemoryPlugin(
            options, ServedSettings(node.settings.inner.systemMemory, config.eviction.stall), node, pods
        )
        node.measure(time.monotonic_ns())
        server = stack.enter_context(GrpcServer(options.socket, plugin.methods(), time.monotonic()))

        def serve() -> None:
            server.serve(time.monotonic())

        loop.watch(server.fileno(), serve)
        stack.callback(loop.unwatch, server.fileno())
        _prepare_for_shortage(config)
        log.info("plugin %s is served by %s; signals: %s", options.name, options.socket, watch.quality.stalls)
        serve_until_stopped(loop, node, server)
    log.info("stopped: %s is gone", options.socket)


def check_name(name: str) -> None:
    """Let a name pass that an agent takes and that a file can have.

    Raises:  ConfigError: it is none.
    """
    is_file_name = bool(name) and not name.startswith(".") and "/" not in name
    if not is_file_name or len(name) > _NAME_LENGTH or printable(name) != name:
        rule = f"must be at most {_NAME_LENGTH} printable characters, without / and not beginning with a dot"
        raise ConfigError("--name", name, rule)


def read_token(path: Path | None) -> str:
    """Return the token, without the newline at its end; read each time, so that it may be replaced.

    Raises:  ConfigError: there is no such file, or it is too long.
    """
    if path is None:
        return ""
    try:
        return read_regular_file(path, _TOKEN_BYTES, follows=True).decode().rstrip("\r\n")
    except OSError as error:
        raise ConfigError("--token-file", str(path), f"must be a readable file: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError("--token-file", str(path), "must hold text in UTF-8") from None


class MemoryPlugin:
    """The answers of the plugin, from the node as it is when it is asked."""

    def __init__(self, options: ServeOptions, settings: ServedSettings, node: ServedNode, pods: GivenPods) -> None:
        self._options = options
        self._settings = settings
        self._node = node
        self._pods = pods
        self._state = ServedState()
        self._lacks: str | None = None

    def methods(self) -> Methods:
        """Return what is served, both services."""
        return {
            f"{REGISTRATION_SERVICE}/GetInfo": lambda _: plugin_info(self._options.name),
            f"{REGISTRATION_SERVICE}/NotifyRegistrationStatus": self._notified,
            f"{PLUGIN_SERVICE}/GetToken": self._token,
            f"{PLUGIN_SERVICE}/ThresholdMet": self._threshold_met,
            f"{PLUGIN_SERVICE}/GetEvictPods": self._evict_pods,
            f"{PLUGIN_SERVICE}/GetTopEvictionPods": self._top_pods,
        }

    def _notified(self, message: bytes) -> bytes:
        found = decode(REGISTRATION_MESSAGES, "RegistrationStatus", message)
        if found["plugin_registered"]:
            log.info("the agent has registered %s", self._options.name)
        else:
            log.warning("the agent did not register %s: %s", self._options.name, printable(found["error"][:500]))
        return b""

    def _token(self, message: bytes) -> bytes:
        try:
            return encode(PLUGIN_MESSAGES, "GetTokenResponse", {"token": read_token(self._options.token_file)})
        except ConfigError as error:
            raise CallFailed("UNAVAILABLE", str(error)) from error

    def _evict_pods(self, message: bytes) -> bytes:
        self._pods.replace(decode(PLUGIN_MESSAGES, "GetEvictPodsRequest", message)["active_pods"])
        return b""

    def _threshold_met(self, message: bytes) -> bytes:
        self._pods.replace(decode(PLUGIN_MESSAGES, "GetThresholdMetRequest", message)["active_pods"])
        found = served_threshold(self._seen(), self._state, self._settings)
        self._state = found.state
        if found.lacks is not None and found.lacks != self._lacks:
            log.warning("memory of the machine is not judged: %s", found.lacks)
        self._lacks = found.lacks
        return threshold_message(found.threshold)

    def _top_pods(self, message: bytes) -> bytes:
        asked = decode(PLUGIN_MESSAGES, "GetTopEvictionPodsRequest", message)
        pods, scope = asked["active_pods"], asked["eviction_scope"]
        given = by_uid(self._pods.uids(pods), pods)
        if given.keys() - {each.uid for each in self._pods.state().pods}:
            self._pods.replace(pods)  # an agent that asks about pods which it did not name before
        top, self._state = served_top(self._seen(), given, self._state, self._settings, scope, asked["topN"])
        if top.uids:
            log.info(
                "scope %s: chosen of %d pods: %s", printable(scope[:_NAME_LENGTH]), len(given), self._names(top.uids)
            )
            if scope == STALL_SCOPE:
                self._node.restart_stall_window()
        return top_message(top, given)

    def _names(self, uids: tuple[str, ...]) -> str:
        names = {each.uid: each.key for each in self._pods.state().pods}
        return ", ".join(printable(names.get(uid, uid)) for uid in uids[:10])

    def _seen(self) -> Seen:
        try:
            return self._node.seen(time.monotonic_ns())
        except KoordebpfError as error:
            raise CallFailed("UNAVAILABLE", f"the node was not measured: {error}") from error


class ServedNode(Closing):
    """Measures the node with the pods that the agent asked about."""

    def __init__(self, config: AgentConfig, watch: NodeWatch) -> None:
        self.settings: KatalystSettings = settings_of(KATALYST_EVICTION, config)
        self._watch = watch
        self._known = ClusterView()
        self._collector = MemoryCollector(watch.scope, watch.signals, watch.index)
        self._history = NodeHistory(watch, self._collector, config.eviction.exemptions)
        of_machine = self.settings.inner.systemMemory
        pod_files = self._collector.pressure
        self._katalyst = KatalystMemory(
            watch, pod_files, lambda _: False, lambda percent: asks_pods(percent, of_machine)
        )
        self._pods_version = 0
        self._problems: frozenset[str] = frozenset()  # that the log has
        self._seen: Seen | None = None

    def seen(self, now_ns: int) -> Seen:
        """Return the node as it is now, or was a moment ago with the same pods.

        Raises:  KoordebpfError: it cannot be measured.
        """
        source = self._watch.source
        is_same = source is not None and source.state().version == self._pods_version
        if self._seen is None or not is_same or now_ns - self._seen.now_ns > _FRESH_NS:
            self.measure(now_ns)
        assert self._seen is not None  # just measured
        return self._seen

    def measure(self, now_ns: int) -> None:
        """Look at the node and at all pods, so that growth, stalls and their windows are known when it is asked."""
        watch, known, settings = self._watch, self._known, self.settings
        watch.drain()
        cluster, is_news = watch.cluster()
        if is_news and cluster is not None:
            self._pods_version = cluster.version
            known.learn(cluster)
            known.facts = tuple(_with_class(each, settings.qos.by_level()) for each in known.facts)
            for problem in sorted(set(cluster.problems) - self._problems):
                log.warning("%s", problem)
            self._problems = frozenset(cluster.problems)
        measured = self._history.measure(now_ns, known)
        frame = frame_of(None, measured, feature_gates=STALL_GATES, executor="api")
        view = view_of_frame(replace(frame, strategyInForce=STALL_STRATEGY), facts=known.facts)
        of_machine = self._katalyst.measure(measured.node, is_round=False)
        active = katalyst_pods(view.pods, settings.qos.by_level())
        self._seen = Seen(view, of_machine, active, candidates(active, settings.skip))

    def restart_stall_window(self) -> None:
        """Start the window of stalls again, as pods were chosen for them."""
        self._history.restart_stall_window()
        self._seen = None

    def close(self) -> None:
        """Close every fd."""
        self._katalyst.close()
        self._collector.close()


# The stalls of a reclaimed pod are no reason to evict any other, as those of a best-effort pod of Koordinator.
def _with_class(facts: PodFacts, more: Selectors) -> PodFacts:
    try:
        is_reclaimed = qos_level(facts.pod.metadata.annotations or {}, more) == "reclaimed_cores"
    except ConfigError:
        is_reclaimed = False
    return replace(facts, koord_qos="BE") if is_reclaimed and not facts.koord_qos else facts


# It has to answer while memory is short.
def _prepare_for_shortage(config: AgentConfig) -> None:
    for problem in (set_oom_score_adj(), raise_thread_priority(), lock_memory()) if config.lock_memory else ():
        if problem:
            log.warning("%s", problem)


def serve_until_stopped(loop: Loop, node: ServedNode, server: GrpcServer) -> None:
    """Answer, and measure the node each second, until the loop is stopped.

    Raises:  what the last of ten measurements in a row failed with.
    """
    failed = 0
    due_ns = time.monotonic_ns() + NodeHistory.period_ns
    while not loop.stopping:
        late_s = server.run_due(time.monotonic())
        loop.wait(min(due_ns, int(late_s * NS_PER_S)))
        now_ns = time.monotonic_ns()
        if loop.stopping or now_ns < due_ns:
            continue
        due_ns = now_ns + NodeHistory.period_ns
        try:
            node.measure(now_ns)
            failed = 0
        except Exception as error:
            failed += 1
            if isinstance(error, KoordebpfError):
                log.error("the node was not measured: %s", error)
            else:
                log.exception("the node was not measured")  # the next look may well work
            if failed >= _FAILED_MAX:
                raise
