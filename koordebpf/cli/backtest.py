"""`koordebpf backtest`: how good the predicted peaks would have been on a recording."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from koordebpf.cli.echo import echo, echo_object
from koordebpf.cli.inputs import read_input
from koordebpf.cli.schemas import schema_option
from koordebpf.errors import ConfigError

_HELP = """Replay recorded usage and say how often it exceeded the peak that had been predicted.

FRAMES are files of an agent's --frames, or of frames that `koordebpf top --frame` wrote, one JSON line each, in order
of time. --series reads a snapshot of an agent's series in place of them: pods, system and node, and no bands.
Each interval's usage is compared with what the models predict from the intervals before it, and then they
learn it: the same models, percentiles and half-lives as in an agent with the feature gate PeakPrediction.

A peak without its safety margin should be exceeded in at most 5 % of the intervals. Where it is exceeded more often the
exit code is 1, and the table says by how much.

\b
Examples:
  koordebpf backtest frames.jsonl.1 frames.jsonl
  koordebpf backtest --every 10 --warm-up 30 frames.jsonl
  koordebpf backtest --series /run/koordebpf/machine/series.snapshot
  koordebpf backtest --config agent.yaml --json frames.jsonl | jq .rows
"""


@click.command(help=_HELP)
@click.argument("frames", nargs=-1, type=click.Path(path_type=Path, dir_okay=False), metavar="[FRAMES]…")
@click.option(
    "--series",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="SNAPSHOT",
    help="A snapshot of an agent's series in place of frames.",
)
@click.option("--config", metavar="CONFIG.yaml", help="The agent's configuration file. Default: its defaults.")
@click.option("--every", type=click.FloatRange(min=1), help="Seconds of an interval. Default: prediction.trainEvery.")
@click.option(
    "--warm-up", default=10, show_default=True, type=click.IntRange(min=1), help="Samples that a model has at first."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@schema_option("backtest")
def backtest(
    frames: tuple[Path, ...],
    series: Path | None,
    config: str | None,
    every: float | None,
    warm_up: int,
    as_json: bool,
) -> None:
    """Read the recording, predict along it and print what came of that."""
    if bool(frames) == (series is not None):
        raise click.UsageError("give FRAMES or --series")
    import msgspec

    from koordebpf.configuration.checked import agent_config, check_config
    from koordebpf.jobs.prediction.backtest import backtest as run
    from koordebpf.jobs.prediction.backtest import intervals
    from koordebpf.tools.backtest import Recording, snapshot_intervals, text_of
    from koordebpf.units import NS_PER_S

    settings = agent_config(check_config(config, read_input(config)) if config else {}).prediction
    every_ns = settings.train_every_ns if every is None else int(every * NS_PER_S)
    recording = Recording(frames)
    recorded = intervals(recording, every_ns) if series is None else snapshot_intervals(series, every_ns)
    found = run(recorded, settings, every_ns, warm_up)
    if not found.intervals:
        raise ConfigError(
            str(series or frames[-1]), "no usage", "must have an interval in which pods or the node were measured"
        )
    if series is None and not recording.has_cpu:
        found = msgspec.structs.replace(found, rows=tuple(row for row in found.rows if row.resource != "cpu"))
        echo("no CPU was recorded: an agent measures it with the feature gate BECPUSuppress", err=True)
    if as_json:
        echo_object("backtest", found)
    else:
        echo(text_of(found))
    if not all(row.is_good for row in found.rows):
        sys.exit(1)
