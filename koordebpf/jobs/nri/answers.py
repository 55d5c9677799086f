"""What runtime hooks answer before a container starts, to whichever program asks.

What a container gets is decided by the functions that the reconciler uses, from rules that each second brings. Values
of a pod's own level are the reconciler's: a pod that starts makes a round due at once. Nothing here writes a file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from koordebpf.collect.cluster_view import ClusterView
from koordebpf.collect.cpu.collector import OnlineCpus
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import HOOK_GATES, settings_of
from koordebpf.kernel.cgroup.files import format_cpu_list
from koordebpf.kernel.cgroup.kill import raise_thread_priority
from koordebpf.kernel.io.loop import Loop
from koordebpf.kernel.proc.tasks import shorten_time_slice
from koordebpf.kube.nri.values import BUCKETS_MS, Answer, NriContainer, NriCounts, NriPod, NriResources
from koordebpf.report.job_pages import HealthCheck
from koordebpf.report.log_sink import ProblemLog
from koordebpf.slo.pods.resource_status import NodePools, node_pools
from koordebpf.state.pods.hook_pods import HookContainer, HookPod, HooksMeasured, annotated_pod
from koordebpf.state.series.store import NodeSeries
from koordebpf.strategies.hooks.adjust import container_adjustment
from koordebpf.strategies.hooks.batch_resource import without_lifts
from koordebpf.strategies.hooks.decide import RUNTIME_HOOKS, hook_rules
from koordebpf.strategies.hooks.values import PERIOD_US, Adjustment, HookRules, HookView
from koordebpf.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from koordebpf.runner.context import NodeContext

# koordlet's names of what the runtime calls.
_STAGES = {
    "CreateContainer": "PreCreateContainer",
    "UpdateContainer": "PreUpdateContainerResources",
    "StateChange": "PreRunPodSandbox",
}
log = logging.getLogger("koordebpf")
# How long another thread may keep the interpreter while an answer waits. Why: with Python's own 5 ms an answer beside a
# thread that computes takes 16 ms (p99), with this 1 ms.
SWITCH_S = 0.0002
_ROUND_REST_NS = 100 * NS_PER_MS  # Why: 100 pods that start at once need a few rounds, not 100
_MAX_SILENCE_NS = 30 * NS_PER_S
_CPU_SHARES = 1024  # of one core


# What a container runtime, or koord-runtime-proxy, asks as metrics, under our own names and koordlet's.


class NriMetrics:
    """Read at the scrape.

    Args:
        prefix: of its names, as nri.
        counts: of the server.
        is_registered: whether it is asked.
        node: for koordlet's names; None: they are left out.
        would_adjust: in a dry run, containers that would have been adjusted.
    """

    def __init__(
        self,
        prefix: str,
        counts: NriCounts,
        is_registered: Callable[[], bool],
        node: str | None,
        would_adjust: Callable[[], int],
    ) -> None:
        self._prefix = f"koordebpf_{prefix}"
        self._counts = counts
        self._is_registered = is_registered
        self._node = node
        self._would_adjust = would_adjust

    def families(self) -> Iterator[Metric]:
        """Yield the metrics."""
        counts = self._counts
        text = "1 while containers are asked for."
        yield GaugeMetricFamily(f"{self._prefix}_registered", text, int(self._is_registered()))
        text = "Registrations that were completed."
        yield CounterMetricFamily(f"{self._prefix}_registrations", text, counts.registrations)
        text = "Containers whose resources were adjusted; in a dry run those that would have been."
        adjusted = counts.adjusted + self._would_adjust()
        yield CounterMetricFamily(f"{self._prefix}_adjusted_containers", text, adjusted)
        text = "Parts of pods that could not be judged."
        yield CounterMetricFamily(f"{self._prefix}_errors", text, counts.errors)
        text = "From the whole request in the agent to its answer."
        calls = HistogramMetricFamily(f"{self._prefix}_call_seconds", text, labels=["method", "result"])
        name = "koordlet_runtime_hook_invoked_duration_milliseconds"
        text = "Invocations of runtime hooks by the container runtime."
        stages = HistogramMetricFamily(name, text, labels=["node", "hook", "stage", "status"])
        for (method, is_ok), each in counts.calls.items():
            result = "succeeded" if is_ok else "failed"
            totals = [float(count) for count in accumulate(each.buckets)]
            seconds = [str(bound / 1e3) for bound in BUCKETS_MS]
            calls.add_metric([method, result], list(zip([*seconds, "+Inf"], totals, strict=True)), each.sum_ms / 1e3)
            if self._node is not None and method in _STAGES:
                labels = [self._node, "all", _STAGES[method], result]
                bounds = [*map(str, BUCKETS_MS), "+Inf"]
                stages.add_metric(labels, list(zip(bounds, totals, strict=True)), each.sum_ms)
        yield calls
        if self._node is not None:
            yield stages


class ContainerAnswers:
    """What containers get, by the effective rules. The plugin's thread asks; the loop replaces `rules`.

    Args:
        rules: of the hooks.
        dry_run: nothing is adjusted, and counted all the same.
        wake_fd: an eventfd that is written for each pod that starts.
    """

    def __init__(self, rules: HookRules, wake_fd: int, *, dry_run: bool) -> None:
        self.rules = rules
        self.would_adjust = 0
        self._wake_fd = wake_fd
        self._is_dry_run = dry_run

    def pod_started(self, _pod: NriPod) -> None:
        """Make a round due: the reconciler writes the pod's own level."""
        os.eventfd_write(self._wake_fd, 1)

    def pod_removed(self, _pod: NriPod) -> None:
        """Do nothing: nothing is remembered of a pod."""

    def container(self, pod: NriPod, container: NriContainer) -> Answer:
        """Return what the hooks want of a container. Cost: 40 µs."""
        of = _hook_container(container)
        asked = annotated_pod(_hook_pod(pod, of))
        named = next(each for each in asked.containers if each.name == of.name)
        found = container_adjustment(asked, named, self.rules)
        if asked.kube_qos != "BestEffort":  # where it is, the kubelet sets no limits: those known are from here
            found = without_lifts(found, of)
        problems = (*(f"pod {asked.key}: {each}" for each in asked.problems), *found.problems)
        resources = _resources(found)
        if self._is_dry_run and resources is not None:
            self.would_adjust += 1
            resources = None
        return Answer(resources, problems)


