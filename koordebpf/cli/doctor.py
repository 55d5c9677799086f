"""`koordebpf doctor`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--node-cgroup", type=click.Path(path_type=Path), help="Examine for this cgroup as the node.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def doctor(node_cgroup: Path | None, as_json: bool) -> None:
    """Show which signals work on this host, and what is missing.

    Each is tried: the programs are loaded and attached for a moment. Exit code 0: the agent runs here (what is marked
    -- it does without, at the cost that is named); 3: it cannot.

    \b
    Example:
      koordebpf doctor --json | jq '.sources[] | select(.works | not)'
    """
    import msgspec

    from koordebpf.agent.doctor import examine
    from koordebpf.kernel.support import host_line
    from koordebpf.report.doctor import doctor_text

    sources = examine(node_cgroup)
    if as_json:
        click.echo(msgspec.json.encode({"host": host_line(), "sources": sources}))
    else:
        click.echo(doctor_text(host_line(), sources))
