"""`koordebpf simulate`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from koordebpf.cli.echo import echo, echo_json
from koordebpf.cli.schemas import schema_option

_HELP = """Say what other settings would have evicted in RECORDING, and how full the node would have been.

SETTING is as for `plan --set`: a field of resourceUsedThresholdWithBE, or the agent's own, as eviction.coolTime. Each
--set may have several values, A,B,C or FROM..TO:STEP; several of them make a grid.

`replay --set` decides each round by itself. This carries the consequences forward, by a simple model:

A pod that is evicted in the simulation is taken out of all later rounds, once its memory would be back, until the
recording itself shows that it is gone or was evicted.

A pod that was evicted in the recording and is not in the simulation keeps the usage that it was last seen with, for as
long as the median of those pods that grew older and ended by themselves, and for --held-for at most.

Latency-sensitive pods stall as much as the recording had it at the same use of the node.

Nothing else changes. What cannot be known: what a pod would have done after an eviction that did not happen, who would
have used freed memory, and whether a workload would have been started again. The column `apart` says for how
much of the time the simulated node is not the recorded one.

With --validate the recording is simulated under the settings of OTHER, which was recorded under a like load, and
compared with what happened there.

\b
Examples:
  koordebpf simulate node.rounds --set memoryEvictThresholdPercent=70..95:5
  koordebpf simulate node.rounds --set memoryEvictThresholdPercent=70,80,90 \\
      --set memoryEvictLowerPercent=60,65
  koordebpf simulate before.rounds --validate after.rounds
"""


@click.command(help=_HELP)
@click.argument("recordings", nargs=-1, required=True, metavar="RECORDING…")
@click.option("--set", "entries", multiple=True, metavar="SETTING=VALUES", help="Values of a setting to try.")
@click.option("--validate", "other", metavar="OTHER", help="Compare with this recording, under its settings.")
@click.option(
    "--release-after",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="From an eviction until its memory is back. Default: the recording's median, else 1.",
)
@click.option(
    "--held-for",
    type=click.FloatRange(min=0),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="How long a pod counts at most that really was evicted and is not in the simulation.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@schema_option("simulation", "validation")
def simulate(
    recordings: tuple[str, ...],
    entries: tuple[str, ...],
    other: str | None,
    release_after: float | None,
    held_for: float,
    as_json: bool,
) -> None:
    """Read the recordings, carry each configuration forward and print what came of it."""
    if other is not None and (entries or len(recordings) != 1):
        raise click.UsageError("--validate takes one RECORDING and no --set")
    from koordebpf.tools.what_if.page import simulation_page, validation_page
    from koordebpf.tools.what_if.simulate import combinations, parse_sweep, recordings_of, simulated, validated
    from koordebpf.units import NS_PER_S

    opened = [each for path in recordings for each in recordings_of(path)]
    release_ns = None if release_after is None else int(release_after * NS_PER_S)
    held_ns = int(held_for * NS_PER_S)
    if other is None:
        tried = combinations([parse_sweep(each) for each in entries]) if entries else []
        run: Callable[..., Any] = simulated
        arguments: Sequence[Any] = (opened, tried)
        page: Callable[[Any], str] = simulation_page
        rounds = sum(map(len, opened))
    else:
        pair = [*opened, *recordings_of(other)]
        if len(pair) != 2:
            raise click.UsageError("--validate compares the recordings of one node each")
        run, arguments, page, rounds = validated, pair, validation_page, sum(map(len, pair))
    with click.progressbar(length=rounds, label="rounds", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        result = run(*arguments, release_ns=release_ns, held_ns=held_ns, progress=lambda: bar.update(1))
    if as_json:
        echo_json(result)
    else:
        echo(page(result))
    for problem in dict.fromkeys(problem for each in opened for problem in each.problems):
        echo(f"koordebpf: {problem}", err=True)