class HookServer(Protocol):
    """What a container runtime, or a proxy before it, asks: NriPlugin, RuntimeProxyServer."""

    counts: NriCounts

    @property
    def state(self) -> tuple[bool, str]:
        """Whether it is asked, and a sentence."""


class AnswersJob:
    """Keeps the rules up to date, and reports what the server sees.

    Args:
        name: of the server, in the log.
        server: that asks `answers`.
        answers: of the server.
        rules: returns the effective rules, and what cannot be read of them; None: they have not changed.
    """

    period_ns = NS_PER_S

    def __init__(self, name: str, server: HookServer, answers: ContainerAnswers, rules: Rules) -> None:
        self.name = name
        self.server = server
        self._answers = answers
        self._rules = rules
        self._logged = ""
        self._problems = ProblemLog()
        self._looked_ns = 0

    def collect(self, now_ns: int, _into: NodeSeries) -> None:
        """Bring the rules up to date. Cost: 5 µs where nothing has changed."""
        self._looked_ns = now_ns
        if (found := self._rules()) is not None:
            self._answers.rules, problems = found
            self._problems.report({f"{self.name} rules": problems}, now_ns)
        if problems := self.server.counts.drain_problems():
            self._problems.report({self.name: problems}, now_ns)
        self._problems.flush(now_ns)
        is_registered, sentence = self.server.state
        if sentence != self._logged:
            self._logged = sentence
            log.log(logging.INFO if is_registered else logging.WARNING, "%s: %s", self.name, sentence)

    def check(self) -> HealthCheck:
        """Return whether it is asked."""
        is_registered, sentence = self.server.state
        return HealthCheck(self.name, None if is_registered else sentence, self._looked_ns or None, _MAX_SILENCE_NS)

    def close(self) -> None:
        """Do nothing: the stack closes the server."""


class Rules:
    """The effective rules, worked out where something of them has changed."""

    def __init__(self, config: AgentConfig, known: ClusterView, cpus: OnlineCpus) -> None:
        self._config = config
        self._known = known
        self._cpus = cpus
        self._seen: tuple[object, ...] = ()

    def __call__(self) -> tuple[HookRules, tuple[str, ...]] | None:
        """Return them, and what cannot be read of them; None: they are as the last time."""
        known, config = self._known, self._config
        seen = (known.spec, known.node, known.topology, *self._cpus.read())
        if seen == self._seen:  # of values that are the same objects nothing is compared
            return None
        self._seen = seen
        spec, node, topology, online, isolated = seen
        qos = spec.resourceQOSStrategy if spec is not None else None
        view = HookView(
            measured=HooksMeasured(online=online, isolated=isolated, qos=qos),
            pods=(),
            pools=node_pools(topology.metadata.annotations) if topology is not None else NodePools(),
            annotations=(node.metadata.annotations if node is not None else None) or {},
        )
        return hook_rules(view, known.strategy, config.feature_gates, settings_of(RUNTIME_HOOKS[0], config))


