"""Reclaim from cgroups in a thread of its own: a write to memory.reclaim returns when the memory is back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.errors import ActuationError, CgroupGone, SupportError
from koordebpf.kernel.cgroup.kill import raise_thread_priority
from koordebpf.kernel.cgroup.reclaim import reclaim
from koordebpf.kernel.io.worker import Worker
from koordebpf.units import format_bytes

_LOWEST = 19  # nice
_WAITING = 1000  # jobs. Why: a round has one for each pod at most, and a node runs a few hundred


class ReclaimJob(msgspec.Struct, frozen=True):
    """What is to be taken from one cgroup; `cgroup_id` is the id of its directory."""

    path: Path
    cgroup_id: int
    size_bytes: int
    reason: str
    now_ns: int
    pod_names: tuple[str, ...] = ()  # that its directory may bear; none: any
    swappiness: int | None = None  # None: as the kernel balances by itself

    def change(self, result: WriteResult, detail: str = "") -> FileChange:
        """Return what became of it. The file is write-only: it has no old content."""
        path = str(self.path / "memory.reclaim")
        return FileChange(path, None, str(self.size_bytes), result, self.reason, self.now_ns, detail)


class Reclaimer:
    """One thread that reclaims; the last words about its jobs are fetched with `drain`.

    Args:
        wake: is called after each job.
        is_urgent: its thread runs before others; else after them.
    """

    def __init__(self, wake: Callable[[], None], *, is_urgent: bool = True) -> None:
        self._wake = wake
        self._is_urgent = is_urgent
        self._done: SimpleQueue[FileChange] = SimpleQueue()
        self._is_enough = threading.Event()
        self._worker: Worker[tuple[ReclaimJob, threading.Event]] = Worker(
            "reclaimer", self._do, most=_WAITING, begin=self._begin
        )

    def submit(self, job: ReclaimJob) -> None:
        """Put it behind those that wait; where too many do, it is refused."""
        if not self._worker.submit((job, self._is_enough)):
            self._done.put(job.change(WriteResult.REFUSED, f"{_WAITING} others wait already"))
            self._wake()

    def call_off(self) -> None:
        """End what is in progress after its piece, and what waits before it starts."""
        self._is_enough.set()
        self._is_enough = threading.Event()

    def drain(self) -> tuple[FileChange, ...]:
        """Return what became of the jobs that ended since the last call."""
        done = []
        while True:
            try:
                done.append(self._done.get_nowait())
            except Empty:
                return tuple(done)

    def close(self) -> None:
        """Call everything off and end the thread."""
        self.call_off()
        self._worker.close()

    def _begin(self) -> None:
        if self._is_urgent:
            raise_thread_priority()
        else:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)

    def _do(self, given: tuple[ReclaimJob, threading.Event]) -> None:
        job, is_enough = given
        change = job.change(WriteResult.REFUSED, "an unexpected error; the log has it")
        try:
            change = _carried_out(job, is_enough)
        finally:
            self._done.put(change)
            self._wake()


def _carried_out(job: ReclaimJob, is_enough: threading.Event) -> FileChange:
    try:
        taken_bytes = reclaim(
            job.path, job.cgroup_id, job.size_bytes, is_enough.is_set, job.pod_names, swappiness=job.swappiness
        )
    except CgroupGone:
        return job.change(WriteResult.GONE, "the cgroup is gone")
    except ActuationError as error:
        return job.change(WriteResult.REFUSED, str(error))
    except SupportError as error:
        return job.change(WriteResult.UNSUPPORTED, str(error))
    except OSError as error:
        return job.change(WriteResult.REFUSED, str(error.strerror))
    if taken_bytes >= job.size_bytes:
        return job.change(WriteResult.WRITTEN)
    why = "it was called off" if is_enough.is_set() else "the kernel found no more"
    return job.change(WriteResult.WRITTEN, f"{format_bytes(taken_bytes)} of it: {why}")
