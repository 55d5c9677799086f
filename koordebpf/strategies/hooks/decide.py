"""The hooks as strategies, one for each of koordlet's gates: their rules, and the files that they want. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import CgroupFile, Value
from koordebpf.kernel.host.strategy_files import CORE_SCHEDULING, KernelFile, cgroup_file, machine_file
from koordebpf.policy.cpu_normalization import CPU_NORMALIZATION, normalization_ratio
from koordebpf.policy.reconcile import CgroupWrite, HookWrite, TaskSetting, paths_of
from koordebpf.policy.strategy import Decision, Empty, Strategy
from koordebpf.slo.pods.cpu_placement import SharePool
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.pods.hook_pods import HookPod, HooksMeasured, PodDirectory
from koordebpf.state.view import NodeView
from koordebpf.strategies.hooks.adjust import container_adjustment, pod_adjustment
from koordebpf.strategies.hooks.core_sched import GROUP_LABEL, POLICY_LABEL
from koordebpf.strategies.hooks.cpuset_allocator import application_cpus
from koordebpf.strategies.hooks.group_identity import CPU_QOS_ANNOTATION, application_identity, directory_identity
from koordebpf.strategies.hooks.oom_score_adj import OOM_SCORE_ADJ_ANNOTATION, OOM_SCORE_ADJ_SPEC_ANNOTATION
from koordebpf.strategies.hooks.values import (
    BATCH_RESOURCE,
    COOKIES,
    CORE_SCHED,
    CPUSET_ALLOCATOR,
    GROUP_IDENTITY,
    HOOKS,
    OOM_SCORE_ADJ,
    SCORES,
    UNLIMITED,
    Adjustment,
    HookRules,
    HookSettings,
    HookView,
    Setting,
    hook_view,
)

_NUMBERS: tuple[tuple[str, CgroupFile], ...] = (
    ("cpu_shares", CgroupFile.CPU_SHARES),
    ("cfs_quota_us", CgroupFile.CPU_QUOTA),
    ("memory_limit_bytes", CgroupFile.MEMORY_LIMIT),
    ("bvt_warp_ns", CgroupFile.CPU_BVT),
    ("cpu_idle", CgroupFile.CPU_IDLE),
)
_LIMITS = (CgroupFile.CPU_QUOTA, CgroupFile.MEMORY_LIMIT)
HOOKS_PART = "runtimeHooks"


def hook_rules(
    view: HookView,
    strategy: ResourceThresholdStrategy | None,
    gates: Mapping[str, bool],
    settings: HookSettings = HookSettings(),  # noqa: B008 - frozen
) -> tuple[HookRules, tuple[str, ...]]:
    """Return the rules, and sentences on what of the node's objects cannot be read.

    Args:
        view: of the node.
        strategy: resourceUsedThresholdWithBE in force.
        gates: feature gates.
        settings: of the operator.
    """
    problems = list(view.pools.problems)
    isolated = frozenset(view.measured.isolated)
    by_quota = strategy is not None and bool(strategy.enable) and strategy.cpuSuppressPolicy == "cfsQuota"
    rules = HookRules(
        hooks=frozenset(name for name in HOOKS if gates.get(name)),
        is_quota_off=by_quota,
        normalization_ratio=normalization_ratio(view.annotations, problems),
        shared_pools=_without(view.pools.shared, view.bound | isolated),
        be_pools=_without(view.pools.best_effort, view.bound_lse | isolated),
        system_cpus=frozenset(view.pools.system),
        kubelet_policy=view.pools.kubelet_policy,
        online=frozenset(view.measured.online) or None,
        qos=view.measured.qos,
        places_best_effort=gates.get("BECPUManager", False),
        unsets_quota=settings.unset_quota,
        idles_best_effort=settings.idle_best_effort,
        least_oom_score_adj=settings.least_oom_score_adj,
        has_bvt=view.measured.has_bvt,
        has_idle=view.measured.has_idle,
    )
    return rules, tuple(problems)


def _without(pools: tuple[SharePool, ...] | None, cpus: frozenset[int]) -> tuple[SharePool, ...] | None:
    if pools is None or not cpus:
        return pools
    return tuple(replace(each, cpus=tuple(cpu for cpu in each.cpus if cpu not in cpus)) for each in pools)


class PodWrites(msgspec.Struct, frozen=True):
    """What the hooks want of one pod."""

    writes: tuple[HookWrite, ...] = ()
    tasks: tuple[TaskSetting, ...] = ()
    problems: tuple[str, ...] = ()


class Wanted(msgspec.Struct, frozen=True):
    """What the hooks want of a node, `writes` and `tasks` by hook; `rules` is what it was decided by."""

    writes: Mapping[str, tuple[CgroupWrite, ...]] = {}
    tasks: Mapping[str, tuple[TaskSetting, ...]] = {}
    problems: tuple[str, ...] = ()
    rules: HookRules = HookRules()


def pod_writes(pod: HookPod, directory: PodDirectory, rules: HookRules) -> PodWrites:
    """Return what the hooks want of a pod and of those of its containers that have a directory."""
    of_pod = pod_adjustment(pod, rules)
    writes, problems = _writes(directory.path, of_pod), list(of_pod.problems)
    tasks: list[TaskSetting] = []
    for container in pod.containers:
        path = directory.containers.get(container.id or "")
        if path is None:
            continue
        made = container_adjustment(pod, container, rules)
        writes += _writes(path, made)
        problems += made.problems
        for setting in (made.oom_score_adj, made.core_sched_group):
            if setting is not None:
                tasks.append(_task(path, pod, container.name, setting))
    return PodWrites(tuple(writes), tuple(tasks), tuple(dict.fromkeys(problems)))


def node_writes(view: HookView, rules: HookRules) -> PodWrites:
    """Return what the hooks want beside pods: of the directories of QoS classes, and of host applications."""
    writes: list[HookWrite] = []
    problems: list[str] = []
    if GROUP_IDENTITY in rules.hooks:
        for kube_qos, path in view.measured.directories.items():
            if (identity := directory_identity(kube_qos, rules)) is not None:
                writes.append(_write(path, CgroupFile.CPU_BVT, identity))
    for each in view.measured.applications:
        if GROUP_IDENTITY in rules.hooks and (identity := application_identity(each.qos, rules)) is not None:
            writes.append(_write(each.path, CgroupFile.CPU_BVT, identity))
        if CPUSET_ALLOCATOR in rules.hooks and (cpus := application_cpus(each.qos, rules, problems)) is not None:
            writes.append(HookWrite(CgroupWrite(each.path, CgroupFile.CPUSET_CPUS, cpus.value), cpus.hook, cpus.source))
    return PodWrites(tuple(writes), problems=tuple(dict.fromkeys(problems)))


class WantedOfNode:
    """Works out what hooks want, and remembers it of each pod for as long as the pod and the rules stay the same."""

    def __init__(self) -> None:
        self._rules = HookRules()
        self._pods: dict[str, tuple[HookPod, PodDirectory, PodWrites]] = {}
        self._last: tuple[HookView, Wanted] | None = None
        self._parts: tuple[PodWrites, ...] = ()
        self._seen: tuple[tuple[Any, ...], HookView] | None = None  # with what it was made of

    def of(self, view: NodeView, measured: HooksMeasured, settings: HookSettings) -> Wanted:
        """Return what hooks want on a view.

        An equal view has an equal answer, but for pods whose limits are not known any more: they keep those they had.

        Cost:    1 µs a pod that stays the same, else 20 µs.
        """
        hooks = self._hook_view(view, measured)
        rules, problems = hook_rules(hooks, view.strategy, view.feature_gates, settings)
        before = self._pods
        if rules == self._rules:
            rules = self._rules
            if self._last is not None and self._last[0] is hooks:
                return self._last[1]
        else:
            self._rules, self._pods = rules, {}
        directories = {each.uid: each for each in hooks.measured.pods}
        parts = [node_writes(hooks, rules)]
        pods: dict[str, tuple[HookPod, PodDirectory, PodWrites]] = {}
        for pod in hooks.pods:
            directory, known = directories[pod.uid], self._pods.get(pod.uid)
            if known is None or known[0] is not pod or known[1] != directory:
                made = pod_writes(pod, directory, rules)
                if not pod.is_limit_known and pod.uid in before:
                    made = _with_limits_of(made, before[pod.uid][2], directory, rules)
                known = pod, directory, made
            pods[pod.uid] = known
            parts.append(known[2])
        self._pods = pods
        wanted = self._joined(tuple(parts), problems, rules)
        self._last = hooks, wanted
        return wanted

    # The same one for every hook of a round.
    def _hook_view(self, view: NodeView, measured: HooksMeasured) -> HookView:
        given = measured, view.facts, view.frame.node, view.frame.nodeResourceTopology
        if self._seen is None or any(each is not now for each, now in zip(self._seen[0], given, strict=True)):
            self._seen = given, hook_view(*given)
        return self._seen[1]

    def _joined(self, parts: tuple[PodWrites, ...], problems: tuple[str, ...], rules: HookRules) -> Wanted:
        if self._last is not None and self._parts == parts and self._last[1].rules == rules:
            return self._last[1]
        self._parts = parts
        writes: dict[str, list[CgroupWrite]] = {}
        tasks: dict[str, list[TaskSetting]] = {}
        for part in parts:
            for write in part.writes:
                writes.setdefault(write.hook, []).append(write.write)
            for task in part.tasks:
                tasks.setdefault(task.hook, []).append(task)
        return Wanted(
            {hook: tuple(each) for hook, each in writes.items()},
            {hook: tuple(each) for hook, each in tasks.items()},
            (*problems, *(problem for part in parts for problem in part.problems)),
            rules,
        )


# A file that nothing wants is restored: to leave a limit alone is to want what was wanted of it before.
def _with_limits_of(made: PodWrites, before: PodWrites, directory: PodDirectory, rules: HookRules) -> PodWrites:
    paths = {directory.path, *directory.containers.values()}
    wanted = {(each.write.path, each.write.file) for each in made.writes}
    kept = [
        each
        for each in before.writes
        if each.write.file in _LIMITS
        and each.write.path in paths
        and (each.write.path, each.write.file) not in wanted
        and each.hook in rules.hooks
    ]
    return msgspec.structs.replace(made, writes=(*made.writes, *kept)) if kept else made


def _writes(path: str, made: Adjustment) -> list[HookWrite]:
    found = [_write(path, file, setting) for name, file in _NUMBERS if (setting := getattr(made, name)) is not None]
    if made.cpuset_cpus is not None and made.cpuset_cpus.value:
        cpus = made.cpuset_cpus
        found.append(HookWrite(CgroupWrite(path, CgroupFile.CPUSET_CPUS, cpus.value), cpus.hook, cpus.source))
    return found


def _write(path: str, file: CgroupFile, setting: Setting[int]) -> HookWrite:
    value: Value = None if file in _LIMITS and setting.value == UNLIMITED else setting.value
    return HookWrite(CgroupWrite(path, file, value), setting.hook, setting.source)


def _task(path: str, pod: HookPod, container: str, setting: Setting[int] | Setting[str]) -> TaskSetting:
    return TaskSetting(path, pod.key, container, setting.value, setting.hook, setting.source)


_WANTED = WantedOfNode()  # all of them decide from one answer


class HookDecision(Decision[Empty], frozen=True, kw_only=True):
    """The decision with what processes are to have; problems and rules are those of all hooks together."""

    tasks: tuple[TaskSetting, ...] = ()
    problems: tuple[str, ...] = ()
    rules: HookRules = HookRules()


class RuntimeHook(Strategy[HooksMeasured, Empty, HookSettings]):
    """One of koordlet's runtime hooks: asked each 10 s, and at once when a pod, the NodeSLO or a cgroup changes."""

    measured = HooksMeasured
    settings = HookSettings
    shared_section = "strategies.hooks"
    state = Empty
    annotations = frozenset({CPU_QOS_ANNOTATION, OOM_SCORE_ADJ_ANNOTATION, OOM_SCORE_ADJ_SPEC_ANNOTATION})
    labels = frozenset({GROUP_LABEL, POLICY_LABEL})
    is_taken_over = True

    def __init__(self, name: str, gate: str, summary: str, *needs: KernelFile, record: str | None = None) -> None:
        self.name = name
        self.gate = gate
        self.summary = summary
        self.needs = needs
        self.record = record

    @property
    def part(self) -> str:
        """One for all of them."""
        return HOOKS_PART

    def decide(
        self, view: NodeView, measured: HooksMeasured | None, state: Empty, settings: HookSettings
    ) -> HookDecision:
        """Return what this hook wants of pods, containers and directories.

        Skips:   not_due: what was written before stays.
        """
        if measured is None:
            return HookDecision(state=state, reason="the hooks are not due", skipped="not_due")
        wanted = _WANTED.of(view, measured, settings)
        writes, tasks = wanted.writes.get(self.gate, ()), wanted.tasks.get(self.gate, ())
        cgroups = paths_of(writes) if writes else len(tasks)
        return HookDecision(
            state=state,
            reason=f"runtime hook {self.gate}: {cgroups} cgroups of pods",
            writes=writes,
            tasks=tasks,
            problems=wanted.problems,
            rules=wanted.rules,
        )


