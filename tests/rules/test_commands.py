"""What is said of each command: help that fits a terminal, its exit codes, its manual page."""

from __future__ import annotations

import ast
from pathlib import Path

import click

from koordebpf.cli import root
from koordebpf.cli.man import codes_of, man_pages
from tests.rules.offenders import report
from tests.rules.pages import ROOT, name_of
from tests.unit.cli.test_reference import COMMANDS


def test_help_fits_80_columns() -> None:
    wrong = []
    for name, command in COMMANDS.items():
        context = click.Context(command, info_name=name, terminal_width=80, max_content_width=80)
        wrong += [f"{name}: {line}" for line in command.get_help(context).splitlines() if len(line) > 80]
    report(wrong, "lines of --help have up to 80 characters")


def codes_in(path: Path) -> dict[int, int]:
    """Return the numbers that a module of the command line ends with, and the line of each."""
    found: dict[int, int] = {}
    for each in ast.walk(ast.parse(path.read_text())):
        match each:
            case ast.Call(func=ast.Attribute(attr="exit") | ast.Name(id="SystemExit"), args=[given]):
                constants = (one.value for one in ast.walk(given) if isinstance(one, ast.Constant))
                found |= {
                    code: each.lineno for code in constants if isinstance(code, int) and not isinstance(code, bool)
                }
    return found


def test_exit_codes_of_commands_are_in_the_table() -> None:
    wrong = []
    for group in sorted({name.split(maxsplit=1)[0] for name in COMMANDS}):
        folder = ROOT / "koordebpf/cli" / group
        paths = sorted(folder.glob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
        assert paths, group
        known = {code for name in COMMANDS if name.split()[0] == group for code in codes_of(name)}
        known |= {128} if group == "demo" else set()  # of 128 + n, which stand in the table as they are
        for path in paths:
            wrong += [f"{name_of(path)}:{line}: {code}" for code, line in codes_in(path).items() if code not in known]
    report(wrong, "these exit codes must be in SPECIAL of cli/man.py")


def test_a_manual_page_has_every_option_of_its_command() -> None:
    manual, wrong = dict(man_pages(root())), []
    for name, command in COMMANDS.items():
        page = f"koordebpf-{name.replace(' ', '-')}.1"
        text = manual.get(page, "").replace("\\-", "-")
        named = {option for each in command.params if isinstance(each, click.Option) for option in each.opts}
        wrong += [f"{page}: {option}" for option in sorted(named) if option not in text]
        if f".B {max(codes_of(name))}" not in text:
            wrong.append(f"{page}: exit code {max(codes_of(name))}")
    report(wrong, "these manual pages must have these (cli/man.py)")
