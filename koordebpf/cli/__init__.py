"""The command line: one file per command, each imported only when it is called. No logic."""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import Any

import click

from koordebpf import __version__
from koordebpf.cli.echo import echo
from koordebpf.errors import KoordebpfError

# Command → its one line in `--help`. The module and the function have the command's name.
_COMMANDS = {
    "run": "Watch a node and protect it; dry run unless --enforce.",
    "trace": "Print kernel events as they happen, with pod names.",
    "top": "Show pods by memory, growth and stall.",
    "metrics": "Show usage over a window: averages and percentiles.",
    "record": "Record what an agent would decide on this node, to be decided again.",
    "replay": "Decide the rounds of a recording again, also under other settings.",
    "simulate": "Say what other settings would have evicted in a recording.",
    "shadow": "Say what other settings would have done for this node in the last days.",
    "recording": "Show what a recording holds; redact it.",
    "plan": "Print the decision for one recorded frame.",
    "backtest": "Say how often recorded usage exceeded its predicted peak.",
    "report": "Write one page about an incident: HTML without network.",
    "explain": "Say why the last decisions were what they were.",
    "pod": "Say which cgroup values a pod has, who set them, and why.",
    "config": "Check and show the agent's configuration file.",
    "plugin": "Offer this node's detectors to a Katalyst agent.",
    "controller": "Give every Node its NodeSLO, in a cluster without Koordinator.",
    "slo": "Render and check the ConfigMap slo-controller-config.",
    "restore": "Restore what cgroup files held before the agent wrote them.",
    "doctor": "Show what works on this host, and what is missing.",
    "demo": "Watch a node cgroup be eaten and saved, on this kernel.",
}


class _Commands(click.Group):
    # Loads the command's module when it is needed: `--help` must not import what `run` needs.
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"koordebpf.cli.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "KOORDEBPF"})
@click.version_option(__version__, prog_name="koordebpf")
def _group() -> None:
    """Protect a Kubernetes node's latency-sensitive pods from its best-effort ones.

    \b
    Examples:
      koordebpf doctor                       what works on this host
      koordebpf demo                         the whole thing in half a minute
      koordebpf run --source file --pods pods.yaml
    """


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; errors that we raise on purpose become one sentence and their exit code."""
    try:
        return _group.main(arguments, prog_name="koordebpf")
    except KoordebpfError as error:
        from koordebpf.report.log.json_log import say_last

        if not say_last(f"koordebpf: {error}"):
            echo(f"koordebpf: {error}", err=True)
        sys.exit(error.exit_code)
