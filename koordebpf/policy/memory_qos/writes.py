"""The files of a pod, of its containers, and of the directories above it.

No directory protects less than what is below it: a Kubernetes QoS directory has the sum of its pods, that of all pods
the sum of all. The kernel gives a child no more than its share of what its parent has (mm/page_counter.c,
effective_protection).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.hooks.writes import HookWrite
from koordebpf.policy.memory_qos.amounts import high_bytes, is_page_cache_on, page_cache_bytes, protected_bytes
from koordebpf.policy.memory_qos.fields import class_fields, pod_fields
from koordebpf.policy.memory_qos.values import GATE, MemoryQosRules, PodQos
from koordebpf.policy.reconcile.values import CgroupWrite
from koordebpf.slo.strategies.resource_qos import MemoryQOS
from koordebpf.state.hooks.measured import PodDirectory
from koordebpf.state.memory_qos.measured import MemoryQosView
from koordebpf.state.memory_qos.pods import CLASSES, MemoryContainer, MemoryPod

MIN, LOW, HIGH = CgroupFile.MEMORY_MIN, CgroupFile.MEMORY_LOW, CgroupFile.MEMORY_HIGH
SOFT = CgroupFile.MEMORY_SOFT_LIMIT
_ALL = "Guaranteed"  # the directory of all pods
# As the fields say, at a pod's own level and at its containers'.
_AS_SET: tuple[tuple[str, CgroupFile], ...] = (
    ("wmarkRatio", CgroupFile.MEMORY_WMARK_RATIO),
    ("wmarkScalePermill", CgroupFile.MEMORY_WMARK_SCALE),
    ("wmarkMinAdj", CgroupFile.MEMORY_WMARK_MIN_ADJ),
    ("priority", CgroupFile.MEMORY_PRIORITY),
    ("priorityEnable", CgroupFile.MEMORY_USE_PRIORITY_OOM),
)
_OF_DIRECTORIES = _AS_SET[3:]
_DIRECTORY_CLASSES = {_ALL: "lsrClass", "Burstable": "lsClass", "BestEffort": "beClass"}


class PodWrites(msgspec.Struct, frozen=True):
    """What memory QoS wants of one pod; `min_bytes` and `low_bytes` of its own level, None: left alone."""

    writes: tuple[HookWrite, ...] = ()
    problems: tuple[str, ...] = ()
    kube_qos: str = ""
    path: str = ""
    min_bytes: int | None = None
    low_bytes: int | None = None


class _Level:
    def __init__(self, path: str, qos: PodQos, files: frozenset[CgroupFile]) -> None:
        self.writes: list[HookWrite] = []
        self._path, self._qos, self._files = path, qos, files

    def add(self, file: CgroupFile, value: int | None, field: str, more: str = "") -> None:
        if file in self._files:
            source = f"{self._qos.source(field)}{more}"
            self.writes.append(HookWrite(CgroupWrite(self._path, file, value), GATE, source))

    def add_as_set(self) -> None:
        for field, file in _AS_SET:
            if (value := getattr(self._qos.fields, field)) is not None:
                self.add(file, value, field)
        # 0 is what a class has that says nothing: it would undo kubelet's own memory.oom.group of containers.
        if self._qos.fields.oomKillGroup:
            self.add(CgroupFile.MEMORY_OOM_GROUP, 1, "oomKillGroup")


def pod_writes(pod: MemoryPod, directory: PodDirectory, rules: MemoryQosRules) -> PodWrites:
    """Return what is wanted of a pod and of those of its containers that have a directory.

    Cost:    60 µs with three containers.
    """
    qos, problems = pod_fields(pod, rules), list(pod.problems)
    problems += qos.problems
    least, low = protected_bytes(pod.request_bytes, qos.fields)
    level = _Level(directory.path, qos, rules.files)
    if least is not None:
        level.add(MIN, least, "minLimitPercent", f" of {pod.request_bytes} requested")
    if low is not None:
        level.add(LOW, low, "lowLimitPercent", f" of {pod.request_bytes} requested")
    level.add_as_set()
    if pod.is_limit_known:
        _add_page_cache(level, qos.fields, pod.limit_bytes, problems)
    writes = level.writes
    for container in pod.containers:
        if (path := directory.containers.get(container.id or "")) is not None:
            writes += _container(container, path, qos, rules)
    return PodWrites(
        tuple(writes),
        tuple(f"pod {pod.key}: {each}" for each in dict.fromkeys(problems)),
        pod.kube_qos,
        directory.path,
        least,
        low,
    )


def directory_writes(view: MemoryQosView, pods: Iterable[PodWrites], rules: MemoryQosRules) -> PodWrites:
    """Return what is wanted of the directories above pods, and of pods' soft limits, which depend on other pods."""
    writes: list[HookWrite] = []
    problems: list[str] = []
    every = tuple(pods)
    for kube_qos, path in view.measured.directories.items():
        below = [each for each in every if kube_qos in (_ALL, each.kube_qos)]
        for file, sums in (
            (MIN, [each.min_bytes for each in below if each.min_bytes is not None]),
            (LOW, [each.low_bytes for each in below if each.low_bytes is not None]),
        ):
            if not sums or file not in rules.files:
                continue
            wanted = sum(sums)
            of = "all pods" if kube_qos == _ALL else f"{kube_qos} pods"
            writes.append(HookWrite(CgroupWrite(path, file, wanted), GATE, f"sum of {len(sums)} of {of}"))
            if kube_qos == _ALL:
                problems += _unprotected_above(view, file, wanted)
        writes += _of_directory(kube_qos, path, rules)
    writes += _soft_limits(every, rules)
    return PodWrites(tuple(writes), tuple(problems))


