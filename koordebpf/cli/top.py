"""`koordebpf top`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koordebpf.cli.echo import echo, echo_json
from koordebpf.cli.inputs import names_of, names_options

if TYPE_CHECKING:
    from koordebpf.collect.node_watch import NodeWatch
    from koordebpf.kernel.backends.select import WantedBackend
    from koordebpf.report.top import Level, Sort, TopPage
    from koordebpf.tools.top.choice import Choice
    from koordebpf.tools.top.page import Around


_NO_NAMES = (
    "Pods have no names: no agent answers below {run_dir}. Name them by --pods FILE, or by --source api with"
    " --node-name and --kubeconfig; --level cgroup needs no names."
)

_HELP = """Show pods, containers or cgroups by memory, growth and stall.

\b
USED      anon and unevictable memory: what an eviction frees
GROWTH/s  of USED
SOME%     share of the last 10 s in which at least one task of it waited
          for memory; FULL%: in which none ran. ~ is worked out from the
          stalls that were timed (no pressure files on cgroup v1 and
          psi=0), ≥ a lower bound, - not to be known that way
BY        whose shortage made most of it wait: the node's, or a limit
          below the node, its own or its pod's
OOM IN    until its own limit kills: point, and low–high of the estimate

Names, QoS and the threshold come from the agent on this node, where one runs (root alone may ask it), else from
--pods or --source. A name that begins with ? is a pod cgroup that none of them knows a pod for. The ledger (--ledger,
or key l) charges each stall of the last minute to its cause: a limit, or those that grew while the node was short,
page cache included, beyond their requests.

--frame measures for every strategy, whatever its feature gate: koordebpf plan - --feature-gates NAME=true shows what
it would do now. It takes two looks, --interval apart; what an agent remembers over minutes is not in such a frame.

Above the table stands, where best-effort pods have CPU files, what they use of the CPUs or the quota that they may
have at most, and what the whole node uses.

On a terminal, 60 columns wide or more, keys choose: s u g t n sort by stall, usage, growth, time left and name, v
switches from pods to containers to cgroups, r to a tree and back, l to the ledger, / filters by name, arrows and Enter
open one row with what it was before, ? shows all keys, q ends. Elsewhere each page is printed below the last.

