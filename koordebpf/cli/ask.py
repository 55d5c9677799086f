"""`koordebpf ask`."""

from __future__ import annotations

from pathlib import Path

import click

from koordebpf.cli.echo import echo_json
from koordebpf.cli.inputs import ask_agent, run_dir_option


@click.command()
@click.argument("page", metavar="PAGE")
@click.option("--url", metavar="PATH|URL", help="The agent's socket, or an address that leads to it. Default: found.")
@run_dir_option()
def ask(page: str, url: str | None, run_dir: Path) -> None:
    """Print what the agent on this node answers on its socket, as JSON. Root alone may ask.

    PAGE is decisions, writes, requests, pods, known (Pods, Node and NodeSLO), top (a page of koordebpf top, of the last
    round), or another that a feature adds; the error of one that is not there names all of them.

    \b
    Examples:
      koordebpf ask top | jq '.rows[0]'
      koordebpf ask known | jq -r '.pods[].metadata.name'
    """
    raw, _ = ask_agent(url, run_dir, page.lstrip("/"), or_else="name another page")
    echo_json(raw)
