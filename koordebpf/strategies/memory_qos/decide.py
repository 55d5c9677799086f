"""CgroupReconcile, koordlet's memory QoS: protects what pods request, and throttles what is above it. Pure.

An annotation is a tenant's: none of its values is weaker than what the class limits the pod to, unless an operator
allows that. No directory protects less than what is below it: a Kubernetes QoS directory has the sum of its pods, that
of all pods the sum of all. The kernel gives a child no more than its share of what its parent has (mm/page_counter.c,
effective_protection).

Source: koordinator pkg/koordlet/qosmanager/plugins/cgreconcile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import asdict, replace

from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.host.strategy_files import cgroup_file
from koordebpf.policy.reconcile import CgroupWrite, HookWrite, paths_of
from koordebpf.policy.strategy import Decision, Empty, Strategy
from koordebpf.quantity import quantity_bytes
from koordebpf.slo.strategies.resource_qos import DEFAULT_RESOURCE_QOS, MemoryQOS, QOSClass, ResourceQOSStrategy
from koordebpf.state.pods.hook_pods import PodDirectory
from koordebpf.state.view import NodeView
from koordebpf.strategies.memory_qos.values import (
    CLASSES,
    GATE,
    MEMORY_QOS_ANNOTATION,
    NO_QOS,
    MemoryContainer,
    MemoryPod,
    MemoryQosMeasured,
    MemoryQosRules,
    MemoryQosSettings,
    MemoryQosView,
    PodMemoryQOS,
    PodQos,
    memory_qos_view,
)
from koordebpf.units import PAGE_BYTES

_FIELDS = tuple(name for name in MemoryQOS.__struct_fields__ if name != "enable")
_PAGE_CACHE = tuple(name for name in _FIELDS if name.startswith("pageCache"))
_SINGLE = tuple(name for name in _FIELDS if name not in _PAGE_CACHE)
# Of these a larger value limits less, and 0 does not; of those below a smaller one does less for other pods.
_LIMITS: Final = ("throttlingPercent", "wmarkRatio")
_LEAST: Final = ("wmarkScalePermill", "wmarkMinAdj", "oomKillGroup")
_PROTECTION: Final = ("minLimitPercent", "lowLimitPercent")
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


class ProtectedLevel(msgspec.Struct, frozen=True, gc=False):
    """One directory on the way to a cgroup, in bytes.

    `setting`          memory.min or memory.low; None: all of its memory (max).
    `beside`           of the directories beside it: what each has and uses, summed up.
    """

    setting: int | None
    beside: int = 0


def in_effect(levels: Iterable[ProtectedLevel]) -> int | None:
    """Return what the last level keeps if it uses so much; the first is the highest. None: all of its memory.

    Without what a parent has and no child claims, which memory_recursiveprot hands down as well.

    Source:  mm/page_counter.c, effective_protection (mm/memcontrol.c before 6.11).
    >>> in_effect([ProtectedLevel(100), ProtectedLevel(100, beside=100)])
    50
    """
    effective: int | None = None
    for level in levels:
        wanted = level.setting
        if effective is None:
            effective = wanted
        elif wanted is None or wanted + level.beside > effective:
            # One with max claims what it uses; as much as its parent has is the most that can be.
            claimed = effective if wanted is None else wanted
            effective = claimed * effective // (claimed + level.beside) if claimed else 0
        else:
            effective = wanted
    return effective


# Bytes of the files: what is protected, where reclaim begins, and how much page cache a pod may have.
#
# Source: koordinator pkg/koordlet/qosmanager/plugins/cgreconcile, calculatePodResources, calculateContainerResources.


def protected_bytes(request_bytes: int, fields: MemoryQOS) -> tuple[int | None, int | None]:
    """Return memory.min and memory.low; None: the field is not set. low is at least min, unless it is 0.

    >>> protected_bytes(1000, MemoryQOS(minLimitPercent=50, lowLimitPercent=20))
    (500, 500)
    """
    low, least = _percent(request_bytes, fields.lowLimitPercent), _percent(request_bytes, fields.minLimitPercent)
    if low and least is not None:
        low = max(low, least)
    return least, low


def high_bytes(request_bytes: int, limit_bytes: int, percent: int, least_bytes: int) -> int:
    """Return memory.high: that percent of the way from the request to the limit, in whole pages; at least memory.min.

    >>> high_bytes(0, 1 << 20, 50, 0)
    524288
    """
    found = request_bytes + max(limit_bytes - request_bytes, 0) * percent // 100
    return max(found - found % PAGE_BYTES, least_bytes)


class PageCacheLimit(msgspec.Struct, frozen=True, gc=False):
    """How much page cache a pod may have. `is_sync`: what exceeds it is reclaimed by who reads."""

    n_bytes: int
    is_sync: bool


def page_cache_limit(fields: MemoryQOS, limit_bytes: int, problems: list[str]) -> PageCacheLimit | None:
    """Return the limit that the fields set; None: none."""
    size = page_cache_bytes(fields, limit_bytes, problems)
    if not size or not is_page_cache_on(fields, size):
        return None
    return PageCacheLimit(size, bool(fields.pageCacheLimitSync or fields.pageCacheReclaimSync))


def is_page_cache_on(fields: MemoryQOS, size: int) -> bool:
    """Tell whether a limit of this size is on."""
    if fields.pageCacheEnable is not None:
        return fields.pageCacheEnable and size > 0
    return size > 0 if fields.pageCacheLimitEnable is None else bool(fields.pageCacheLimitEnable) and size > 0


def page_cache_bytes(fields: MemoryQOS, limit_bytes: int, problems: list[str]) -> int | None:
    """Return how much page cache a pod may have; 0: as much as it likes. None: the fields do not say.

    A size is at most the pod's limit; a percentage is of that limit, and 0 without one.
    """
    if fields.pageCacheLimitSize is not None:
        try:
            size = quantity_bytes(fields.pageCacheLimitSize, "pageCacheLimitSize")
        except ConfigError as error:
            problems.append(f"{error}; page cache is not limited")
            return None
        return min(size, limit_bytes or (1 << 53))
    if fields.pageCacheLimitPercent is not None:
        return limit_bytes * fields.pageCacheLimitPercent // 100
    return None


def _percent(amount: int, percent: int | None) -> int | None:
    return None if percent is None else amount * percent // 100


# Which fields of memoryQOS a pod has: those of its class, a policy's in their place, single ones of its annotation.
#
# Source: koordinator pkg/koordlet/qosmanager/plugins/cgreconcile, mergePodResourceQoSForMemoryQoS.


def pod_fields(pod: MemoryPod, rules: MemoryQosRules) -> PodQos:
    """Return the fields of a pod. Without a NodeSLO it has none.

    Cost:    10 µs.
    """
    if rules.qos is None:
        return NO_QOS
    of_class = class_fields(rules.qos, pod.class_name)
    place = f"NodeSLO resourceQOSStrategy.{pod.class_name}.memoryQOS"
    has = {field: getattr(of_class, field) for field in _FIELDS}
    from_class = {field: f"{place}.{field}" for field, value in has.items() if value is not None}
    if pod.own is None:
        return PodQos(of_class, from_class)
    values, sources = _asked(pod.own, has, from_class, pod.class_name)
    own = PodMemoryQOS() if pod.own.policy == "none" else pod.own
    problems: list[str] = []
    weaker: list[str] = []
    for field in _SINGLE:
        if rule := _broken_rule(field, values[field], has[field], pod, rules):
            weaker.append(field)
            if getattr(own, field) is not None:
                problems.append(f"annotation {MEMORY_QOS_ANNOTATION} {field}: {values[field]}: {rule}")
    if not rules.weaker_annotations and _has_more_page_cache(MemoryQOS(**values), of_class, pod, problems):
        weaker += _PAGE_CACHE
        if any(getattr(own, field) is not None for field in _PAGE_CACHE):
            problems.append(f"annotation {MEMORY_QOS_ANNOTATION}: must limit the page cache as its class does, or more")
    values |= {field: has[field] for field in weaker}
    sources |= {field: from_class[field] for field in weaker if field in from_class}
    return PodQos(MemoryQOS(**values), sources, tuple(problems))


def class_fields(qos: ResourceQOSStrategy, name: str) -> MemoryQOS:
    """Return the fields of a class; none where it is not enabled."""
    found = _of_class(qos, name)
    return found if found.enable else MemoryQOS()


# As koordlet merges them.
def _asked(
    own: PodMemoryQOS, has: dict[str, Any], from_class: dict[str, str], class_name: str
) -> tuple[dict[str, Any], dict[str, str]]:
    if own.policy == "none":
        return dict.fromkeys(_FIELDS), {}
    values, sources = dict(has), dict(from_class)
    if own.policy == "auto":
        recommended = asdict(_of_class(DEFAULT_RESOURCE_QOS, class_name))
        values = {field: recommended[field] for field in _FIELDS}
        place = f"annotation {MEMORY_QOS_ANNOTATION} policy auto"
        sources = {field: f"{place}.{field}" for field, value in values.items() if value is not None}
    for field in _FIELDS:
        if (value := getattr(own, field)) is not None:
            values[field], sources[field] = value, f"annotation {MEMORY_QOS_ANNOTATION} {field}"
    return values, sources


# What a value that is weaker than the class's would have to be; "": it is not. One that is not set counts as 0.
def _broken_rule(field: str, asked: int | None, has: int | None, pod: MemoryPod, rules: MemoryQosRules) -> str:
    value, of_class = asked or 0, has or 0
    if field == "priority":
        most = max(rules.most_priority, of_class)
        return f"must be at most {most}" if value > most else ""
    if rules.weaker_annotations:
        return ""
    if field in _LIMITS and of_class and not 0 < value <= of_class:
        return f"must be 1 to {of_class}, as its class has"
    if field in _LEAST and value < of_class:
        return f"must be at least {of_class}, as its class has"
    if field in _PROTECTION and pod.is_overcommitted and value > of_class:
        return f"must be at most {of_class}, as its class has: the pod requests memory that others may claim"
    return ""


def _has_more_page_cache(asked: MemoryQOS, of_class: MemoryQOS, pod: MemoryPod, problems: list[str]) -> bool:
    most = page_cache_limit(of_class, pod.limit_bytes, [])
    if most is None:
        return False
    said: list[str] = []
    limit = page_cache_limit(asked, pod.limit_bytes, said)
    is_more = limit is None or limit.n_bytes > most.n_bytes or limit.is_sync < most.is_sync
    problems += said if is_more else []
    return is_more


def _of_class(qos: ResourceQOSStrategy, name: str) -> MemoryQOS:
    of_class: QOSClass | None = getattr(qos, name)
    found = of_class.memoryQOS if of_class is not None else None
    return replace(found) if found is not None else MemoryQOS()


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
        if fields.pageCacheLimitSize is None and fields.pageCacheEnable is not None:
            level.add(CgroupFile.MEMORY_PAGECACHE_ENABLE, int(fields.pageCacheEnable), "pageCacheEnable")
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


class MemoryQosDecision(Decision[Empty], frozen=True, kw_only=True):
    """The decision with what of the node's objects cannot be used, and the rules that it was made by.

    `protected_bytes`  of the Kubernetes QoS directories, by the file's name, then by the class.
    """

    problems: tuple[str, ...] = ()
    protected_bytes: Mapping[str, Mapping[str, int]] = {}
    rules: MemoryQosRules = MemoryQosRules()


def memory_qos_rules(view: MemoryQosView, settings: MemoryQosSettings) -> MemoryQosRules:
    """Return the rules that a node's pods are decided by."""
    known = set(CgroupFile)
    return MemoryQosRules(
        qos=view.measured.qos,
        files=frozenset(CgroupFile(name) for name in view.measured.files if name in known),
        allocatable_bytes=view.allocatable_bytes,
        soft_limits=settings.soft_limits,
        most_priority=settings.most_priority,
        weaker_annotations=settings.weaker_annotations,
    )


