"""The hooks as strategies, one for each of koordlet's gates."""

from __future__ import annotations

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.node_files.strategy_files import CORE_SCHEDULING, KernelFile, cgroup_file, machine_file
from koordebpf.policy.hooks.core_sched import GROUP_LABEL, POLICY_LABEL
from koordebpf.policy.hooks.group_identity import CPU_QOS_ANNOTATION
from koordebpf.policy.hooks.oom_score_adj import OOM_SCORE_ADJ_ANNOTATION, OOM_SCORE_ADJ_SPEC_ANNOTATION
from koordebpf.policy.hooks.settings import HookSettings
from koordebpf.policy.hooks.values import (
    BATCH_RESOURCE,
    CORE_SCHED,
    CPU_NORMALIZATION,
    CPUSET_ALLOCATOR,
    GROUP_IDENTITY,
    OOM_SCORE_ADJ,
    HookRules,
)
from koordebpf.policy.hooks.writes import TaskSetting, WantedOfNode, paths_of
from koordebpf.policy.strategy import Decision, Empty, Strategy
from koordebpf.state.hooks.measured import HooksMeasured
from koordebpf.state.view import NodeView

HOOKS_PART = "runtimeHooks"
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
    state = Empty
    annotations = frozenset({CPU_QOS_ANNOTATION, OOM_SCORE_ADJ_ANNOTATION, OOM_SCORE_ADJ_SPEC_ANNOTATION})
    labels = frozenset({GROUP_LABEL, POLICY_LABEL})

    def __init__(self, name: str, gate: str, summary: str, *needs: KernelFile) -> None:
        self.name = name
        self.gate = gate
        self.summary = summary
        self.needs = needs

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
    ),
    RuntimeHook("oomScoreAdj", OOM_SCORE_ADJ, "set oom_score_adj as a pod's annotation says"),
)
