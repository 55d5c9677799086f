"""Which groups there are to be, what their schemata are, and whose tasks are in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from koordebpf.kernel.cgroup.files import Sysctl
from koordebpf.policy.reconcile.values import SysctlWrite
from koordebpf.policy.resctrl.masks import bandwidth, cache_mask
from koordebpf.policy.resctrl.settings import ResctrlSettings
from koordebpf.slo.pods.qos import QOS_LABEL, koord_qos_or_default
from koordebpf.slo.strategies.resource_qos import ResctrlQOS
from koordebpf.state.resctrl.measured import CLASSES, ResctrlMeasured
from koordebpf.state.view import LIVE_PHASES, PodView

_GROUP_OF = {"LSE": "LSR", "LSR": "LSR", "LS": "LS", "BE": "BE"}


class Members(msgspec.Struct, frozen=True):
    """The directories whose tasks are to be in a group; paths are below the mount."""

    group: str
    paths: tuple[str, ...]


class ResctrlWanted(msgspec.Struct, frozen=True):
    """What is wanted; `problems` are sentences on what cannot be."""

    groups: tuple[str, ...] = ()
    schemata: tuple[SysctlWrite, ...] = ()
    members: tuple[Members, ...] = ()
    problems: tuple[str, ...] = ()


def resctrl_wanted(measured: ResctrlMeasured, pods: Iterable[PodView], settings: ResctrlSettings) -> ResctrlWanted:
    """Return the groups of all classes that are enabled; schemata and tasks only of those that are there already."""
    enabled = {name: each for name in CLASSES if (each := measured.classes.get(name)) is not None and each.enable}
    if measured.problem:
        return ResctrlWanted(problems=(measured.problem,) if enabled else ())
    problems: list[str] = []
    for name in enabled:
        if name in measured.foreign:
            problems.append(f"resctrl group {name}: another process made it: it is left alone. Remove it with rmdir")
    groups = tuple(name for name in enabled if name not in measured.foreign)
    there = [name for name in groups if name in measured.groups]
    writes: list[SysctlWrite] = []
    for name in there:
        for part, value in _schemata(name, enabled[name], measured, settings, problems.append):
            writes.append(SysctlWrite(Sysctl.RESCTRL_SCHEMATA, value, part))
    return ResctrlWanted(groups, tuple(writes), _members(measured, pods, there), tuple(problems))


def _schemata(
    name: str,
    qos: ResctrlQOS,
    measured: ResctrlMeasured,
    settings: ResctrlSettings,
    say: Callable[[str], None],
) -> Iterator[tuple[str, int]]:
    path, l3, mb = f"spec.resourceQOSStrategy.{CLASSES[name]}.resctrlQOS", measured.l3, measured.mb
    start, end = qos.catRangeStartPercent, qos.catRangeEndPercent
    if l3 is not None and start is not None and end is not None:
        mask = cache_mask(l3, start, end)
        if isinstance(mask, int):
            yield from ((f"{name}/{each}/{domain}", mask) for each in l3.resources for domain in l3.domains)
        else:
            say(f"{path}: {start} to {end} % of the L3: {mask}")
    if mb is not None and qos.mbaPercent is not None:
        value = bandwidth(mb, qos.mbaPercent, settings)
        if isinstance(value, int):
            yield from ((f"{name}/MB/{domain}", value) for domain in mb.domains)
        else:
            say(f"{path}.mbaPercent: {qos.mbaPercent}: {value}")


def pods_of_groups(
    measured: ResctrlMeasured, pods: Iterable[PodView], groups: Iterable[str]
) -> tuple[tuple[str, PodView], ...]:
    """Return the pods whose tasks are to be in these groups, each with its group: group by group, by path.

    A pod's own annotation on resctrl does not count: a best-effort pod would leave its limits by writing one.
    """
    paths = {each.uid: each.path for each in measured.pods}
    found: dict[str, list[PodView]] = {name: [] for name in groups}
    for pod in pods:
        group = _GROUP_OF.get(koord_qos_or_default({QOS_LABEL: pod.koord_qos}, pod.kube_qos), "")
        if group in found and pod.uid in paths and pod.phase in LIVE_PHASES:
            found[group].append(pod)
    return tuple((name, pod) for name, each in found.items() for pod in sorted(each, key=lambda pod: paths[pod.uid]))


def _members(measured: ResctrlMeasured, pods: Iterable[PodView], groups: Iterable[str]) -> tuple[Members, ...]:
    paths = {each.uid: each.path for each in measured.pods}
    found: dict[str, list[str]] = {}
    for name, pod in pods_of_groups(measured, pods, groups):
        found.setdefault(name, []).append(paths[pod.uid])
    return tuple(Members(name, tuple(each)) for name, each in found.items())