class WantedOfNode:
    """Works out what is wanted, and remembers it of each pod for as long as the pod and the rules stay the same."""

    def __init__(self) -> None:
        self._rules = MemoryQosRules()
        self._pods: dict[str, tuple[MemoryPod, PodDirectory, PodWrites]] = {}
        self._parts: tuple[PodWrites, ...] = ()
        self._writes: tuple[CgroupWrite, ...] = ()

    def of(self, view: MemoryQosView, rules: MemoryQosRules) -> tuple[tuple[CgroupWrite, ...], tuple[str, ...]]:
        """Return the files, and sentences on what cannot be used; equal arguments have equal answers.

        Cost:    1 µs a pod that stays the same, else 60 µs.
        """
        if rules != self._rules:
            self._rules, self._pods = rules, {}
        directories = {each.uid: each for each in view.measured.pods}
        pods: dict[str, tuple[MemoryPod, PodDirectory, PodWrites]] = {}
        for pod in view.pods:
            directory, known = directories[pod.uid], self._pods.get(pod.uid)
            if known is None or known[0] is not pod or known[1] != directory:
                known = pod, directory, pod_writes(pod, directory, self._rules)
            pods[pod.uid] = known
        self._pods = pods
        made = tuple(each for _, _, each in pods.values())
        parts = (directory_writes(view, made, self._rules), *made)
        if parts != self._parts:
            self._parts = parts
            self._writes = tuple(each.write for part in parts for each in part.writes)
        return self._writes, tuple(problem for part in self._parts for problem in part.problems)


