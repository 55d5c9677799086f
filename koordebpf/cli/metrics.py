"""`koordebpf metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koordebpf.cli.echo import echo, echo_object
from koordebpf.cli.inputs import ask_agent, run_dir_option
from koordebpf.cli.schemas import schema_option
from koordebpf.errors import ConfigError, DecodeError, unreadable

if TYPE_CHECKING:
    from koordebpf.report.series import SeriesAnswer

_AGGREGATIONS = ("avg", "p50", "p90", "p95", "p99", "last", "count")


@click.command()
@click.argument("query", required=False)
@click.option("--window", default="5m", show_default=True, metavar="DURATION", help="Samples of so long until now.")
@click.option("--agg", type=click.Choice(_AGGREGATIONS), help="Only this one. Default: all of them.")
@click.option(
    "--snapshot",
    type=click.Path(path_type=Path),
    help="Read the series that an agent kept, RUN_DIR/NODE/series.snapshot, as of the moment when it wrote them.",
)
@click.option("--url", metavar="PATH|URL", help="A running agent's socket, or an address that leads to it.")
@run_dir_option()
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each series.")
@schema_option("metrics", "metrics-kind")
def metrics(
    query: str | None,
    window: str,
    agg: str | None,
    snapshot: Path | None,
    url: str | None,
    run_dir: Path,
    as_json: bool,
) -> None:
    """Show what series of usage say of a window: koordlet's kinds, with its aggregations.

    QUERY is a kind, and in braces properties of its series. Without it: which kinds the agent has.
    CPU is in cores, memory in bytes. A series without a sample in the window has a dash.

    \b
    Examples:
      koordebpf metrics
      koordebpf metrics node_cpu_usage --window 30m
      koordebpf metrics 'pod_memory_usage{pod_uid="7d1…"}' --window 5m --agg p95
      koordebpf metrics container_cpu_usage --json | jq -c .values.p99
      koordebpf metrics node_memory_usage --snapshot series.snapshot
    """
    from koordebpf.configuration.file import duration_ns

    window_ns = duration_ns(window, "--window")
    if window_ns == 0:
        raise ConfigError("--window", window, "must be more than 0")
    if snapshot is not None:
        answer = _from_snapshot(snapshot, query, window_ns)
    else:
        answer = _from_agent(url, run_dir, query, window_ns)
    if answer.problem:
        raise ConfigError("QUERY", answer.about, answer.problem)
    if as_json:
        _print_json(answer, agg)
        return
    from koordebpf.report.pages.series import kinds_page, series_page

    echo(series_page(answer, agg) if query is not None else kinds_page(answer.kinds))


def _print_json(answer: SeriesAnswer, agg: str | None) -> None:
    from koordebpf.report.pages.series import KindLine, SeriesLine, values_by_name

    for kind, count in sorted(answer.kinds.items()):
        echo_object("metrics-kind", KindLine(kind, count))
    for row in answer.rows:
        values: Mapping[str, float | None] | None = None if row.values is None else values_by_name(row.values)
        if agg is not None:
            values = {agg: None if values is None else values[agg]}
        echo_object("metrics", SeriesLine(answer.kind, row.properties, values))


def _from_agent(url: str | None, run_dir: Path, query: str | None, window_ns: int) -> SeriesAnswer:
    import urllib.parse

    import msgspec

    from koordebpf.report.series import SeriesAnswer

    what = "series"
    if query is not None:
        what += f"?{urllib.parse.urlencode({'query': query, 'window_ns': window_ns})}"
    raw, place = ask_agent(url, run_dir, what, or_else="name a --snapshot")
    try:
        return msgspec.json.decode(raw, type=SeriesAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError("--url", place, f"must be an agent of this version: {error}") from error


def _from_snapshot(path: Path, query: str | None, window_ns: int) -> SeriesAnswer:
    from koordebpf.jobs.usage_series.snapshot import read_store
    from koordebpf.report.series import SeriesAnswer, answer_of

    try:
        store, moment = read_store(path)
    except OSError as error:
        raise unreadable(path, error) from error
    except DecodeError as error:
        raise ConfigError("--snapshot", str(path), f"must be a snapshot of series: {error}") from error
    if query is None:
        return SeriesAnswer(kinds=store.kinds())
    return answer_of(store, query, moment.monotonic_ns, window_ns)
