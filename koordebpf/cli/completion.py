"""`koordebpf completion`."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from koordebpf.cli.echo import echo

_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes koordebpf's commands, options and their values in a shell.

    The script asks koordebpf itself, so that it does not become outdated. bash 4.4 or newer.

    \b
    Examples:
      koordebpf completion bash > /etc/bash_completion.d/koordebpf
      koordebpf completion zsh > "${fpath[1]}/_koordebpf"
      koordebpf completion fish > ~/.config/fish/completions/koordebpf.fish
      source <(koordebpf completion bash)
    """
    root = context.find_root()
    made = _SHELLS[shell](root.command, {}, "koordebpf", "_KOORDEBPF_COMPLETE")
    # Not BashComplete's own, which runs bash to see its version.
    echo(ShellComplete.source(made))
