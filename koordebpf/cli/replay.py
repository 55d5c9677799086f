"""`koordebpf replay`."""

from __future__ import annotations

import sys

import click

from koordebpf.cli.echo import echo, echo_object
from koordebpf.cli.inputs import read_input
from koordebpf.cli.schemas import schema_option


@click.command()
@click.argument("recording", metavar="FILE|FOLDER")
@click.option("--at", metavar="TIME", help="Only the last round at or before this time, with its whole plan.")
@click.option("--since", metavar="TIME", help="From this time on.")
@click.option("--until", metavar="TIME", help="Up to this time.")
@click.option(
    "--set", "entries", multiple=True, metavar="SETTING=VALUE", help="Decide with this setting, as plan --set."
)
@click.option(
    "--config",
    "files",
    multiple=True,
    metavar="OTHER.yaml",
    help="Decide under this NodeSLO, ConfigMap slo-controller-config or agent's configuration file.",
)
@click.option("--feature-gates", multiple=True, metavar="NAME=BOOL", help="Decide with these feature gates.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line, the last with the totals; of --at, one."
)
@schema_option("replayed-round", "replay", "replayed-plan")
def replay(
    recording: str,
    at: str | None,
    since: str | None,
    until: str | None,
    entries: tuple[str, ...],
    files: tuple[str, ...],
    feature_gates: tuple[str, ...],
    as_json: bool,
) -> None:
    """Decide every round of a recording again, and say whether each decision is the same, bit for bit.

    FILE is of `koordebpf record`, FOLDER what an agent keeps below /var/lib/koordebpf/recorder. TIME is RFC 3339, as
    2026-03-01T12:00:00Z, or seconds since the epoch. A line is printed for each round of which something was done.

    With --set, --config or --feature-gates each round is decided under other settings, from what the agent remembered
    at that time: an eviction that would have come earlier does not change the rounds after it.

    Without them the exit code is 1 where a round is decided otherwise than it was.

    \b
    Examples:
      koordebpf replay node.rounds
      koordebpf replay /var/lib/koordebpf/recorder/machine --since 2026-03-01
      koordebpf replay node.rounds --set memoryEvictThresholdPercent=85
      koordebpf replay node.rounds --at 2026-03-01T12:00:00Z
    """
    from koordebpf.tools.recorder.pages import lines_of, replayed_plan, round_page, totals_line
    from koordebpf.tools.recorder.replay import Replay, change_of, replayed
    from koordebpf.tools.recorder.rounds import open_recording, parse_time, place_at, round_at

    change = change_of([(each, read_input(each)) for each in files], entries, feature_gates)
    opened = open_recording(recording)
    if at is not None:
        found = replayed_plan(round_at(opened, parse_time("--at", at)), change)
        if as_json:
            echo_object("replayed-plan", found, indent=2)
        else:
            echo(round_page(found))
    else:
        first = 0 if since is None else max(0, place_at(opened, parse_time("--since", since) - 1) + 1)
        last = None if until is None else place_at(opened, parse_time("--until", until)) + 1
        totals = Replay()
        for each in replayed(opened, totals, change, first, last):
            if as_json:
                echo_object("replayed-round", each)
            else:
                echo(lines_of(each, is_changed=change is not None))
        if as_json:
            echo_object("replay", totals)
        else:
            echo(totals_line(totals, is_changed=change is not None))
        if change is None and totals.differing:
            _print_problems(opened.problems)
            sys.exit(1)
    _print_problems(opened.problems)


def _print_problems(problems: list[str]) -> None:
    for problem in problems:
        echo(f"koordebpf: {problem}", err=True)
