"""Suppression for people: what best-effort pods are left, out of what, and in which files. 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from koordebpf.kernel.cgroup.files import CgroupFile, Value, format_cpu_list
from koordebpf.policy.suppress.amount import BeAmount
from koordebpf.policy.suppress.explained import ExplainedSuppression, FileDifference
from koordebpf.policy.suppress.round import SUPPRESS_GATE
from koordebpf.report.pages.columns import filled
from koordebpf.units import format_millicpu

_NAME, _CELL = 24, 12  # of a comparison, as those of the features
_UNMEASURED = "unmeasured"


def suppression_blocks(explained: ExplainedSuppression) -> list[list[str]]:
    """Return the decision with its numbers, and what it would write; nothing where no CPU was measured."""
    decision = explained.decision
    if decision.skipped == _UNMEASURED:
        return []
    numbers = [f"{SUPPRESS_GATE}: skipped ({decision.skipped})" if decision.skipped else SUPPRESS_GATE]
    how = decision.reason
    if (amount := decision.amount) is not None:
        numbers += _sum(amount)
        how = how.removeprefix(f"{amount.sentence}; ")
    if decision.held_millicpu is not None:
        numbers.append(_said("held to", decision.held_millicpu))
    if decision.policy is not None:
        how = f"by {decision.policy}: {how}"
    return [[*numbers, *filled(how, "  ")], [*_files(explained), *_withheld(explained)]]


def suppression_diff(before: ExplainedSuppression, after: ExplainedSuppression) -> list[str]:
    """Return what is different about the second; nothing where both decide the same."""
    if before.decision == after.decision:
        return []
    lines = [f"{SUPPRESS_GATE:<{_NAME + 2}}{'before':>{_CELL}}{'after':>{_CELL}}"]
    rows = {name: (first, second) for (name, first), (_, second) in zip(_cells(before), _cells(after), strict=True)}
    lines += [
        f"  {name:<{_NAME}}{first:>{_CELL}}{second:>{_CELL}}"
        for name, (first, second) in rows.items()
        if first != second
    ]
    if before.decision.reason != after.decision.reason:
        lines += filled(f"before: {before.decision.reason}", "  ")
        lines += filled(f"after:  {after.decision.reason}", "  ")
    return lines


def _cells(explained: ExplainedSuppression) -> Iterator[tuple[str, str]]:
    decision = explained.decision
    left = decision.be_millicpu
    yield "left for best-effort", "-" if left is None else format_millicpu(left)
    held = decision.held_millicpu
    yield "policy", decision.policy or "-"
    yield "held to", "-" if held is None else format_millicpu(held)
    yield "CPUs", "-" if decision.cpus is None else str(len(decision.cpus))
    yield "quota", "-" if decision.quota_us is None else f"{decision.quota_us} µs"
    yield "files to write", str(len(explained.differences))


# The sum as it is worked out, from above.
def _sum(amount: BeAmount) -> list[str]:
    share = amount.capacity_millicpu * amount.threshold_percent // 100
    return [
        _said("capacity", amount.capacity_millicpu),
        _said("threshold", share, f"{amount.threshold_percent} %"),
        _said("pods", amount.pods_millicpu, "that are not best-effort"),
        _said("host apps", amount.host_applications_millicpu),
        _said("system", amount.system_millicpu),
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
        lines += filled(f"{change}: {first.path}{more}", "  ")
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
    for each in explained.withheld:
        lines += filled(f"CPUs {format_cpu_list(each.cpus)}: {each.why}", "  ")
    for problem in explained.problems:
        lines += filled(f"left out, because it cannot be read: {problem}")
    return lines
