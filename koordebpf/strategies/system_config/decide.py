"""SystemConfig: files of the machine from systemStrategy of the NodeSLO. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from koordebpf.kernel.cgroup.files import Sysctl, broken_sysctl_rule
from koordebpf.kernel.host.strategy_files import SCHED_FEATURES, machine_file
from koordebpf.policy.reconcile import SysctlWrite
from koordebpf.policy.strategy import Decision, Empty, Strategy
from koordebpf.printable import printable
from koordebpf.slo.strategies.system import SystemStrategy
from koordebpf.state.view import NodeView
from koordebpf.strategies.system_config.values import SystemConfigSettings, SystemMeasured

_PATH = "spec.systemStrategy"
_MOST_FEATURES = 64  # Why: kernel/sched/features.h of Linux 6.18 has 30
_KIB = 1024

# Fields whose value is that of the file.
_PLAIN = {
    "watermarkScaleFactor": Sysctl.WATERMARK_SCALE_FACTOR,
    "memcgReapBackGround": Sysctl.MEMCG_REAP_BACKGROUND,
    "schedGroupIdentityEnabled": Sysctl.SCHED_GROUP_IDENTITY,
    "schedIdleSaverWmark": Sysctl.SCHED_IDLE_SAVER_WMARK,
    "pageCacheLimitEnabled": Sysctl.PAGE_CACHE_LIMIT,
}


class SystemWrites(msgspec.Struct, frozen=True):
    """What files are to hold; `problems` are sentences on fields that give none."""

    sysctls: tuple[SysctlWrite, ...] = ()
    problems: tuple[str, ...] = ()


def system_writes(strategy: SystemStrategy, capacity_bytes: int, settings: SystemConfigSettings) -> SystemWrites:
    """Return a write for each field that is there and in its range; a field that is not changes no other.

    Units:   `capacity_bytes` is the node's memory, of which minFreeKbytesFactor is in ten thousandths.
    Source:  pkg/koordlet/qosmanager/plugins/sysreconcile; the ranges of pkg/koordlet/util/system/system_resource.go.
    """
    found: list[SysctlWrite] = []
    problems: list[str] = []
    for field, write in (*_min_free(strategy, capacity_bytes), *_plain(strategy), *_features(strategy)):
        if (rule := _broken_rule(write, capacity_bytes, settings)) is None:
            found.append(write)
        else:
            problems.append(f"{_PATH}.{field}: {write.value}: {write.sysctl.value} {rule}: it is left alone")
    if len(strategy.schedFeatures or {}) > _MOST_FEATURES:
        problems.append(f"{_PATH}.schedFeatures: must have at most {_MOST_FEATURES} entries: all are left alone")
    return SystemWrites(tuple(found), tuple(problems))


def _min_free(strategy: SystemStrategy, capacity_bytes: int) -> Iterator[tuple[str, SysctlWrite]]:
    factor = strategy.minFreeKbytesFactor
    if factor is not None:
        yield "minFreeKbytesFactor", SysctlWrite(Sysctl.MIN_FREE_KBYTES, capacity_bytes // _KIB * factor // 10_000)


def _plain(strategy: SystemStrategy) -> Iterator[tuple[str, SysctlWrite]]:
    for field, sysctl in _PLAIN.items():
        value = getattr(strategy, field)
        if value is not None:
            yield field, SysctlWrite(sysctl, value)


def _features(strategy: SystemStrategy) -> Iterator[tuple[str, SysctlWrite]]:
    features = strategy.schedFeatures or {}
    if len(features) <= _MOST_FEATURES:
        for name, is_on in sorted(features.items()):
            field = f"schedFeatures[{printable(name)[:80]}]"
            yield field, SysctlWrite(Sysctl.SCHED_FEATURES, int(is_on), name)


def _broken_rule(write: SysctlWrite, capacity_bytes: int, settings: SystemConfigSettings) -> str | None:
    rule = broken_sysctl_rule(write.sysctl, write.value, write.part)
    most_kib = capacity_bytes // _KIB * settings.most_min_free_percent // 100
    if rule is None and write.sysctl is Sysctl.MIN_FREE_KBYTES and write.value > most_kib:
        return f"must be at most {most_kib}, {settings.most_min_free_percent} % of the memory (mostMinFreePercent)"
    return rule


class SystemDecision(Decision[Empty], frozen=True, kw_only=True):
    """The decision with sentences on fields of the NodeSLO that give nothing."""

    problems: tuple[str, ...] = ()


class SystemConfig(Strategy[SystemMeasured, Empty, SystemConfigSettings]):
    """Wants what the NodeSLO says; a field that is taken away has its file restored."""

    name = "systemConfig"
    gate = "SystemConfig"
    summary = "set the kernel's watermarks and scheduler features as NodeSLO says"
    measured = SystemMeasured
    needs = (
        *(
            machine_file(
                f"set {each.value}",
                since,
                f"/proc/sys/{each.path}",
                "Give the agent a writable /proc/sys: deploy/components/privileged.",
            )
            for each, since in ((Sysctl.MIN_FREE_KBYTES, "2.6"), (Sysctl.WATERMARK_SCALE_FACTOR, "4.6"))
        ),
        machine_file(
            "switch scheduler features",
            "2.6.25",
            SCHED_FEATURES,
            "Mount debugfs at /sys/kernel/debug, with CONFIG_SCHED_DEBUG.",
        ),
    )
    settings = SystemConfigSettings
    state = Empty

    def decide(
        self, view: NodeView, measured: SystemMeasured | None, state: Empty, settings: SystemConfigSettings
    ) -> SystemDecision:
        """Return what files of the node are to hold.

        Skips:   not_known: the cluster has not been heard of; what was written before stays.
        """
        if measured is None:
            return SystemDecision(state=state, reason="the NodeSLO is not known yet", skipped="not_known")
        if view.measured.node.scope != "machine":
            return SystemDecision(state=state, reason="system configuration: the node is a cgroup of a larger machine")
        if measured.strategy is None:
            return SystemDecision(state=state, reason="system configuration: there is no NodeSLO")
        made = system_writes(measured.strategy, view.capacity_bytes, settings)
        reason = f"system configuration: spec.systemStrategy has {len(made.sysctls)} values for the kernel"
        return SystemDecision(state=state, reason=reason, sysctls=made.sysctls, problems=made.problems)


SYSTEM_CONFIG = SystemConfig()
