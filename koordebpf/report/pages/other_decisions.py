"""What strategies beside evictions decide, for people, and what differs between two plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import UNSET

from koordebpf.decision.node_plan import OtherDecision
from koordebpf.decision.strategies import STRATEGY_OF
from koordebpf.policy.plan import PodAction
from koordebpf.report.headline import plain_words
from koordebpf.report.pages.columns import WIDTH, filled, filled_paths, table_lines
from koordebpf.units import format_bytes

# Of what a strategy does to pods: a column stands where one of them has it.
_ACTIONS: tuple[tuple[str, Callable[[PodAction], str]], ...] = (
    ("taken", lambda each: "" if each.reclaim_bytes is None else format_bytes(each.reclaim_bytes)),
    ("group", lambda each: each.resctrl_group or ""),
    ("tasks", lambda each: "" if each.tasks is None else str(each.tasks)),
)
_NOT_DUE = "this round measured nothing for it; what it wrote before stays"
_MOST_FILES, _MOST_PODS = 20, 10  # of one strategy; pods in a comparison
_NAME, _CELL = 24, 12  # of a comparison, as those of the features


def decision_blocks(name: str, decision: OtherDecision, count: int) -> list[list[str]]:
    """Return a strategy's part of a plan, with `count` pods at most: its own, or the lines that every one has."""
    if decision.explained is not UNSET:
        return [[line for each in block for line in _wrapped(each)] for block in decision.explained.blocks()]
    lines = [name if decision.skipped is None else f"{name}: skipped ({decision.skipped})", *_reason(decision, "  ")]
    lines += _acted_on(decision, count)
    lines += _file_lines([f"{file} → {value}" for file, value in _files(decision).items()])
    for condition in decision.conditions:
        lines += filled(f"the node is to be marked: {condition}", "  ")
    return [lines]


def _wrapped(line: str) -> list[str]:
    text = line.lstrip(" ")
    return [line] if len(line) <= WIDTH else filled(text, line.removesuffix(text))


def decisions_diff(before: Mapping[str, OtherDecision], after: Mapping[str, OtherDecision]) -> list[list[str]]:
    """Return a block for each strategy that decides otherwise after; its files with + only after, - only before."""
    names = dict.fromkeys((*before, *after))
    return [_diff(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


def _diff(name: str, before: OtherDecision | None, after: OtherDecision | None) -> list[str]:
    if before is not None and after is not None and UNSET not in (before.explained, after.explained):
        return _cells_diff(name, before, after)
    lines = [name]
    for when, decision in (("before: ", before), ("after:  ", after)):
        if decision is None:
            lines.append(f"  {when}its feature gate is off")
        else:
            first, *more = _reason(decision, f"  {when}")
            lines += [first, *more]
    was, is_now = (_files(each) if each is not None else {} for each in (before, after))
    changes = [f"+ {file} → {value}" for file, value in is_now.items() if file not in was]
    changes += [f"- {file} → {value}" for file, value in was.items() if file not in is_now]
    changes += [f"~ {file}: {was[file]} → {value}" for file, value in is_now.items() if was.get(file, value) != value]
    lines += _file_lines(changes)
    return lines if after is None else lines + _acted_on(after, _MOST_PODS)


def _cells_diff(name: str, before: OtherDecision, after: OtherDecision) -> list[str]:
    lines = [f"{STRATEGY_OF[name].gate:<{_NAME + 2}}{'before':>{_CELL}}{'after':>{_CELL}}"]
    is_now = after.explained.cells()
    for cell, first in before.explained.cells().items():
        if first != is_now[cell]:
            lines.append(f"  {cell:<{_NAME}}{first:>{_CELL}}{is_now[cell]:>{_CELL}}")
    if before.reason != after.reason:
        lines += filled(f"before: {before.reason}", "  ")
        lines += filled(f"after:  {after.reason}", "  ")
    return lines


def _file_lines(files: list[str]) -> list[str]:
    lines = [line for each in files[:_MOST_FILES] for line in filled_paths(each, "  ")]
    more = len(files) - _MOST_FILES
    return [*lines, f"  {more} more file{'s' if more > 1 else ''}: --json has all"] if more > 0 else lines


def _reason(decision: OtherDecision, indent: str) -> list[str]:
    lines = filled(f"{indent.lstrip()}{plain_words(decision.reason)}", "  ")
    if decision.skipped == "not_due":
        lines += filled(_NOT_DUE, "  ")
    return [line for text in (lines, *(filled(each, "  ") for each in decision.problems)) for line in text]


def _files(decision: OtherDecision) -> dict[str, str]:
    of_cgroups = {f"{each.path}/{each.file.value}": str(each.value) for each in decision.writes}
    return of_cgroups | {f"{each.name}": str(each.value) for each in decision.sysctls}


# Pods that something is done to beside cgroup files: what is taken from each, or the group that gets its tasks.
def _acted_on(decision: OtherDecision, count: int) -> list[str]:
    shown, more = decision.pods[:count], max(len(decision.pods) - count, 0) + decision.more_pods
    columns = [(heading, cell) for heading, cell in _ACTIONS if any(cell(each) for each in shown)]
    rows = [[f"  {each.namespace}/{each.name}", *(cell(each) or "-" for _, cell in columns)] for each in shown]
    lines = table_lines(["  pod", *(heading for heading, _ in columns)], rows, left=0) if shown else []
    if any(each.tasks is not None for each in shown):
        lines.append("  tasks: threads that are not in the group yet")
    if any(each.swappiness == 0 for each in shown):
        lines.append("  page cache alone is taken: nothing is to be swapped out")
    return [*lines, f"  {more} more pod{'s' if more > 1 else ''}"] if more else lines
