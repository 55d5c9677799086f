"""What all hooks want of the files of a node, each hook's apart. Pods that stay as they are cost next to nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koordebpf.kernel.cgroup.files import CgroupFile, Value
from koordebpf.policy.hooks.adjust import container_adjustment, pod_adjustment
from koordebpf.policy.hooks.cpuset_allocator import application_cpus
from koordebpf.policy.hooks.group_identity import application_identity, directory_identity
from koordebpf.policy.hooks.rules import hook_rules
from koordebpf.policy.hooks.settings import HookSettings
from koordebpf.policy.hooks.values import CPUSET_ALLOCATOR, GROUP_IDENTITY, UNLIMITED, Adjustment, HookRules, Setting
from koordebpf.policy.reconcile.values import CgroupWrite
from koordebpf.state.hooks.measured import HooksMeasured, HookView, PodDirectory
from koordebpf.state.hooks.pods import HookPod
from koordebpf.state.hooks.view import hook_view
from koordebpf.state.view import NodeView

_NUMBERS: tuple[tuple[str, CgroupFile], ...] = (
    ("cpu_shares", CgroupFile.CPU_SHARES),
    ("cfs_quota_us", CgroupFile.CPU_QUOTA),
    ("memory_limit_bytes", CgroupFile.MEMORY_LIMIT),
    ("bvt_warp_ns", CgroupFile.CPU_BVT),
    ("cpu_idle", CgroupFile.CPU_IDLE),
)
_LIMITS = (CgroupFile.CPU_QUOTA, CgroupFile.MEMORY_LIMIT)


class HookWrite(msgspec.Struct, frozen=True, gc=False):
    """One file, the hook that wants it so, and in words the field that the value comes from."""

    write: CgroupWrite
    hook: str
    source: str


class TaskSetting(msgspec.Struct, frozen=True, gc=False):
    """What the processes of a container are to have: oom_score_adj, or a core scheduling group ("" none)."""

    path: str
    pod: str
    container: str
    value: int | str
    hook: str
    source: str


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


def paths_of(writes: Iterable[CgroupWrite]) -> int:
    """Return how many cgroups are written."""
    return len({each.path for each in writes})
