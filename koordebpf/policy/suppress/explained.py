"""A decision on suppression with what a reader asks next: what would be written, and which CPUs are out of reach."""

from __future__ import annotations

import msgspec

from koordebpf.kernel.cgroup.files import CgroupFile, Value
from koordebpf.policy.reconcile.values import CgroupWrite
from koordebpf.policy.suppress.pools import withheld_cpus
from koordebpf.policy.suppress.recovery import be_root
from koordebpf.policy.suppress.round import SuppressPlan, plan_suppress
from koordebpf.policy.suppress.settings import SuppressSettings
from koordebpf.state.cpu.measured import CpuView
from koordebpf.state.suppression import SuppressState
from koordebpf.state.view import NodeView


class FileDifference(msgspec.Struct, frozen=True):
    """A file that does not hold what is wanted, in the terms of `CgroupWrite`; `now` unset: it was not measured."""

    path: str
    file: CgroupFile
    wanted: Value
    now: Value | msgspec.UnsetType = msgspec.UNSET


class WithheldCpus(msgspec.Struct, frozen=True):
    """CPUs that best-effort pods never get, for one reason."""

    cpus: tuple[int, ...]
    why: str


class ExplainedSuppression(msgspec.Struct, frozen=True):
    """The decision, and what it rests on. `problems`: annotations that could not be read, and say nothing therefore."""

    decision: SuppressPlan
    differences: tuple[FileDifference, ...] = ()
    withheld: tuple[WithheldCpus, ...] = ()
    problems: tuple[str, ...] = ()


def explained_suppression(
    view: NodeView,
    settings: SuppressSettings = SuppressSettings(),  # noqa: B008 - frozen
    state: SuppressState = SuppressState(),  # noqa: B008 - frozen
) -> ExplainedSuppression:
    """Decide as the agent does, by default as one that has just started, and say what comes of it."""
    decision = plan_suppress(view, state, settings)
    if view.cpu is None:
        return ExplainedSuppression(decision)
    withheld: dict[str, list[int]] = {}
    for cpu, why in withheld_cpus(view.cpu).items():
        withheld.setdefault(why, []).append(cpu)
    return ExplainedSuppression(
        decision=decision,
        differences=_differences(view.cpu, decision.desired.writes),
        withheld=tuple(WithheldCpus(tuple(cpus), why) for why, cpus in withheld.items()),
        problems=view.cpu.placement.problems,
    )


def _differences(cpu: CpuView, writes: tuple[CgroupWrite, ...]) -> tuple[FileDifference, ...]:
    held = _held(cpu)
    return tuple(
        FileDifference(write.path, write.file, write.value, held.get((write.path, write.file), msgspec.UNSET))
        for write in writes
        if held.get((write.path, write.file), msgspec.UNSET) != write.value
    )


# What was measured of the files that suppression writes; cpu.shares is not.
def _held(cpu: CpuView) -> dict[tuple[str, CgroupFile], Value]:
    measured, root = cpu.measured, be_root(cpu)
    held: dict[tuple[str, CgroupFile], Value] = {
        (each.path, CgroupFile.CPUSET_CPUS): frozenset(each.cpus)
        for each in measured.be_cgroups
        if each.cpus is not None
    }
    if root is not None and measured.be_quota is not None:
        held[root.path, CgroupFile.CPU_QUOTA] = measured.be_quota.quota_us
    if root is not None and measured.be_idle is not None:
        held[root.path, CgroupFile.CPU_IDLE] = measured.be_idle
    return held
