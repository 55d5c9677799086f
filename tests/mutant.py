"""What may be changed in a module, one place at a time: comparisons, conditions, bounds, orders and operators."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}
_LARGE = 10  # one more of so many is what no caller sees, and no test should
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One changed place: its function, if any, what was there and is there now, and the new source."""

    path: str
    function: str
    line: int
    old: str
    new: str
    source: str

    @property
    def key(self) -> str:
        """Return what it is called in the list of those that change nothing; the line's number may change."""
        return f"{self.path}{' ' * bool(self.function)}{self.function}: {self.old} -> {self.new}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file."""
    source = path.read_text()
    name = path.relative_to(ROOT).as_posix()
    tree = ast.parse(source)
    functions = dict(_functions(tree, ""))
    left_out = {id(part) for node in ast.walk(tree) if _is_text(node) or _is_type(node) for part in ast.walk(node)}
    lines = source.splitlines(keepends=True)
    for node in ast.walk(tree):
        for changed in _changes(node) if id(node) not in left_out else ():
            if not isinstance(node, ast.expr) or node.end_lineno != node.lineno or node.end_col_offset is None:
                continue
            text, new = lines[node.lineno - 1].encode(), ast.unparse(changed)
            old = text[node.col_offset : node.end_col_offset].decode()
            line = (text[: node.col_offset] + f"({new})".encode() + text[node.end_col_offset :]).decode()
            changed_source = "".join([*lines[: node.lineno - 1], line, *lines[node.lineno :]])
            yield Mutant(name, functions.get(id(node), ""), node.lineno, old, new, changed_source)


# Before Python 3.12 the places of what is in an f-string are not those of the file.
def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr)


# No test sees what a type checker alone reads.
def _is_type(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal"


def _functions(node: ast.AST, name: str) -> Iterator[tuple[int, str]]:
    """Yield each node below by its id, with the function or class that it is in."""
    for child in ast.iter_child_nodes(node):
        is_named = isinstance(child, ast.FunctionDef | ast.ClassDef)
        inner = f"{name}.{child.name}".lstrip(".") if is_named else name  # type: ignore[attr-defined]
        yield id(child), inner
        yield from _functions(child, inner)


def _changes(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left=left, ops=[op, *more], comparators=comparators) if type(op) in _COMPARISONS:
            yield ast.Compare(left, [_COMPARISONS[type(op)](), *more], comparators)
        case ast.BoolOp(op=op, values=values):
            for at in range(len(values)):
                rest = [value for place, value in enumerate(values) if place != at]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            yield ast.BinOp(left, _OPERATORS[type(op)](), right)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in _NAMES:
            yield ast.Call(ast.Name(_NAMES[name]), args, keywords)
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            yield ast.Constant(value + 1 if abs(value) < _LARGE else value * 2)
