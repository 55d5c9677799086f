"""`koordebpf config`: the agent's configuration file, before an agent reads it."""

from __future__ import annotations

import sys

import click

from koordebpf.cli.echo import echo, echo_json
from koordebpf.cli.inputs import read_input


def strategies_page() -> str:
    """Return a row for each strategy in its order, and what each does; 80 columns."""
    import textwrap

    from koordebpf.decision.strategies import STRATEGIES, section_of
    from koordebpf.printable import page
    from koordebpf.report.pages.columns import WIDTH, table_lines

    rows = [
        (each.gate, "on" if each.is_on else "off", section_of(each) or "-", f"{at}.")
        for at, each in enumerate(STRATEGIES, start=1)
    ]
    table = table_lines(("GATE", "DEFAULT", "SETTINGS", "ORDER"), rows, 0)
    width = max(len(each.gate) for each in STRATEGIES)
    summaries = [
        line
        for each in STRATEGIES
        for line in textwrap.wrap(
            f"{each.gate:<{width}}  {each.summary}", WIDTH, subsequent_indent=" " * (width + 2), break_on_hyphens=False
        )
    ]
    return page([*table, "", *summaries])


@click.group()
def config() -> None:
    """Check and show the agent's configuration file.

    What Koordinator configures comes from the NodeSLO: koordebpf slo.

    \b
    Examples:
      koordebpf config check config.yaml
      koordebpf config show > config.yaml
      koordebpf config schema > config.schema.json
    """


@config.command()
@click.argument("path", metavar="FILE")
def check(path: str) -> None:
    """Say what is wrong with the file, or what it changes of the defaults.

    Everything that is wrong is said at once: unknown fields, types, ranges; then what contradicts itself. The exit code
    is 0 where nothing is wrong and 2 otherwise. - is standard input.

    \b
    Examples:
      koordebpf config check config.yaml
    """
    from koordebpf.configuration.checked import check_config, differences
    from koordebpf.configuration.file import ConfigProblems

    try:
        changes = differences(check_config(path, read_input(path)))
    except ConfigProblems as error:
        for problem in error.problems:
            echo(str(problem))
        sys.exit(error.exit_code)
    for place, (default, value) in changes.items():
        echo(f"{place}: {_text(value)} (default {_text(default)})")
    number = f"{len(changes)} settings differ" if len(changes) != 1 else "1 setting differs"
    echo(f"{path}: nothing wrong; {number} from the defaults")


@config.command()
@click.argument("path", metavar="[FILE]", required=False)
def show(path: str | None) -> None:
    """Print the configuration in force, every setting under its reason, as a file that says the same.

    Without FILE it is that of the defaults. Options of koordebpf run take precedence over any file.

    \b
    Examples:
      koordebpf config show
      koordebpf config show config.yaml
    """
    from koordebpf.configuration.checked import agent_config, check_config
    from koordebpf.configuration.file import config_text

    echo(config_text(agent_config(check_config(path, read_input(path)) if path else {})), nl=False)


@config.command()
def strategies() -> None:
    """Print the strategies in their order, their feature gates, and which section of the file has their settings.

    \b
    Examples:
      koordebpf config strategies
    """
    echo(strategies_page())


@config.command()
def schema() -> None:
    """Print the file's JSON Schema, for editors and for checks before it is applied.

    \b
    Examples:
      koordebpf config schema > config.schema.json
    """
    from koordebpf.configuration.file import config_schema

    echo_json(config_schema(), indent=2)


def _text(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
