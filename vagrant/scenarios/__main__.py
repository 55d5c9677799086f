"""The command line of the scenarios."""

from __future__ import annotations

import signal
import sys
import textwrap

import click

from koordebpf.errors import KoordebpfError
from vagrant.scenarios import kubernetes, scenario
from vagrant.scenarios.play import play

_COLUMNS = 80
_NAME_COLUMNS = 28
_TEXT_COLUMNS = 10  # of the text after the second it happened at


def tell(text: str, indent: int = _TEXT_COLUMNS) -> None:
    """Print lines of any length on a terminal of 80 columns."""
    fill = textwrap.TextWrapper(
        _COLUMNS, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False
    ).fill
    for line in text.split("\n"):
        click.echo(fill(line))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, metavar="NAME…")
@click.option("--list", "only_list", is_flag=True, help="Name the scenarios.")
@click.option("--manifest", is_flag=True, help="Print the pods for kubectl, and run nothing.")
def main(names: tuple[str, ...], only_list: bool, manifest: bool) -> None:
    """Play scenarios of memory pressure, and tell whether koordebpf says what it should.

    The node is a cgroup of at most 512 MiB and half of the memory that is available, its pods are cgroups in it. Needs
    root; takes some ten seconds each, touches nothing else and leaves nothing behind. A scenario whose node is the
    machine needs KOORDEBPF_OWN_MACHINE=1. Exit code 0: each expected sentence was said, and none of the others; 1: not
    so; 2: it cannot run here.

    \b
    Examples:
      run memory-hog limit-thrash
      run --list
      run --manifest memory-hog | kubectl apply -f -     and: delete -f -
    """
    try:
        chosen = {name: scenario.load(name) for name in names}
        if only_list or not names:
            for name in scenario.names():
                tell(f"{name:{_NAME_COLUMNS}}{scenario.load(name).title}", _NAME_COLUMNS)
            return
        if manifest:
            for name, each in chosen.items():
                click.echo(kubernetes.manifest(name, each), nl=False)
            return
        # A scenario that is ended cleans up, however it is asked to end.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
        is_well = [play(name, each, tell) for name, each in chosen.items()]
    except KeyboardInterrupt:
        click.echo("interrupted: the pods and cgroups are removed", err=True)
        sys.exit(130)
    except KoordebpfError as error:
        click.echo(f"run: {error}", err=True)
        sys.exit(2)
    sys.exit(0 if all(is_well) else 1)


if __name__ == "__main__":
    main(prog_name="run")
