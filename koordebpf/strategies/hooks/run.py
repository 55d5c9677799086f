"""Runtime hooks in the agent: measures for them, and reports what of their input cannot be used.

What they want of cgroup files is written as any other strategy's is, by `OwnStrategies`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from koordebpf.collect.pod_directories import HookCollector
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.policy.strategy import Decision
from koordebpf.report.pod_settings import PodLines, PodSetting, json_value
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import StrategyRunner
from koordebpf.state.pods.hook_pods import HookPod, HooksMeasured, PodDirectory
from koordebpf.state.view import NodeView
from koordebpf.strategies.hooks.decide import RUNTIME_HOOKS, HookDecision, pod_writes
from koordebpf.strategies.hooks.tasks import CoreCookies, OomScores
from koordebpf.strategies.hooks.values import COOKIES, CORE_SCHED, OOM_SCORE_ADJ, SCORES, HookRules, hook_view

log = logging.getLogger(__name__)

_TASK_FILES = {OOM_SCORE_ADJ: "oom_score_adj", CORE_SCHED: "core scheduling group"}


class RuntimeHooks(StrategyRunner[HooksMeasured, HookDecision]):
    """Asks the collector, and carries out what a decision wants beside cgroup files.

    Args:
        collector: of what hooks decide from.
        scores: of processes.
        cookies: of processes. They come last: what they keep off a core has its CPUs and quota by then.
    """

    def __init__(self, collector: HookCollector, scores: OomScores, cookies: CoreCookies) -> None:
        super().__init__("runtime hooks", RUNTIME_HOOKS[0], HookDecision, collector.measure)
        self._collector = collector
        self._scores = scores
        self._cookies = cookies

    def carry_out(self, decisions: Mapping[str, Decision[Any]], view: NodeView) -> None:
        """Give processes what they are to have, and report what cannot be used."""
        now_ns = view.now_ns
        problems: tuple[str, ...] | None = None
        for each in RUNTIME_HOOKS:
            made = decisions.get(each.name)
            if not isinstance(made, HookDecision) or made.skipped is not None:
                continue
            problems = made.problems
            self.remember(made, view)
            if each.gate == OOM_SCORE_ADJ:
                self._scores.apply(made.tasks, now_ns)
            if each.gate == CORE_SCHED:
                self._cookies.apply(made.tasks, now_ns)
        self.report(problems, now_ns)

    def lines(self, measured: HooksMeasured, made: HookDecision, view: NodeView) -> Mapping[str, PodLines]:
        """Return what all hooks together want of each pod and its processes."""
        hooks = hook_view(measured, view.facts, view.frame.node, view.frame.nodeResourceTopology)
        directories = {each.uid: each for each in measured.pods}
        return {pod.uid: _lines(pod, directories[pod.uid], made.rules) for pod in hooks.pods}

    def close(self) -> None:
        """Put back what processes had."""
        self._cookies.restore(time.monotonic_ns())
        self._scores.restore(time.monotonic_ns())
        self._collector.close()


def _lines(pod: HookPod, directory: PodDirectory, rules: HookRules) -> PodLines:
    wanted = pod_writes(pod, directory, rules)
    settings = [
        PodSetting(each.write.path, each.write.file.value, each.hook, each.source, json_value(each.write.value))
        for each in wanted.writes
    ]
    settings += [
        PodSetting(each.path, _TASK_FILES.get(each.hook, each.hook), each.hook, each.source, each.value)
        for each in wanted.tasks
    ]
    return PodLines(directory.path, tuple(settings), wanted.problems)


def open_runner(node: NodeContext) -> RuntimeHooks | None:
    """Return them; None: the gate of each hook is off.

    What an agent that was killed has left is put back first. Where files may hold what an agent before this one wrote
    all pods are looked at at once.

    Raises:  SupportError: no sysfs.
    """
    folder, report = node.folder, node.report
    records = [folder / SCORES, folder / COOKIES] if folder else [None, None]
    watch, mounts = node.measuring.watch, find_controllers()
    mount_point = watch.scope.hierarchy.mount_point
    scores, cookies = OomScores(mount_point, records[0], report), CoreCookies(mount_point, records[1], report)
    scores.restore(time.monotonic_ns())
    cookies.restore(time.monotonic_ns())
    if not any(node.config.feature_gates.get(each.gate) for each in RUNTIME_HOOKS):
        return None
    collector = HookCollector(watch.index, node.measuring.known, mounts.get("cpu"), watch.scope.node_path)
    collector.due = node.due(collector.period_ns)
    collector.admits_all = node.writer.is_journalled or node.is_one_frame
    hooks = RuntimeHooks(collector, scores, cookies)
    node.stack.callback(hooks.close)
    return hooks
