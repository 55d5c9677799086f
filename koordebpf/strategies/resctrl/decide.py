"""RdtResctrl: groups of resctrl, their schemata and their members. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from koordebpf.kernel.cgroup.files import Sysctl
from koordebpf.kernel.host.strategy_files import machine_file
from koordebpf.policy.plan import PodAction
from koordebpf.policy.reconcile import SysctlWrite
from koordebpf.policy.strategy import Decision, Empty, Strategy
from koordebpf.slo.pods.qos import QOS_LABEL, koord_qos_or_default
from koordebpf.slo.strategies.resource_qos import ResctrlQOS
from koordebpf.state.view import LIVE_PHASES, NodeView, PodView
from koordebpf.strategies.resctrl.values import (
    CLASSES,
    GROUPS,
    BandwidthInfo,
    CacheInfo,
    ResctrlMeasured,
    ResctrlSettings,
)

_GROUP_OF = {"LSE": "LSR", "LSR": "LSR", "LS": "LS", "BE": "BE"}


def cache_mask(info: CacheInfo, start_percent: int, end_percent: int) -> int | str:
    """Return the ways from one percent to another, or the rule that is broken.

    Both ends are rounded up to whole ways, as in koordlet; a mask of fewer ways than the hardware takes (min_cbm_bits)
    becomes one of so many, down from its end.

    >>> hex(cache_mask(CacheInfo(0x7FF, 1, ("L3",), (0,)), 0, 30))
    '0xf'
    """
    if info.cbm_mask & (info.cbm_mask + 1) or not info.cbm_mask:
        return f"cbm_mask is {info.cbm_mask:x}: must be ones from bit 0"
    if not 0 <= start_percent < end_percent <= 100:
        return "catRangeStartPercent must be below catRangeEndPercent, both 0 to 100"
    ways = info.cbm_mask.bit_count()
    first, last = -(-ways * start_percent // 100), -(-ways * end_percent // 100)
    least = min(max(info.min_cbm_bits, 1), ways)
    if last - first < least:
        last = max(last, least)
        first = last - least
    return (1 << last) - (1 << first)


def bandwidth(info: BandwidthInfo, percent: int, settings: ResctrlSettings) -> int | str:
    """Return what MB is to be, or the rule that is broken: rounded up to bandwidth_gran, at least min_bandwidth."""
    if not 1 <= percent <= 100:
        return "mbaPercent must be 1 to 100"
    if info.unit == "mbps":
        return "resctrl is mounted with mba_MBps: a percentage has no meaning"
    if percent == 100:
        return info.most
    wanted = settings.absolute_bandwidth * percent // 100 if info.unit == "absolute" else percent
    gran = max(info.bandwidth_gran, 1)
    return min(max(-(-wanted // gran) * gran, info.min_bandwidth, 1), info.most)


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


class ResctrlDecision(Decision[Empty], frozen=True, kw_only=True):
    """The decision with the groups that are to be there and whose tasks are in them."""

    groups: tuple[str, ...] = ()
    members: tuple[Members, ...] = ()
    problems: tuple[str, ...] = ()

    def pod_actions(self, view: NodeView) -> tuple[PodAction, ...]:
        """Return whose tasks are moved to which group, also to one that is to be made first.

        Where tasks were counted, pods without one to move are left out.
        """
        measured = RDT_RESCTRL.measured_of(view)
        if measured is None:
            return ()
        found = []
        for group, pod in pods_of_groups(measured, view.pods, self.groups):
            counted = measured.tasks.get(pod.uid)
            tasks = None if counted is None else counted.total - counted.in_groups.get(group, 0)
            if tasks != 0:
                found.append(PodAction(pod.uid, pod.namespace, pod.name, resctrl_group=group, tasks=tasks))
        return tuple(found)


class RdtResctrl(Strategy[ResctrlMeasured, Empty, ResctrlSettings]):
    """Wants a group for each class whose resctrlQOS is enabled."""

    name = "rdtResctrl"
    gate = "RdtResctrl"
    summary = "give each QoS class its shares of L3 cache and memory bandwidth"
    measured = ResctrlMeasured
    record = GROUPS
    needs = (
        machine_file(
            "share L3 cache and memory bandwidth",
            "4.10",
            "/sys/fs/resctrl/schemata",
            "Use a CPU with RDT, AMD QoS or MPAM; mount -t resctrl resctrl /sys/fs/resctrl.",
        ),
    )
    settings = ResctrlSettings
    state = Empty

    def decide(
        self, view: NodeView, measured: ResctrlMeasured | None, state: Empty, settings: ResctrlSettings
    ) -> ResctrlDecision:
        """Return the groups, their schemata and their members.

        Skips:   not_known: the cluster has not been heard of, or resctrl was not read; all stays as it is.
        """
        if measured is None:
            return ResctrlDecision(state=state, reason="resctrl is not due", skipped="not_known")
        if view.measured.node.scope != "machine":
            return ResctrlDecision(state=state, reason="resctrl: the node is a cgroup of a larger machine")
        wanted = resctrl_wanted(measured, view.pods, settings)
        return ResctrlDecision(
            state=state,
            reason=f"resctrl: {len(wanted.groups)} classes with shares of their own",
            sysctls=wanted.schemata,
            groups=wanted.groups,
            members=wanted.members,
            problems=wanted.problems,
        )


RDT_RESCTRL = RdtResctrl()
