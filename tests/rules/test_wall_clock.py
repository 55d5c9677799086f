"""A test gives what it times at least ten times what it takes, in words that an emulated CPU stretches."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.rules.offenders import report
from tests.rules.pages import ROOT

_CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
_LEAST_S = 5  # any less, and a machine that compiles something meanwhile fails the test


def _names(node: ast.AST) -> set[str]:
    found = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return found | {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _is_elapsed(node: ast.AST, variables: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in variables
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and bool(_names(node.left) & _CLOCKS)


def _is_patient(bound: ast.AST) -> bool:
    for each in ast.walk(bound):
        match each:
            case ast.Call(func=ast.Name(id="patience"), args=[ast.Constant(value=float() | int() as seconds)]):
                return seconds >= _LEAST_S
    return False


def bounds(function: ast.AST) -> Iterator[tuple[int, ast.AST]]:
    """Yield each upper bound that is asserted of elapsed time, with its line."""
    variables: set[str] = set()
    for each in ast.walk(function):
        match each:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_elapsed(value, set()):
                variables.add(name)
    for statement in ast.walk(function):
        if not isinstance(statement, ast.Assert):
            continue
        for each in ast.walk(statement.test):
            if isinstance(each, ast.Compare):
                sides = [each.left, *each.comparators]
                for small, operator, large in zip(sides, each.ops, sides[1:], strict=False):
                    if isinstance(operator, ast.Lt | ast.LtE) and _is_elapsed(small, variables):
                        yield statement.lineno, large


def test_what_is_timed_has_ten_times_what_it_takes() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}:{line}: {ast.unparse(bound)}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if any(clock in (text := path.read_text()) for clock in _CLOCKS)
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef)
        for line, bound in bounds(function)
        if not _is_patient(bound)
    ]
    report(offenders, f"count CPU time (time.process_time), or allow patience({_LEAST_S}) or more")