def protects(rules: MemoryQosRules) -> bool:
    """Tell whether the pods of any class are protected."""
    if rules.qos is None:
        return False
    classes = [class_fields(rules.qos, name) for name in sorted(set(CLASSES.values()))]
    return any(each.minLimitPercent or each.lowLimitPercent for each in classes)


def _container(container: MemoryContainer, path: str, qos: PodQos, rules: MemoryQosRules) -> list[HookWrite]:
    level, fields, request = _Level(path, qos, rules.files), qos.fields, container.request_bytes
    least, low = protected_bytes(request, fields)
    if least is not None:
        level.add(MIN, least, "minLimitPercent", f" of {request} requested")
    if low is not None:
        level.add(LOW, low, "lowLimitPercent", f" of {request} requested")
    limit = container.limit_bytes or rules.allocatable_bytes
    if fields.throttlingPercent == 0:
        level.add(HIGH, None, "throttlingPercent", ": no throttling")
    elif fields.throttlingPercent is not None and limit is not None and container.is_limit_known:
        high = high_bytes(request, limit, fields.throttlingPercent, least or 0)
        of = "its limit" if container.limit_bytes else "the Node's allocatable memory"
        level.add(HIGH, high, "throttlingPercent", f" between its request and {of}")
    level.add_as_set()
    return level.writes


def _add_page_cache(level: _Level, fields: MemoryQOS, limit_bytes: int, problems: list[str]) -> None:
    size = page_cache_bytes(fields, limit_bytes, problems)
    if size is None:
        return
    field = "pageCacheLimitPercent" if fields.pageCacheLimitSize is None else "pageCacheLimitSize"
    level.add(CgroupFile.MEMORY_PAGECACHE_ENABLE, int(is_page_cache_on(fields, size)), field)
    level.add(CgroupFile.MEMORY_PAGECACHE_SIZE, size, field)
    if size > 0:
        is_sync = fields.pageCacheLimitSync or fields.pageCacheReclaimSync
        level.add(CgroupFile.MEMORY_PAGECACHE_SYNC, int(bool(is_sync)), field)


# memory.oom.group of such a directory would let the kernel kill every pod below it at once: it is not written.
def _of_directory(kube_qos: str, path: str, rules: MemoryQosRules) -> list[HookWrite]:
    name = _DIRECTORY_CLASSES.get(kube_qos)
    if rules.qos is None or name is None:
        return []
    fields = class_fields(rules.qos, name)
    return [
        HookWrite(CgroupWrite(path, file, value), GATE, f"NodeSLO resourceQOSStrategy.{name}.memoryQOS.{field}")
        for field, file in _OF_DIRECTORIES
        if (value := getattr(fields, field)) is not None and file in rules.files
    ]


# What is above its soft limit is reclaimed first, and without one nothing is: where a class is protected all pods have
# one, those too whose annotation wants none.
def _soft_limits(pods: tuple[PodWrites, ...], rules: MemoryQosRules) -> list[HookWrite]:
    if not (rules.soft_limits and SOFT in rules.files and protects(rules)):
        return []
    kept = [(each.path, max(each.min_bytes or 0, each.low_bytes or 0)) for each in pods]
    return [
        HookWrite(CgroupWrite(path, SOFT, amount), GATE, "strategies.memoryQos.softLimits: in place of memory.low")
        for path, amount in kept
    ]


def _unprotected_above(view: MemoryQosView, file: CgroupFile, wanted: int) -> list[str]:
    problems = []
    for each in view.measured.above:
        has = each.min_bytes if file is MIN else each.low_bytes
        if has is not None and has < wanted:
            problems.append(
                f"/{each.path} has {file.value} {has}, pods below it are to have {wanted}: they get no more"
            )
    return problems
