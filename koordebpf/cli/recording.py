"""`koordebpf recording`."""

from __future__ import annotations

from pathlib import Path

import click

from koordebpf.cli.echo import echo, echo_bytes, echo_json, echo_object
from koordebpf.cli.inputs import OutputPath
from koordebpf.cli.schemas import schema_option


@click.group()
def recording() -> None:
    """Show and redact recordings of an agent's rounds.

    \b
    Examples:
      koordebpf recording show /var/lib/koordebpf/recorder/machine
      koordebpf recording redact /var/lib/koordebpf/recorder/machine share.rounds
    """


@recording.command()
@click.argument("path", metavar="FILE|FOLDER")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@schema_option("recording-summary")
def show(path: str, as_json: bool) -> None:
    """Say which rounds there are, of which runs, and what cannot be read."""
    from koordebpf.tools.recorder.pages import summary_of, summary_page
    from koordebpf.tools.recorder.rounds import open_recording

    summary = summary_of(open_recording(path))
    if as_json:
        echo_object("recording-summary", summary)
    else:
        echo(summary_page(summary))


@recording.command()
@click.argument("path", metavar="IN")
@click.argument("output", metavar="OUT", type=OutputPath())
def redact(path: str, output: Path) -> None:
    """Copy a recording with the names hashed: pods, namespaces, labels, paths, UIDs. OUT - is standard output.

    The same name has the same hash within a file, and in no other: the key is not kept. Every round is decided again,
    and the decision on the redacted round is what OUT has.
    """
    from koordebpf.tools.recorder.redact import redact_recording
    from koordebpf.tools.recorder.rounds import open_recording

    opened = open_recording(path)
    echo(redact_recording(opened, output), err=True)
    for problem in opened.problems:
        echo(f"koordebpf: {problem}", err=True)


@recording.command()
@click.argument("folder", required=False, metavar="[FOLDER]", type=click.Path(path_type=Path))
def pack(folder: Path | None) -> None:
    """Write an agent's recording to standard output, as a tar archive; the agent still records.

    FOLDER is by default that of the agents on this machine, /var/lib/koordebpf/recorder, or, where that could not be
    written, /run/koordebpf/recorder. kubectl koordebpf record fetches recordings this way.

    \b
    Examples:
      koordebpf recording pack > node.tar
      ssh worker-1 koordebpf recording pack | tar -x -C worker-1
    """
    from koordebpf.tools.recorder.pack import packed

    places = (Path("/var/lib/koordebpf/recorder"), Path("/run/koordebpf/recorder"))
    place = folder or next((each for each in places if each.is_dir()), places[0])
    for chunk in packed(place):
        echo_bytes(chunk)


@recording.command()
def schema() -> None:
    """Print the JSON Schemas of what the records of a recording hold."""
    from koordebpf.store.recorder.values import recording_schema

    echo_json(recording_schema(), indent=2)
