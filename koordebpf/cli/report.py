"""`koordebpf report`."""

from __future__ import annotations

from pathlib import Path

import click

from koordebpf.cli.echo import echo
from koordebpf.cli.inputs import OutputPath, read_input

_SHADOW = "/var/lib/koordebpf/shadow"
_DAYS = 7


@click.command()
@click.argument("source", required=False, metavar="RECORDING|AUDIT|SHADOW")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE.html",
    type=OutputPath(),
    help="The page; it replaces a file. - for standard output.",
)
@click.option("--since", metavar="TIME", help="From this time on.")
@click.option("--until", metavar="TIME", help="Up to this time.")
@click.option("--week", "of_week", is_flag=True, help="What shadow configurations came to in the last week.")
@click.option("--decision", type=int, metavar="N", help="The incident of decision N; -1 is the last.")
def report(
    source: str | None, output: Path, since: str | None, until: str | None, of_week: bool, decision: int | None
) -> None:
    """Write one page that shows an incident: an HTML file that loads nothing.

    RECORDING is of `koordebpf record`, or the folder of an agent's recorder. It shows memory by pod below the threshold
    and the lower mark, stalls, growth, suppression, decisions, who made whom stall, every pod's rank and the reason for
    it, and when memory came back. AUDIT, or - for standard input, is an audit file of an agent: the page has what its
    lines have, and says what is missing.

    Of a recording of more than an hour the page shows the last incident: decisions with less than 10 minutes between
    two, 5 minutes before and 10 after. TIME is RFC 3339, as 2026-03-01T12:00:00Z, or seconds since the epoch.

    With --week it is the page of shadow mode, for which SHADOW is a file or the folder that agents write to, by default
    /var/lib/koordebpf/shadow.

    Names of pods are in the page as they are; `koordebpf recording redact` replaces them.

    \b
    Examples:
      koordebpf report /var/lib/koordebpf/recorder/machine -o incident.html
      koordebpf report node.rounds -o incident.html --decision 3
      koordebpf report --week -o week.html
      koordebpf report audit.jsonl -o incident.html --since 2026-03-01T12:00:00Z
    """
    if of_week:
        if since is not None or until is not None or decision is not None:
            raise click.UsageError("--week excludes --since, --until and --decision")
        _report_week(Path(source or _SHADOW), output)
        return
    if source is None:
        raise click.UsageError("Missing argument 'RECORDING|AUDIT'.")
    from koordebpf.errors import ConfigError
    from koordebpf.store.output_file import write_output
    from koordebpf.store.recorder.magic import is_recording_path
    from koordebpf.tools.incident.page import incident_page
    from koordebpf.tools.recorder.rounds import open_recording, parse_time

    since_ns = None if since is None else parse_time("--since", since)
    until_ns = None if until is None else parse_time("--until", until)
    if decision is not None and (since_ns is not None or until_ns is not None):
        raise ConfigError("--decision", decision, "excludes --since and --until")
    if source != "-" and is_recording_path(source):
        from koordebpf.tools.incident.of_recording import incident_of_recording

        incident = incident_of_recording(open_recording(source), source, since_ns, until_ns, decision)
    else:
        from koordebpf.tools.incident.of_audit import incident_of_audit

        incident = incident_of_audit(read_input(source), source, since_ns, until_ns, decision)
    page = incident_page(incident).encode()
    name = write_output("--output", output, page)
    echo(f"{name}: {len(page) / 1024:.0f} KiB. {incident.summary}", err=True)
    for said in incident.missing:
        echo(f"koordebpf: {said}", err=True)


def _report_week(path: Path, output: Path) -> None:
    from koordebpf.store.output_file import write_output
    from koordebpf.tools.incident.week import week_page
    from koordebpf.tools.what_if.page import weeks_in

    weeks = weeks_in(path, _DAYS)
    name = write_output("--output", output, week_page(weeks, str(path)).encode())
    echo(f"{name}: the week of {', '.join(week.node for week in weeks)}", err=True)