def has_hooks(setting: str, config: AgentConfig) -> bool:
    """Tell whether a container may be adjusted; where none may, the log says so of the setting."""
    if any(config.feature_gates.get(gate) for gate in HOOK_GATES):
        return True
    log.warning("%s: no runtime hook's feature gate is on, so that no container would be adjusted", setting)
    return False


def open_answers(node: NodeContext) -> tuple[ContainerAnswers, Rules]:
    """Return what a server asks, by the effective rules, and what keeps these up to date."""
    cpus = node.stack.enter_context(contextlib.closing(OnlineCpus()))
    rules = Rules(node.config, node.measuring.known, cpus)
    found = rules()
    in_force = found[0] if found is not None else HookRules()
    answers = ContainerAnswers(in_force, _round_wake(node.loop, node.want_round, node.stack), dry_run=not node.acts)
    node.stack.enter_context(_quick_switches())
    return answers, rules


# An eventfd that makes a round due; of many writes within a moment one does.
def _round_wake(loop: Loop, want_round: Callable[[], None], stack: contextlib.ExitStack) -> int:
    fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    stack.callback(os.close, fd)

    def wanted() -> None:
        os.eventfd_read(fd)
        want_round()

    loop.watch(fd, wanted, rest_ns=_ROUND_REST_NS)
    stack.callback(loop.unwatch, fd)
    return fd


def report(
    job: AnswersJob, answers: ContainerAnswers, prefix: str, node: NodeContext, *, has_koordlets_name: bool
) -> None:
    """Add its metrics, one of them under koordlet's name too, and its check."""
    name = (node.config.node_name or socket.gethostname()) if has_koordlets_name else None
    beside, server = node.measuring.beside, job.server
    metrics = NriMetrics(prefix, server.counts, lambda: server.state[0], name, lambda: answers.would_adjust)
    beside.families[prefix], beside.checks[prefix] = metrics.families, job.check


def run_first() -> None:
    """Let the calling thread run before others: the runtime holds all its containers while it waits."""
    for problem in (raise_thread_priority(), shorten_time_slice()):
        if problem:
            log.warning("answers to the container runtime may be late: %s", problem)


# Threads hand the interpreter over quickly for as long as an answer may be asked for.
@contextlib.contextmanager
def _quick_switches() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(min(SWITCH_S, before_s))
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


def _hook_pod(pod: NriPod, container: HookContainer) -> HookPod:
    return HookPod(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        labels=pod.labels,
        annotations=pod.annotations,
        kube_qos=_kube_qos(pod.cgroup_parent),
        cgroup_parent=pod.cgroup_parent,
        containers=(container,),
    )


# As the kubelet names the directory above a pod's, with either cgroup driver.
def _kube_qos(cgroup_parent: str) -> str:
    if "besteffort" in cgroup_parent:
        return "BestEffort"
    return "Burstable" if "burstable" in cgroup_parent else "Guaranteed"


def _hook_container(container: NriContainer) -> HookContainer:
    quota_us, period_us = container.cpu_quota_us or 0, container.cpu_period_us or PERIOD_US
    return HookContainer(
        container.name,
        container.id,
        cpu_request_millicpu=(container.cpu_shares or 0) * 1000 // _CPU_SHARES,
        cpu_limit_millicpu=-(-max(quota_us, 0) * 1000 // max(period_us, 1)),
        memory_limit_bytes=max(container.memory_limit_bytes or 0, 0),
    )


def _resources(found: Adjustment) -> NriResources | None:
    cpus = found.cpuset_cpus
    wanted = NriResources(
        cpu_shares=found.cpu_shares.value if found.cpu_shares else None,
        cpu_quota_us=found.cfs_quota_us.value if found.cfs_quota_us else None,
        cpuset_cpus=format_cpu_list(cpus.value) if cpus and cpus.value else None,
        memory_limit_bytes=found.memory_limit_bytes.value if found.memory_limit_bytes else None,
        oom_score_adj=found.oom_score_adj.value if found.oom_score_adj else None,
    )
    return None if wanted == NriResources() else wanted
