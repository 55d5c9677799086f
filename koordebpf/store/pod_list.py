"""The last list of pods, kept where the next agent finds it: that one may start while the API server is away.

Only an agent that may act without the API server keeps it (`emergency.action: kill-be`), in its run directory, which
root alone reads and which ends with the machine. A list of another boot, of another Node, or older than
`emergency.maxAge` is none. It opens nothing but the emergency: guards judge it by its age, and of its pods only those
count that are in the cgroup which they had.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from koordebpf.act.writer.journal import this_boot
from koordebpf.kernel.io.regular_file import KeptFile
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kube.cache.objects import ClusterState, Node, Pod
from koordebpf.kube.sources.base import Source

log = logging.getLogger("koordebpf")

_SCHEMA: Final = "koordebpf.pods/v1"
_EVERY_S: Final = 60.0  # Why: half of the least age at which it is used
_FIRST_S: Final = 2.0
# Why: a pod has 2 to 5 KiB; the one whose annotations have a quarter of a megabyte is left out by itself.
_POD_BYTES: Final = 16 << 10
_MAX_PODS: Final = 1_000
_FILE_BYTES: Final = 32 << 20
_NO_SLO: Final = msgspec.Raw(b"null")


class _Kept(msgspec.Struct, frozen=True):
    schema: str
    boot_id: str
    node_name: str
    synced_ns: int  # CLOCK_BOOTTIME
    pods: tuple[Pod, ...]
    cgroups: dict[str, int]  # UID → cgroup_id
    node: Node | None = None
    nodeslo: msgspec.Raw = _NO_SLO
    slo_controller_config: dict[str, str] | None = None


class KeptList:
    """Owns the file at `path`. `state` and `cgroups` are what the agent before knew, until `drop`; None: nothing.

    `update` takes what is known now; a thread writes it, at most once a minute.

    Cost:    a write of 110 pods 1 ms, beside the loop.
    """

    def __init__(self, path: Path, node_name: str, max_age_ns: int) -> None:
        self.state: ClusterState | None = None
        self.cgroups: Mapping[str, int] = {}
        without = "an agent that starts while the API server is away will know no pods"
        self._file = KeptFile(path, without, _FILE_BYTES)
        self._node_name = node_name
        self._noted: tuple[ClusterState, Mapping[str, int | None]] | None = None
        self._is_over = threading.Event()
        self._supervisor = Supervisor("kept-list")
        self._thread = self._supervisor.thread(self._write_on)
        self._thread.start()
        if (kept := _read(self._file, node_name)) is not None:
            self._restore(kept, max_age_ns)

    def _restore(self, kept: _Kept, max_age_ns: int) -> None:
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - kept.synced_ns
        synced_at_ns = time.monotonic_ns() - age_ns
        if not 0 <= age_ns <= max_age_ns or synced_at_ns <= 0:
            return
        self.cgroups = kept.cgroups
        self.state = ClusterState(
            version=1,
            synced_at_ns=synced_at_ns,
            pods=kept.pods,
            node=kept.node,
            nodeslo=None if bytes(kept.nodeslo) == b"null" else kept.nodeslo.copy(),
            slo_controller_config=kept.slo_controller_config,
        )

    def drop(self) -> None:
        """Know better by now."""
        self.state = None

    def update(self, state: ClusterState, cgroups: Mapping[str, int | None]) -> None:
        """Take what is known now, the list of pods being fresh."""
        self._noted = (state, cgroups)

    def close(self) -> None:
        """End the thread. The file stays: the kubelet that ends an unhealthy agent starts the next one."""
        self._is_over.set()
        self._thread.join()

    def _write_on(self) -> None:
        wait_s = _FIRST_S
        while not self._is_over.wait(wait_s):
            noted, self._noted = self._noted, None
            if noted is not None:
                wait_s = _EVERY_S
                self._supervisor.call(functools.partial(self._write, *noted))

    def _write(self, state: ClusterState, cgroups: Mapping[str, int | None]) -> None:
        age_ns = time.monotonic_ns() - state.synced_at_ns
        pods = [pod for pod in state.pods if len(msgspec.json.encode(pod)) <= _POD_BYTES][:_MAX_PODS]
        uids = {pod.uid for pod in pods}
        kept = _Kept(
            schema=_SCHEMA,
            boot_id=this_boot(),
            node_name=self._node_name,
            synced_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME) - age_ns,
            pods=tuple(pods),
            cgroups={uid: cgroup for uid, cgroup in cgroups.items() if cgroup is not None and uid in uids},
            node=state.node,
            nodeslo=state.nodeslo if state.nodeslo is not None else _NO_SLO,
            slo_controller_config=state.slo_controller_config,
        )
        self._file.replace(msgspec.json.encode(kept))


def _read(file: KeptFile, node_name: str) -> _Kept | None:
    if (raw := file.read()) is None:
        return None
    # What cannot be decoded is of another version, and minutes old soon.
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        kept = msgspec.json.decode(raw, type=_Kept)
        if (kept.schema, kept.boot_id, kept.node_name) == (_SCHEMA, this_boot(), node_name):
            return kept
    return None


class KeptSource:
    """`source`, and until it has its first list the kept one. One that refuses to answer is there: its word counts."""

    def __init__(self, source: Source, kept: KeptList) -> None:
        self._source = source
        self._kept = kept
        self._last: ClusterState | None = None
        self._shown = ClusterState(version=0, synced_at_ns=0)

    @property
    def name(self) -> str:
        """The source's own."""
        return self._source.name

    def start(self, wake: Callable[[], None]) -> None:
        """Start the source."""
        self._source.start(wake)

    def refresh(self, now_ns: int) -> None:
        """Let the source look again."""
        self._source.refresh(now_ns)

    def nudge(self) -> None:
        """Tell the source that there is a new pod."""
        self._source.nudge()

    def state(self) -> ClusterState:
        """Return what the source knows; before its first list, what was kept."""
        now = self._source.state()
        if now is self._last:
            return self._shown
        kept = self._kept.state
        if kept is not None and now.synced_at_ns:
            log.info("the API server has answered: its list of pods replaces the one that was kept")
            self._kept.drop()
            kept = None
        # One version more, so that the source's first one is news after the kept one.
        version = now.version + 1
        if kept is None:
            shown = msgspec.structs.replace(now, version=version)
        else:
            shown = msgspec.structs.replace(kept, version=version, is_denied=now.is_denied, problems=now.problems)
        self._last, self._shown = now, shown
        return shown

    def close(self) -> None:
        """Close the source."""
        self._source.close()
