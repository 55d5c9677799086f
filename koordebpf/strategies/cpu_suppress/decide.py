"""BECPUSuppress as a strategy: what best-effort pods may have of the CPUs, as cgroup files."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.kernel.cgroup.files import CgroupFile, Value, format_cpu_list
from koordebpf.policy.reconcile import CgroupWrite
from koordebpf.policy.strategy import KEPT, Decision, Explanation, Strategy
from koordebpf.state.cpu.measured import CpuView
from koordebpf.state.view import NodeView
from koordebpf.strategies.cpu_suppress.bursts import woken
from koordebpf.strategies.cpu_suppress.choose import BeAmount, be_root, withheld_cpus
from koordebpf.strategies.cpu_suppress.plan import SUPPRESS_GATE, SuppressPlan, plan_suppress
from koordebpf.strategies.cpu_suppress.values import SuppressMeasured, SuppressSettings, SuppressState
from koordebpf.units import format_millicpu


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


class ExplainedSuppression(Explanation, frozen=True):
    """The decision, and what it rests on. `problems`: annotations that could not be read, and say nothing therefore."""

    decision: SuppressPlan
    differences: tuple[FileDifference, ...] = ()
    withheld: tuple[WithheldCpus, ...] = ()
    problems: tuple[str, ...] = ()

    def blocks(self) -> list[list[str]]:
        """Return the decision with its numbers, and what it would write."""
        decision = self.decision
        numbers = [f"{SUPPRESS_GATE}: skipped ({decision.skipped})" if decision.skipped else SUPPRESS_GATE]
        how = decision.reason
        if (amount := decision.amount) is not None:
            numbers += _sum(amount)
            how = how.removeprefix(f"{amount.sentence}; ")
        if decision.held_millicpu is not None:
            numbers.append(_said("held to", decision.held_millicpu))
        if decision.policy is not None:
            how = f"by {decision.policy}: {how}"
        return [[*numbers, f"  {how}"], [*_files(self), *_withheld(self)]]

    def cells(self) -> Mapping[str, str]:
        """Return what may differ between two settings."""
        decision = self.decision
        left, held = decision.be_millicpu, decision.held_millicpu
        return {
            "left for best-effort": "-" if left is None else format_millicpu(left),
            "policy": decision.policy or "-",
            "held to": "-" if held is None else format_millicpu(held),
            "CPUs": "-" if decision.cpus is None else str(len(decision.cpus)),
            "quota": "-" if decision.quota_us is None else f"{decision.quota_us} µs",
            "files to write": str(len(self.differences)),
        }

    def done(self) -> str | None:
        """Return what best-effort pods are limited to, where that is new."""
        if self.decision.skipped or not self.differences:
            return None
        held = self.decision.held_millicpu
        if held is None:
            return "lifts what best-effort pods were limited to"
        return f"limits best-effort pods to {format_millicpu(held)}"


def explained_plan(decision: SuppressPlan, view: NodeView) -> ExplainedSuppression:
    """Return a decision on this view with what it rests on."""
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


# The sum as it is worked out, from above.
def _sum(amount: BeAmount) -> list[str]:
    share = amount.capacity_millicpu * amount.threshold_percent // 100
    return [
        _said("capacity", amount.capacity_millicpu),
        _said("threshold", share, f"{amount.threshold_percent} %"),
        _said("pods", amount.pods_millicpu, "that are not best-effort"),
        _said("host apps", amount.host_applications_millicpu),
        _said("system", amount.system_millicpu),
        *([_said("isolated", amount.isolated_millicpu, "of these")] if amount.isolated_millicpu else []),
        _said("left", amount.be_millicpu, "the minimum" if amount.is_minimum else ""),
    ]


def _said(name: str, millicpu: int, note: str = "") -> str:
    return f"  {name:<12}{format_millicpu(millicpu):>9}  {note}".rstrip()


# Files that change alike are one line: a node has hundreds of containers.
def _files(explained: ExplainedSuppression) -> list[str]:
    if not explained.differences:
        return [] if explained.decision.skipped else ["nothing would be written: every file holds what it is to hold"]
    alike: dict[str, list[FileDifference]] = {}
    for each in explained.differences:
        now = "not known" if isinstance(each.now, msgspec.UnsetType) else _value(each.file, each.now)
        alike.setdefault(f"{each.file.value} {now} → {_value(each.file, each.wanted)}", []).append(each)
    lines = ["would be written:"]
    for change, (first, *others) in alike.items():
        more = f" and {len(others)} more" if others else ""
        lines.append(f"  {change}: {first.path}{more}")
    return lines


def _value(file: CgroupFile, value: Value) -> str:
    match value:
        case frozenset():
            return format_cpu_list(value) or "empty"
        case None:
            return "no limit"
        case _:
            return f"{value} µs" if file is CgroupFile.CPU_QUOTA else str(value)


def _withheld(explained: ExplainedSuppression) -> list[str]:
    lines = ["not for best-effort pods:"] if explained.withheld else []
    lines += [f"  CPUs {format_cpu_list(each.cpus)}: {each.why}" for each in explained.withheld]
    return [*lines, *(f"left out, because it cannot be read: {problem}" for problem in explained.problems)]


class SuppressDecision(Decision[SuppressState], frozen=True, kw_only=True):
    """The decision with the plan behind it."""

    plan: SuppressPlan

    @property
    def way(self) -> str | None:
        """As `Decision.way`: the policy."""
        return self.plan.policy


class BeCpuSuppress(Strategy[SuppressMeasured, SuppressState, SuppressSettings]):
    """Koordinator's cpusuppress."""

    name = "suppress"
    gate = SUPPRESS_GATE
    summary = "hold best-effort pods to the CPU that others leave"
    is_on = True
    settings = SuppressSettings
    section = "suppress"
    measured = SuppressMeasured
    state = SuppressState
    decides_when_off = True  # what an agent before it left is then restored
    is_taken_over = True
    undoes_itself = True
    keeps_time = True
    needs_cpu = True
    explanation = ExplainedSuppression
    is_logged_by_round = True
    record = KEPT

    def decide(
        self, view: NodeView, measured: SuppressMeasured | None, state: SuppressState, settings: SuppressSettings
    ) -> SuppressDecision:
        """Return `plan_suppress` of this view; a round that a burst began says so."""
        plan = plan_suppress(view, state, settings)
        if plan.skipped is None and measured is not None:
            plan = woken(plan, measured.woken_by, view.now_ns, settings)
        return SuppressDecision(
            state=plan.next,
            reason=plan.reason,
            skipped=plan.skipped,
            writes=plan.desired.writes,
            sysctls=plan.desired.sysctls,
            plan=plan,
        )

    def explained(self, made: Decision[SuppressState], view: NodeView) -> ExplainedSuppression | None:
        """As `Strategy.explained`."""
        return explained_plan(made.plan, view) if isinstance(made, SuppressDecision) else None

    def stays_at_exit(self, settings: SuppressSettings) -> bool:
        """As `Strategy.stays_at_exit`."""
        return settings.at_exit == "keep"


BE_CPU_SUPPRESS = BeCpuSuppress()