def _protected(view: MemoryQosView, writes: tuple[CgroupWrite, ...]) -> dict[str, dict[str, int]]:
    classes = {path: kube_qos for kube_qos, path in view.measured.directories.items()}
    protected: dict[str, dict[str, int]] = {}
    for each in writes[: len(classes) * len(CgroupFile)]:  # theirs come first
        if each.path in classes and each.file in (MIN, LOW) and isinstance(each.value, int):
            protected.setdefault(each.file.value, {})[classes[each.path]] = each.value
    return protected


_WANTED = WantedOfNode()


class MemoryQos(Strategy[MemoryQosMeasured, Empty, MemoryQosSettings]):
    """Asked each 10 s, and at once when a pod, the NodeSLO or a cgroup changes."""

    name = "memoryQos"
    gate = GATE
    summary = "protect the memory that pods request, throttle what is above it"
    measured = MemoryQosMeasured
    settings = MemoryQosSettings
    annotations = frozenset({MEMORY_QOS_ANNOTATION})
    needs = (
        cgroup_file("keep requested memory from any reclaim", "4.18", CgroupFile.MEMORY_MIN),
        cgroup_file("protect requested memory from reclaim", "4.5", CgroupFile.MEMORY_LOW),
        cgroup_file("the same on v1, while the machine is short", "2.6.34", CgroupFile.MEMORY_SOFT_LIMIT),
        cgroup_file("throttle above a share of the limit", "4.5", CgroupFile.MEMORY_HIGH),
        cgroup_file("kill a container's processes together", "4.19", CgroupFile.MEMORY_OOM_GROUP),
    )
    state = Empty

    def decide(
        self, view: NodeView, measured: MemoryQosMeasured | None, state: Empty, settings: MemoryQosSettings
    ) -> MemoryQosDecision:
        """Return what is wanted of pods, containers and the directories above them.

        Skips:   not_due: what was written before stays.
        """
        if measured is None:
            return MemoryQosDecision(state=state, reason="memory QoS is not due", skipped="not_due")
        node = memory_qos_view(measured, view.facts, view.frame.node)
        rules = memory_qos_rules(node, settings)
        writes, problems = _WANTED.of(node, rules)
        if protects(rules) and rules.files and not rules.soft_limits and CgroupFile.MEMORY_MIN not in rules.files:
            problems = (*problems, "cgroup v1 has no memory.min and low: strategies.memoryQos.softLimits is near them")
        return MemoryQosDecision(
            state=state,
            reason=f"memory QoS: {paths_of(writes)} cgroups",
            writes=writes,
            problems=problems,
            protected_bytes=_protected(node, writes),
            rules=rules,
        )


MEMORY_QOS = MemoryQos()