RUNTIME_HOOKS = (
    RuntimeHook(
        "batchResource",
        BATCH_RESOURCE,
        "limit pods with batch resources to these",
        cgroup_file("limit CPU", "3.2", CgroupFile.CPU_QUOTA),
        cgroup_file("limit memory", "2.6.25", CgroupFile.MEMORY_LIMIT),
    ),
    RuntimeHook(
        "cpuSetAllocator",
        CPUSET_ALLOCATOR,
        "bind containers to the CPUs that the scheduler chose",
        cgroup_file("bind containers to CPUs", "2.6.24", CgroupFile.CPUSET_CPUS),
    ),
    RuntimeHook(
        "groupIdentity",
        GROUP_IDENTITY,
        "let latency-sensitive pods run before best-effort ones",
        cgroup_file("run best-effort pods when others are idle", "5.15", CgroupFile.CPU_IDLE),
        cgroup_file("weigh pods", "2.6.24", CgroupFile.CPU_SHARES),
    ),
    RuntimeHook(
        "cpuNormalization",
        CPU_NORMALIZATION,
        "smaller CPU quotas on faster CPUs",
        cgroup_file("scale the quota", "3.2", CgroupFile.CPU_QUOTA),
    ),
    RuntimeHook(
        "coreSched",
        CORE_SCHED,
        "keep pods that distrust each other off one core",
        machine_file(
            "keep pods off one core",
            "5.14",
            CORE_SCHEDULING,
            "Build it with CONFIG_SCHED_CORE; the CPUs must have two threads a core.",
        ),
        record=COOKIES,
    ),
    RuntimeHook("oomScoreAdj", OOM_SCORE_ADJ, "set oom_score_adj as a pod's annotation says", record=SCORES),
)
