"""Which tests a machine skips, kept by module, and which of them no other machine runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tests.vm.verdict import TestResult

# A module → the rest of pytest's ids of its tests: results.json has a line for each.
Skips = dict[str, list[str]]
_DESELECT = "--deselect="


def by_module(nodes: Iterable[str]) -> Skips:
    """Return pytest's ids by module, both sorted."""
    found: Skips = {}
    for node in sorted(nodes):
        module, _, rest = node.partition("::")
        found.setdefault(module, []).append(rest)
    return found


def nodes_of(skips: Mapping[str, Sequence[str]]) -> list[str]:
    """Return pytest's ids."""
    return [f"{module}::{rest}" for module, tests in skips.items() for rest in tests]


def skipped_in(tests: Iterable[TestResult]) -> list[str]:
    """Return the ids of the tests that a machine skipped."""
    return [each.node for each in tests if each.state == "skipped"]


def renewed(before: Mapping[str, Sequence[str]], tests: Sequence[TestResult]) -> Skips:
    """Return what is skipped after a report. It may be of a quick run: what it does not name is as before."""
    reported = {each.node for each in tests}
    return by_module([*(node for node in nodes_of(before) if node not in reported), *skipped_in(tests)])


def is_selected(node: str, arguments: Sequence[str]) -> bool:
    """Tell whether a test is one of those that pytest's arguments name: files, tests, --deselect."""
    left_out = [each.removeprefix(_DESELECT) for each in arguments if each.startswith(_DESELECT)]
    named = [each for each in arguments if not each.startswith(_DESELECT)]
    is_named = any(node == each or node.startswith((f"{each}::", f"{each}[")) for each in named)
    return is_named and not node.startswith(tuple(left_out))


def nowhere(
    skipped: Iterable[str], machines: Mapping[str, Sequence[str]], skipped_there: Mapping[str, Collection[str]]
) -> list[str]:
    """Return which of the tests that one kernel skips no machine runs.

    Args:
        skipped: pytest's ids.
        machines: each with the arguments that choose its tests.
        skipped_there: what a machine skips of these.
    """

    def is_run(node: str) -> bool:
        return any(
            is_selected(node, arguments) and node not in skipped_there.get(machine, ())
            for machine, arguments in machines.items()
        )

    return [node for node in skipped if not is_run(node)]