--replay shows a recording (koordebpf record, or an agent's folder): t and T go a round on and back, j and J a minute,
d and D to the next decision and the one before.

\b
Cost: 1 to 2 µs per reclaim episode in the kernel (bpf/README.md), some
  10 ms of CPU a second with 300 containers.

\b
Provoke something to see: koordebpf demo in another terminal, or, as root,
on cgroup v2 (v1: C=/sys/fs/cgroup/memory/lab, memory.limit_in_bytes):
  C=/sys/fs/cgroup/lab; mkdir $C; echo 64M > $C/memory.max
  sh -c 'echo $$ >'$C'/cgroup.procs; dd if=/dev/zero of=/var/tmp/x bs=1M \\
    count=5000; rm /var/tmp/x' & koordebpf top --level cgroup --sort stall

\b
Examples:
  koordebpf top --pods pods.yaml --sort growth
  koordebpf top --once --json | jq '.rows[] | select(.full_in)'
  koordebpf top --ledger --once
  koordebpf top --replay /var/lib/koordebpf/recorder
  koordebpf top --pods pods.yaml --frame | koordebpf plan -
"""


@click.command(help=_HELP)
@click.option(
    "--pods",
    "files",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="Pods as YAML or JSON, for their names, QoS and the threshold, in place of the agent's.",
)
@names_options
@click.option("--node-cgroup", type=click.Path(path_type=Path), help="The node is this cgroup.")
@click.option("--cgroup-root", metavar="PATH", help="The kubelet's own --cgroup-root; default: learned from --pods.")
@click.option("--level", type=click.Choice(["pod", "container", "cgroup"]), default="pod", show_default=True)
@click.option(
    "--sort", type=click.Choice(["stall", "usage", "growth", "ttt", "name"]), default="usage", show_default=True
)
@click.option("--ledger", is_flag=True, help="Show who stalled on whose account, not the table.")
@click.option("--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds.")
@click.option("--rows", type=click.IntRange(min=1), help="So many at most; default: what fits, else 20.")
@click.option("--once", is_flag=True, help="Print one page and end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a page; with --once, one.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of that object, and end.")
@click.option(
    "--frame",
    "as_frame",
    is_flag=True,
    help="Print this moment as a frame for `koordebpf plan`; all strategies are due.",
)
@click.option(
    "--config", metavar="CONFIG.yaml", help="With --frame: the agent's gates and settings; default: its defaults."
)
@click.option("--replay", metavar="FILE|FOLDER", help="Show a recording, not this moment.")
@click.option("--at", metavar="TIME", help="With --replay: the last round at or before this time; default: the last.")
@click.option(
    "--backend",
    type=click.Choice(["auto", "co-re", "bcc", "files"]),
    help="How the kernel is listened to; default: the best that works here.",
)
def top(
    files: tuple[Path, ...],
    source: str | None,
    run_dir: Path,
    node_name: str | None,
    kubeconfig: Path | None,
    node_cgroup: Path | None,
    cgroup_root: str | None,
    level: Level,
    sort: Sort,
    ledger: bool,
    interval: float,
    rows: int | None,
    once: bool,
    as_json: bool,
    schema: bool,
    as_frame: bool,
    config: str | None,
    replay: str | None,
    at: str | None,
    backend: WantedBackend | None,
) -> None:
    """Show pages on a terminal, or print pages, objects or a frame."""
    if schema:
        from koordebpf.report.top import top_schema

        echo_json(top_schema(), indent=2)
        return

    from koordebpf.tools.top.choice import Choice

    choice = Choice(sort, level, ledger)
    if replay is not None:
        if level != "pod" or as_frame or files:
            raise click.UsageError("--replay shows pods: it excludes --level, --frame and --pods")
        _show_recording(replay, at, choice, rows, once=once, as_json=as_json)
        return
    if config is not None and not as_frame:
        raise click.UsageError("--config needs --frame")
    if at is not None:
        raise click.UsageError("--at needs --replay")

    from koordebpf.collect.node_watch import NodeWatch
    from koordebpf.collect.scope import open_scope
    from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
    from koordebpf.kernel.signals import SUMS_ONLY_NS
    from koordebpf.tools.top.screen import can_redraw

    scope = open_scope(find_memory_hierarchy(), node_cgroup, cgroup_root)
    names = names_of(files, source, run_dir, node_name, kubeconfig)
    hint = _NO_NAMES.format(run_dir=run_dir)
    with NodeWatch(scope, names, SUMS_ONLY_NS, backend=backend) as watch:
        if as_frame:
            _print_frame(watch, interval, run_dir, config)
        elif not (once or as_json) and sys.stdout.isatty() and can_redraw():
            _show(watch, interval, choice, rows, hint)
        else:
            _print(watch, interval, choice, rows, hint, once=once, as_json=as_json)


def _show(watch: NodeWatch, interval: float, choice: Choice, rows: int | None, hint: str) -> None:
    from koordebpf.tools.top.looks import looks
    from koordebpf.tools.top.screen import Keyboard, Screen

    with Keyboard() as keyboard, Screen() as screen:
        for look in looks(watch, interval, choice, keyboard, hint=hint):
            screen.show(look.page, look.choice, rows, look.around)


def _print(
    watch: NodeWatch, interval: float, choice: Choice, rows: int | None, hint: str, *, once: bool, as_json: bool
) -> None:
    from koordebpf.report.top import cut
    from koordebpf.tools.top.looks import looks

    for look in looks(watch, interval, choice, once=once, hint=hint):
        if as_json:
            echo_json(cut(look.page, rows))
            continue
        _echo_page(look.page, look.choice, rows, look.around)
        if not once:
            echo()


def _echo_page(page: TopPage, choice: Choice, rows: int | None, around: Around) -> None:
    import shutil

    from koordebpf.printable import page as text_of
    from koordebpf.report.top import cut
    from koordebpf.tools.top.page import page_lines
    from koordebpf.tools.top.table import LEAST_WIDTH, MOST_WIDTH

    width = max(LEAST_WIDTH, min(shutil.get_terminal_size().columns, MOST_WIDTH))
    lines = page_lines(cut(page, rows or 20), choice, width=width, around=around)
    echo(text_of(line for line, _ in lines))


def _show_recording(path: str, at: str | None, choice: Choice, rows: int | None, *, once: bool, as_json: bool) -> None:
    from koordebpf.report.top import cut
    from koordebpf.tools.recorder.rounds import open_recording, parse_time, place_at
    from koordebpf.tools.top.replayed import moments
    from koordebpf.tools.top.screen import Keyboard, Screen, can_redraw

    opened = open_recording(path)
    place = len(opened) - 1 if at is None else place_at(opened, parse_time("--at", at))
    if not (once or as_json) and sys.stdout.isatty() and can_redraw():
        with Keyboard() as keyboard, Screen() as screen:
            for moment in moments(opened, place, choice, keyboard):
                screen.show(moment.page, moment.choice, rows, moment.around)
    else:
        for moment in moments(opened, place, choice, None):
            if as_json:
                echo_json(cut(moment.page, rows))
            else:
                _echo_page(moment.page, moment.choice, rows, moment.around)


def _print_frame(watch: NodeWatch, interval: float, run_dir: Path, config: str | None) -> None:
    from koordebpf.cli.inputs import read_input
    from koordebpf.collect.scope import folder_of
    from koordebpf.configuration.checked import agent_config
    from koordebpf.configuration.file import read_config
    from koordebpf.decision.frames import encode_frame
    from koordebpf.tools.top.one_frame import one_frame

    settings = agent_config({} if config is None else read_config(config, read_input(config)))
    made = one_frame(watch, interval, settings, folder_of(run_dir, watch.scope))
    if made is not None:
        echo_json(encode_frame(made.frame))
        for problem in made.problems:
            echo(f"koordebpf: not measured: {problem}", err=True)
