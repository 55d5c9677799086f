"""`koordebpf shadow`."""

from __future__ import annotations

from pathlib import Path

import click

from koordebpf.cli.echo import echo, echo_json
from koordebpf.cli.schemas import schema_option


class _Defined(click.Command):
    # The definitions are those that the page prints.
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from koordebpf.decision.what_if.week import DEFINITIONS

        with formatter.section("What is counted"):
            formatter.write_dl([(word.replace("_", " "), text) for word, text in DEFINITIONS.items()])


@click.command(cls=_Defined)
@click.argument("path", type=click.Path(path_type=Path), default="/var/lib/koordebpf/shadow", metavar="[FILE|FOLDER]")
@click.option(
    "--days",
    type=click.IntRange(1, 8),
    default=7,
    show_default=True,
    help="The last days on which something was counted, today's included.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each node.")
@schema_option("shadow")
def shadow(path: Path, days: int, as_json: bool) -> None:
    """Say what the shadow configurations of this node's agent would have done in the last days.

    An agent judges the `shadow.configurations` of its configuration file on its own rounds, beside the settings that it
    acts by. They never act. A configuration without settings is the acting one, enforced: beside a dry run it
    says what enforcing would have done. FILE is of one node; the default is the folder that agents write to.

    \b
    Example, in the agent's configuration file:
      shadow:
        configurations:
          - name: enforced
          - name: eager
            settings:
              memoryEvictThresholdPercent: 75
    """
    from koordebpf.tools.what_if.page import shadow_page, weeks_in

    weeks = weeks_in(path, days)
    for place, week in enumerate(weeks):
        if as_json:
            echo_json(week)
        else:
            echo(shadow_page(week, definitions=place == len(weeks) - 1), nl=True)
            if place < len(weeks) - 1:
                echo()
