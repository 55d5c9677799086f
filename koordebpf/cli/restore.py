"""`koordebpf restore`: what cgroup files and sysctls held before the agent wrote them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from koordebpf.act.evict.cgroup import frozen_by
from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.act.writer.journal import JOURNAL_PATH, OLD_LADDER_JOURNAL
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.restore import restore_journal
from koordebpf.cli.echo import echo
from koordebpf.cli.inputs import run_dir_option
from koordebpf.errors import ActuationError, ConfigError
from koordebpf.kernel.cgroup.freezer import thaw
from koordebpf.kernel.cgroup.hierarchy import find_controllers, find_memory_hierarchy
from koordebpf.kernel.io.degraded import reason_of
from koordebpf.store.handover import forget_kept, is_succeeded
from koordebpf.store.node_lock import is_held
from koordebpf.store.wal import IN_FLIGHT_PATH, read_in_flight
from koordebpf.strategies.hooks.tasks import CoreCookies, OomScores
from koordebpf.strategies.hooks.values import COOKIES, SCORES
from koordebpf.strategies.resctrl.groups import ResctrlGroups
from koordebpf.strategies.resctrl.run import RESCTRL
from koordebpf.strategies.resctrl.values import GROUPS

_MOST_SHOWN = 200  # characters. Why: a list of CPUs, or a device's limits, fit into that


@click.command()
@click.option(
    "--journal",
    "journals",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    help="Where an agent put down what the files held; may be given several times. Default: those of all agents below"
    " --run-dir.",
)
@click.option(
    "--in-flight",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where an agent recorded the kills in progress. Default: beside its journals.",
)
@run_dir_option("The folder that the agents were given.")
@click.option(
    "--successor-within-s",
    type=click.FloatRange(min=0),
    help="First wait so long for an agent that continues from what was kept for it, and restore nothing if one comes."
    " SIGTERM ends the wait.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be written.")
def restore(
    journals: tuple[Path, ...],
    in_flight: Path | None,
    run_dir: Path,
    successor_within_s: float | None,
    dry_run: bool,
) -> None:
    """Restore what cgroup files held before the agent wrote them.

    For an agent that was killed and gets no successor. Byte for byte, in an order that the kernel takes; cgroups that
    are gone are left out. A pod that it was killing and left frozen is thawed: what had its signal by then ends.
    The exit code is 1 where something could not be restored; that stays in the journal.

    \b
    Examples:
      koordebpf restore --dry-run
      koordebpf restore
      koordebpf restore --successor-within-s 300
    """
    folders = list(dict.fromkeys(journal.parent for journal in journals)) or _folders(run_dir)
    if successor_within_s is not None and is_succeeded(folders, successor_within_s):
        echo("an agent acts on this node, or one continues from what was kept: nothing is restored")
        return
    is_done = True
    for folder in folders:
        if _is_closed(folder):
            echo(f"{folder}: Permission denied. Run it as root", err=True)
            is_done = False
            continue
        if not dry_run and is_held(folder):
            echo(f"{folder}: an agent acts there. Stop the agent first", err=True)
            is_done = False
            continue
        names = (OLD_LADDER_JOURNAL, JOURNAL_PATH.name)
        here = [journal for journal in journals if journal.parent == folder] or [folder / name for name in names]
        restored = [_restored(journal, dry_run=dry_run) for journal in here]
        if not dry_run:
            _put_back_tasks(folder)
            _remove_groups(folder)
        restored.append(_thawed(in_flight or folder / IN_FLIGHT_PATH.name, dry_run=dry_run))
        if all(restored) and not dry_run:
            forget_kept(folder)
        is_done &= all(restored)
    if not is_done:
        sys.exit(1)


# Of every node that an agent acted on: the machine, or a cgroup.
def _folders(run_dir: Path) -> list[Path]:
    try:
        found = sorted(path for path in run_dir.iterdir() if path.is_dir())
    except FileNotFoundError:
        found = []
    except PermissionError as error:
        raise ActuationError(f"{run_dir}: {error.strerror}. Run it as root") from error
    return found or [run_dir / JOURNAL_PATH.parent.name]


# To who is not root: an agent's folder is for its owner alone.
def _is_closed(folder: Path) -> bool:
    try:
        (folder / JOURNAL_PATH.name).stat()
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def _restored(journal: Path, *, dry_run: bool) -> bool:
    try:
        report = restore_journal(journal, Places(find_controllers()), time.monotonic_ns(), dry_run=dry_run)
    except ActuationError as error:  # of this file alone
        echo(str(error), err=True)
        return False
    for change in report.changes:
        echo(_line(change))
    if report.lost_lines:
        echo(f"{journal}: {report.lost_lines} lines could not be read", err=True)
    if not report.changes and not report.done and journal.name != OLD_LADDER_JOURNAL:
        echo(f"{journal}: nothing to restore")
    return not report.lost_lines and (dry_run or not report.left)


# Of processes, which end: what is not put back is no part of the exit code.
def _put_back_tasks(folder: Path) -> None:
    def report(change: FileChange) -> None:
        echo(_line(change))

    for record, kind in ((folder / COOKIES, CoreCookies), (folder / SCORES, OomScores)):
        if record.exists():
            kind(find_memory_hierarchy().mount_point, record, report).restore(time.monotonic_ns())


def _remove_groups(folder: Path) -> None:
    if (record := folder / GROUPS).exists():
        ResctrlGroups(RESCTRL, RESCTRL, record, lambda change: echo(_line(change))).restore(time.monotonic_ns())


# An agent that is at work holds a journal, so that this is not reached.
def _thawed(in_flight: Path, *, dry_run: bool) -> bool:
    is_done = True
    try:
        kills = read_in_flight(in_flight).kills
    except (ConfigError, OSError) as error:
        echo(f"{in_flight}: {reason_of(error)}: kills that it may have are not finished", err=True)
        return False
    for kill in kills:
        if (frozen := frozen_by(kill)) is None:
            continue
        is_thawed = dry_run or thaw(frozen, kill.target.version)
        echo(f"{frozen}: {'' if is_thawed else 'not '}thawed: {kill.namespace}/{kill.name} was being killed")
        is_done &= is_thawed
    return is_done


# A journal is a file: what it holds may be anything, of any length.
def _shown(value: str | None) -> str:
    value = "; ".join((value or "empty").splitlines())
    return value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}… ({len(value)} characters)"


def _line(change: FileChange) -> str:
    match change.result:
        case WriteResult.WRITTEN | WriteResult.DRY_RUN:
            detail = f" ({_shown(change.detail)})" if change.detail else ""
            return f"{_shown(change.path)}: {_shown(change.old)} → {_shown(change.new)}{detail}"
        case _:
            return f"{_shown(change.path)}: not {_shown(change.new)}: {_shown(change.detail)}"
