"""One pod from its POST to the end of its cgroup, looked at from outside every few milliseconds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from koordebpf.units import NS_PER_S, format_bytes
from tests.cluster.api import Api, Object
from tests.cluster.node import RealNode
from tests.support.patience import patience

_STEP_S = 0.005
# In the order in which they come, but for the last three, which may come in any.
_WORDS = {
    "posted": "POST of the pod",
    "cgroup": "its cgroup is there",
    "running": "the API server says Running",
    "decided": "koordebpf has decided",
    "sent": "the eviction is on the wire",
    "answered": "the API server has answered",
    "terminating": "the pod has a deletionTimestamp",
    "stopped": "its last process is gone",
    "removed": "its cgroup is gone",
    "deleted": "its object is gone",
}


class Follower:
    """Creates a pod and notes when what happens to it is first seen, in CLOCK_MONOTONIC nanoseconds."""

    def __init__(self, api: Api, node: RealNode, pod: Object) -> None:
        self._api = api
        self._node = node
        self.seen_ns = {"posted": time.monotonic_ns()}
        self.pod = api.create(pod)
        self.peak_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def wait_for(self, word: str, timeout_s: float = 40) -> int:
        """Return when this was seen; say what was seen instead if it is not."""
        deadline = time.monotonic() + patience(timeout_s)
        while word not in self.seen_ns:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.pod['metadata']['name']}: not {word}: {self.lines()}: {self.object()}")
            time.sleep(_STEP_S)
        return self.seen_ns[word]

    def cgroup(self) -> Path:
        """Return the pod's memory cgroup once it is there."""
        self.wait_for("cgroup")
        found = self._node.pod_cgroup(self.pod)
        assert found is not None
        return found

    def wait_for_bytes(self, size_bytes: int, timeout_s: float = 40) -> None:
        """Wait until the pod has held this much."""
        deadline = time.monotonic() + patience(timeout_s)
        while self.peak_bytes < size_bytes:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.pod['metadata']['name']} holds {self.peak_bytes} of {size_bytes}")
            time.sleep(_STEP_S)

    def usage_bytes(self) -> int:
        """Return what the pod holds now."""
        cgroup = self._node.pod_cgroup(self.pod)
        with contextlib.suppress(OSError):
            if cgroup is not None:
                return int((cgroup / "memory.usage_in_bytes").read_text())
        return 0

    def object(self) -> Object | None:
        """Return the pod as the API server has it; None: it is gone, or another one has its name."""
        now = self._api.get(self.pod)
        return now if now is not None and now["metadata"]["uid"] == self.pod["metadata"]["uid"] else None

    def is_running(self) -> bool:
        """Tell whether it runs and was not deleted."""
        now = self.object()
        return now is not None and now["status"]["phase"] == "Running" and "deletionTimestamp" not in now["metadata"]

    def take(self, outcome: Mapping[str, Any], decided_ns: int) -> None:
        """Add what the agent's audit line says of this pod's eviction."""
        self.seen_ns |= {"decided": decided_ns}
        for word in ("sent", "answered"):
            if outcome[f"{word}_ns"] is not None:
                self.seen_ns[word] = outcome[f"{word}_ns"]

    def lines(self, since: str = "posted") -> list[str]:
        """Return the time line for people, in the order in which it came."""
        zero_ns = self.seen_ns.get(since, self.seen_ns["posted"])
        found = sorted((ns, _WORDS[word]) for word, ns in self.seen_ns.items())
        texts = [f"{(ns - zero_ns) / NS_PER_S:+9.3f} s  {text}" for ns, text in found]
        return [*texts, f"{'':13}it held {format_bytes(self.peak_bytes)} at most"]

    def close(self) -> None:
        """Look no more."""
        self._is_over.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _look(self) -> None:
        cgroup: Path | None = None
        while not self._is_over.wait(_STEP_S):
            if cgroup is None:
                cgroup = self._node.pod_cgroup(self.pod)
            if cgroup is not None:
                self._see("cgroup")
                self._look_at(cgroup)
            if "deleted" not in self.seen_ns:
                self._look_at_object()
            if {"deleted", "removed"} <= self.seen_ns.keys():
                return

    def _look_at(self, cgroup: Path) -> None:
        try:
            self.peak_bytes = max(self.peak_bytes, int((cgroup / "memory.usage_in_bytes").read_text()))
            has_processes = any(path.read_text() for path in cgroup.glob("*/cgroup.procs"))
        except OSError:  # it is removed while it is read: ENOENT, ENODEV
            has_processes = False
        if not has_processes and "running" in self.seen_ns:
            self._see("stopped")
        if not cgroup.exists():
            self._see("removed")

    def _look_at_object(self) -> None:
        try:
            now = self.object()
        except Exception:  # a server that is away for a moment, as some tests want it
            return
        if now is None:
            self._see("deleted")
        elif now["status"].get("phase") == "Running":
            self._see("running")
        if now is not None and "deletionTimestamp" in now["metadata"]:
            self._see("terminating")

    def _see(self, word: str) -> None:
        self.seen_ns.setdefault(word, time.monotonic_ns())
