"""The command line: one file per command, each imported only when it is called. No logic."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import click

from koordebpf import __version__
from koordebpf.cli.echo import checked_output, echo
from koordebpf.errors import KoordebpfError, OutputError

_READER_ENDED = 141  # 128 + SIGPIPE, as of a program that the signal ends

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
    "ask": "Print what the agent on this node answers.",
    "pod": "Say which cgroup values a pod has, who set them, and why.",
    "config": "Check and show the agent's configuration file.",
    "plugin": "Offer this node's detectors to a Katalyst agent.",
    "controller": "Give every Node its NodeSLO, in a cluster without Koordinator.",
    "slo": "Render and check the ConfigMap slo-controller-config.",
    "restore": "Restore what cgroup files held before the agent wrote them.",
    "doctor": "Show what works on this host, and what is missing.",
    "demo": "Watch a node cgroup be eaten and saved, on this kernel.",
    "completion": "Print the script that completes commands in bash, zsh or fish.",
}


class LazyGroup(click.Group):
    """A group that loads a command's module when it is needed: `--help` must not import what `run` needs.

    `lines`: command → its one line in `--help`. `module` has a function of the command's name; {} in it is that name.
    """

    lines: ClassVar[Mapping[str, str]] = {}
    module: ClassVar[str] = ""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names, in the order of the help."""
        return list(self.lines)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, None where there is none of that name."""
        if cmd_name not in self.lines:
            return None
        command: click.Command = getattr(importlib.import_module(self.module.format(cmd_name)), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; one that is misspelt is named with what is like it."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.lines, n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line for each."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.lines.items()))


class _Commands(LazyGroup):
    lines = _COMMANDS
    module = "koordebpf.cli.{}"


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
    return run_group(_group, arguments, "koordebpf")


def run_group(group: click.Group, arguments: list[str] | None, name: str) -> Any:
    """Run a group's command line under its name, as `main`."""
    try:
        with checked_output():
            return group.main(arguments, prog_name=name)
    except OutputError as error:
        if error.is_closed:
            sys.exit(_READER_ENDED)
        echo(f"{name}: {error}", err=True)
        sys.exit(error.exit_code)
    except KoordebpfError as error:
        from koordebpf.report.log_formats import write_last

        if not write_last(f"{name}: {error}"):
            echo(f"{name}: {error}", err=True)
        sys.exit(error.exit_code)


def root() -> click.Group:
    """Return the group of all commands, for who documents them."""
    return _group
