"""`kubectl koordebpf`: what there is to see of all nodes, from outside. kubectl finds it on PATH by its name."""

from __future__ import annotations

from typing import Any, ClassVar

import click

from koordebpf import __version__
from koordebpf.cli import LazyGroup, run_group


class _Commands(LazyGroup):
    lines: ClassVar = {
        "status": "Show every node's agent, and what is wrong with it.",
        "top": "Show nodes, or pods of all nodes, by memory, growth and stall.",
        "why": "Say why a pod was evicted, or was not; also once it is gone.",
        "explain": "Say why a node's agent decided what it did.",
        "doctor": "Show which signals work on a node, or on all.",
        "record": "Fetch what a node's agent recorded.",
        "report": "Fetch it, and make one page of it for a browser.",
    }
    module = "koordebpf.cli.kubectl.commands"


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "KUBECTL_KOORDEBPF"},
)
@click.version_option(__version__, prog_name="kubectl koordebpf")
def _group() -> None:
    """Look at koordebpf's agents on all nodes of a cluster.

    It finds the cluster as kubectl does, and talks to the API server alone: to the agents through its proxy, and by
    commands in their pods. Nothing is written.

    \b
    Examples:
      kubectl koordebpf status
      kubectl koordebpf why spark/be-7
      kubectl koordebpf record worker-1 && koordebpf replay worker-1.recording
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line of `kubectl-koordebpf`."""
    return run_group(_group, arguments, "kubectl koordebpf")
