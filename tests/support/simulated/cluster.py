"""An API server and a container runtime as plain objects, at the seams where the agent takes its clients."""

from __future__ import annotations

import errno
import json
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from koordebpf.act.evict.api import ApiExecutor, ApiLimits
from koordebpf.act.evict.cri import CriExecutor, CriLimits
from koordebpf.errors import ConfigError, KubeError
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.kube.clients.cri import PodContainers, RunningContainer, StopResult
from koordebpf.kube.http.refusal import refusal
from koordebpf.kube.sources.manifest import parse_manifests
from koordebpf.units import NS_PER_S
from tests.support.simulated.faults import Faults

CUT_BEFORE, CUT_AFTER = -1, -2  # the connection ends before the server has read the request, or after it did it


class FakeServer:
    """Objects, and what is answered to evictions: `answers` are statuses in turn, then 201."""

    def __init__(self, faults: Faults, now_ns: Callable[[], int]) -> None:
        self.objects: list[dict[str, Any]] = []
        self.version = 0
        self.is_lost = False
        self.answers: deque[int] = deque()
        self.slow_until_ns = 0  # no request is answered before
        self.evicted: list[tuple[int, str]] = []  # when, and the UID
        self._faults = faults
        self._now_ns = now_ns

    def put(self, objects: list[dict[str, Any]]) -> None:
        self.objects, self.version = objects, self.version + 1

    # `Transport`, as far as `KubeActions` needs it.
    def prepare(self) -> None:
        """Need nothing."""

    def close(self) -> None:
        """Keep nothing open."""

    def post(self, path: str, body: bytes, *, resource: str, timeout_s: float) -> bytes:
        del path, timeout_s
        try:
            self._faults.note(f"POST {resource}")
        except OSError as error:
            raise KubeError(f"create {resource}: {error.strerror}", retry=True) from error
        if self.is_lost:
            raise KubeError(f"create {resource}: {os.strerror(errno.ECONNREFUSED)}", retry=True)
        uid = json.loads(body)["deleteOptions"]["preconditions"]["uid"]
        status = self.answers.popleft() if self.answers else 201
        if status == CUT_BEFORE:
            raise KubeError(f"create {resource}: the connection was cut", retry=True)
        if status > 201:
            raise refusal(status, {}, b"{}", "create", resource)
        pod = next((each for each in self.objects if each["metadata"].get("uid") == uid), None)
        if pod is None:
            raise refusal(404, {}, b"{}", "create", resource)
        self.evicted.append((self._now_ns(), uid))
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.version += 1
        if status == CUT_AFTER:
            raise KubeError(f"create {resource}: the connection was cut", retry=True)
        return b"{}"


class ListedSource:
    """The server's objects, decoded as any source does, as of the last second in which it answered."""

    name = "api"

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._version = -1
        self._state = ClusterState(version=0, synced_at_ns=0)

    def start(self, wake: Callable[[], None]) -> None:
        """Have no thread."""

    def nudge(self) -> None:
        """Look in each tick anyway."""

    def close(self) -> None:
        """Keep nothing open."""

    def state(self) -> ClusterState:
        return self._state

    def refresh(self, now_ns: int) -> None:
        if self._server.is_lost:
            return
        if self._version == self._server.version:
            if now_ns - self._state.synced_at_ns >= NS_PER_S:
                self._state = msgspec.structs.replace(self._state, synced_at_ns=now_ns)
            return
        self._version = self._server.version
        items = {"apiVersion": "v1", "kind": "List", "items": self._server.objects}
        version = self._state.version + 1
        try:
            found = parse_manifests({"server.json": json.dumps(items).encode()})
        except ConfigError as error:
            self._state = msgspec.structs.replace(self._state, version=version, problems=(str(error),))
            return
        self._state = ClusterState(
            version=version,
            synced_at_ns=now_ns,
            pods=found.pods,
            node=found.node,
            nodeslo=found.nodeslo,
            problems=tuple(str(each.error) for each in found.bad),
        )


class FakeRuntime:
    """The containers of pods by UID; `failures` are words with which it fails the next calls."""

    def __init__(self, faults: Faults, now_ns: Callable[[], int]) -> None:
        self.running: dict[str, tuple[str, ...]] = {}
        self.stopped: list[tuple[int, str]] = []
        self.failures: deque[str] = deque()
        self._faults = faults
        self._now_ns = now_ns

    def warm(self, timeout_s: float) -> None:
        self._call("Version")

    def containers(self, pod_uid: str, timeout_s: float) -> PodContainers:
        self._call("ListContainers")
        ids = self.running.get(pod_uid, ())
        return PodContainers(tuple(RunningContainer(each, "main") for each in ids), frozenset(ids))

    def stop(self, containers: Sequence[RunningContainer], *, grace_s: int, timeout_s: float) -> tuple[StopResult, ...]:
        try:
            self._call("StopContainer")
        except KubeError as error:
            return tuple(StopResult(each, str(error)) for each in containers)
        wanted = {each.id for each in containers}
        for uid, ids in list(self.running.items()):
            if wanted & set(ids):
                self.stopped.append((self._now_ns(), uid))
                self.running[uid] = tuple(each for each in ids if each not in wanted)
        return tuple(StopResult(each, None) for each in containers)

    def close(self) -> None:
        """Keep nothing open."""

    def _call(self, method: str) -> None:
        try:
            self._faults.note(method)
        except OSError as error:
            raise KubeError(f"{method}: {error.strerror}", retry=True) from error
        if self.failures:
            raise KubeError(f"{method}: {self.failures.popleft()}")


class SteppedApiExecutor(ApiExecutor):
    """The same without threads: what is due is sent by `step`."""

    def __init__(self, *args: Any, limits: ApiLimits | None = None, **kwargs: Any) -> None:
        super().__init__(*args, limits=msgspec.structs.replace(limits or ApiLimits(), workers=0), **kwargs)

    def step(self, now_ns: int) -> None:
        while self._due and self._due[0][0] <= now_ns:
            self._do(self._next_due())

    def due_ns(self) -> int | None:
        return self._due[0][0] if self._due else None

    def _next_due(self) -> Any:
        task = self._next()
        assert task is not None
        return task


class SteppedCriExecutor(CriExecutor):
    """The same without threads."""

    def __init__(self, *args: Any, limits: CriLimits | None = None, **kwargs: Any) -> None:
        super().__init__(*args, limits=msgspec.structs.replace(limits or CriLimits(), workers=0), **kwargs)

    def step(self, now_ns: int) -> None:
        while not self._work.empty():
            work = self._work.get_nowait()
            assert work is not None
            self._do(*work)

    def due_ns(self) -> int | None:
        return None
