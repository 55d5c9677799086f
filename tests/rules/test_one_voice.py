"""Only a few modules write to standard output or error: what they print has been made printable on its way there."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.rules.modules import MODULES, PACKAGE, tree
from tests.rules.offenders import report

# Module → why it may print. Everything else calls koordebpf.cli.echo, or logs.
DOORS = {
    "cli/echo.py": "escapes all that commands print",
    "demo/screen.py": "escapes all but its own colours",
    "demo/workers.py": "JSON for the demo's own pipe",
    "store/audit.py": "lines of json_bytes",
    "report/log_formats.py": "the handlers whose formatters escape",
    "tools/top/screen.py": "rich, given Text of page_lines: no markup, no controls",
}
# What a text of several lines is joined with: by hand, a newline in a name would begin a line.
_JOINS_ALLOWED = {
    "cli/man.py",  # pages of the help, where no name of a tenant stands
    "printable.py",
    "report/log_formats.py",
    "report/pages/plan.py",  # blocks of page()
    "report/pages/plan_diff.py",
    "report/http/listener.py",  # HTTP
}


def prints(within: ast.AST) -> Iterator[int]:
    """Yield the lines that write to the terminal, or pass standard output or error to code that does."""
    for node in ast.walk(within):
        match node:
            case ast.Call(func=ast.Name(id="print" | "pprint" | "Console")):
                yield node.lineno
            case ast.Call(func=ast.Attribute(value=ast.Name(id="click"), attr="echo" | "secho" | "echo_via_pager")):
                yield node.lineno
            case ast.Call(func=ast.Attribute(attr="StreamHandler" | "print_exc" | "warn_explicit")):
                yield node.lineno
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="os"), attr="write"), args=[ast.Constant(value=1 | 2), *_]
            ):
                yield node.lineno
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr"), attr=name):
                if name not in ("isatty", "fileno"):
                    yield node.lineno


def joins(within: ast.AST) -> Iterator[int]:
    for node in ast.walk(within):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="join")) if "\n" in text:
                yield node.lineno


def names(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def found(looked_at: Callable[[ast.AST], Iterator[int]], paths: Iterable[Path]) -> list[str]:
    return [f"koordebpf/{names(path)}:{line}" for path in paths for line in looked_at(tree(path))]


def test_modules_print_through_the_door() -> None:
    wrong = found(prints, (path for path in MODULES if names(path) not in DOORS))
    report(wrong, "these must print by koordebpf.cli.echo, which escapes, or log")


def test_lines_become_a_page_in_one_place() -> None:
    pages = (path for path in MODULES if path.parent.name in ("report", "cli", "demo"))
    wrong = found(joins, (path for path in pages if names(path) not in _JOINS_ALLOWED))
    report(wrong, "lines must be joined by koordebpf.printable.page, which escapes")


def test_every_door_is_there() -> None:
    assert DOORS.keys() <= set(map(names, MODULES))


def test_what_prints_is_found() -> None:
    source = "\n".join(
        [
            "print(1)",
            "click.echo('x')",
            "sys.stdout.write('x')",
            "os.write(2, b'x')",
            "logging.StreamHandler()",
            "sys.stdout.isatty()",
            "echo('x')",
        ]
    )
    assert sorted(prints(ast.parse(source))) == [1, 2, 3, 4, 5]
    assert list(joins(ast.parse(r"'\n'.join(x); ','.join(x)"))) == [1]
