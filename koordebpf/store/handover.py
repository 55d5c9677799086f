"""Hand suppression values over to the next agent: one that stands by or starts in time; else restore them."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from koordebpf.act.writer.journal import JOURNAL_PATH
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.restore import restore_journal
from koordebpf.errors import ConfigError, KoordebpfError
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.io.regular_file import read_regular_file
from koordebpf.policy.reconcile import FileKey
from koordebpf.policy.strategy import KEPT
from koordebpf.store.node_lock import is_awaited, is_held
from koordebpf.store.wal import IN_FLIGHT_PATH
from koordebpf.units import MIB

log = logging.getLogger(__name__)
_LOOK_EVERY_S = 0.5
_MOST_BYTES = 4 * MIB
_STDERR = 2
_OF_A_POD = "KUBERNETES_SERVICE_HOST"


def can_wait() -> bool:
    """Tell whether a process may outlive the agent: not in a container, whose processes end with the first one.

    Where a container shares the node's process ids its runtime ends them all the same.
    """
    return os.getpid() != 1 and _OF_A_POD not in os.environ


def leave_waiting(folder: Path, keep_s: float) -> int:
    """Start a process that restores the files in the folder's journal if no successor comes in time.

    It is `koordebpf restore`, in a session of its own. On SIGTERM it restores everything at once.

    Args:
        folder: of the agent that ends.
        keep_s: how long it waits.
    Returns: its process id.
    Raises:  OSError: it cannot be started.
    """
    command = [sys.executable, "-m", "koordebpf", "restore", "--successor-within-s", f"{keep_s:g}"]
    command += ["--journal", str(folder / JOURNAL_PATH.name)]
    command += ["--in-flight", str(folder / IN_FLIGHT_PATH.name)]
    # A reader of the agent's log through a pipe waits for the end of its last writer.
    is_pipe = stat.S_ISFIFO(os.fstat(_STDERR).st_mode)
    output = subprocess.DEVNULL if is_pipe else _STDERR
    # It inherits the mask: a signal that comes before it waits for it is not lost.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    process.returncode = 0  # it is not waited for
    return process.pid


def is_succeeded(folders: Collection[Path], wait_s: float) -> bool:
    """Wait until an agent continues from what was kept, at most so long; return whether one did, or acts there now.

    SIGTERM ends the wait.
    """
    kept = {folder: _kept(folder) for folder in folders}
    deadline = time.monotonic() + wait_s
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        while (left_s := deadline - time.monotonic()) > 0:
            if signal.sigtimedwait({signal.SIGTERM}, min(left_s, _LOOK_EVERY_S)):
                break
            if any(_kept(folder) != held for folder, held in kept.items()):
                return True
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return any(_kept(folder) != held or is_held(folder) for folder, held in kept.items())


def settle(folder: Path, *, waits: bool) -> None:
    """Restore what was kept for a standby agent that has ended since; the last action of the agent that acts.

    Args:
        folder: of the agent that acts.
        waits: what is kept outside of a container stays, since a process waits.
    """
    if not is_kept(folder) or is_awaited(folder) or (waits and can_wait()):
        return
    try:
        report = restore_journal(folder / JOURNAL_PATH.name, Places(find_controllers()), time.monotonic_ns())
    except (KoordebpfError, OSError) as error:
        log.error("what best-effort pods may use stays as it is: %s. Run: koordebpf restore", error)
        return
    log.info("no agent continues from what suppression wrote: %d files are restored", len(report.done))
    tell_left(report.left)
    forget_kept(folder)


def tell_left(left: Sequence[FileKey]) -> None:
    """Log which files could not be restored, if any."""
    if left:
        path, file = left[0]
        log.error("%d files stay as they were written, as %s of %s. Run: koordebpf restore", len(left), file, path)


def is_kept(folder: Path) -> bool:
    """Tell whether an agent has left something there for a successor."""
    return (folder / KEPT).exists()


def forget_kept(folder: Path) -> None:
    """Leave nothing for a successor: the files are restored."""
    with contextlib.suppress(OSError):
        (folder / KEPT).unlink()
        folder.rmdir()  # not where something is left in it


def _kept(folder: Path) -> bytes | None:
    try:
        return read_regular_file(folder / KEPT, _MOST_BYTES)
    except (ConfigError, OSError):
        return None
