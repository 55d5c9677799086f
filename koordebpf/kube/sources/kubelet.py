"""This node's pods from its kubelet: for agents that may not, or cannot, ask the API server."""

from __future__ import annotations

import functools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import chain
from typing import Final

import msgspec

from koordebpf.errors import ConfigError, KubeBusy, KubeDenied, KubeError
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kube.body import MALFORMED, malformed
from koordebpf.kube.cache.bounded_pods import BoundedPods
from koordebpf.kube.cache.list_stream import ListStream
from koordebpf.kube.cache.objects import ClusterState, Pod
from koordebpf.kube.cache.store import Identity, Read, decode_list, too_large
from koordebpf.kube.http.refusal import Backoff
from koordebpf.kube.http.transport import Transport

_SOURCE, _MIRROR = "kubernetes.io/config.source", "kubernetes.io/config.mirror"
_STATIC_SOURCES: Final = ("file", "http")

NUDGE_GAP_S: Final = 0.5  # kubelet encodes its whole list for every request: 20 new pods are one request
MAX_POD_BYTES: Final = 8 << 20  # Why: etcd refuses objects above 1.5 MB
_WHOLE_BYTES: Final = 16 << 20  # Why: 500 pods of the usual size are 10 MB
_ANSWER_S, _SILENCE_S = 30.0, 5.0  # Why: 500 pods as large as etcd takes are 750 MB
_SLOW_S: Final = 60.0
_REST_TIMES, _MOST_REST_S = 20, 40.0  # Why: a twentieth of a CPU at most; guards trust a list of pods for 90 s
_DIGEST_BYTES: Final = 16
_CLOSE_S: Final = 0.9  # the thread ends within a second


class KubeletSource:
    """Asks GET /pods every `period_s`, and at once when nudged. Knows no Node, no NodeSLO and no ConfigMap.

    Owns `transport`, that of `open_kubelet`, and closes it.

    Needs:   RBAC get on nodes/proxy, or on nodes/pods where the kubelet authorises finely (Kubernetes 1.33).
    Synced:  `synced_at_ns` is the moment the last good answer was asked for; its age stays below
             `period_s` · 1.1 + 5 s while the kubelet answers; where its list takes much CPU, it is asked more rarely.
    Memory:  of a list above 16 MiB one pod is held at a time. A pod above 8 MiB is left out and named.

    A kubelet that has just restarted answers with an empty list before it knows its pods. A node that runs an agent has
    pods, so an empty list is never believed: the previous one stays, and ages.
    """

    name = "kubelet"

    def __init__(
        self,
        transport: Transport,
        node_name: str,
        *,
        period_s: float = 10.0,
        nudge_gap_s: float = NUDGE_GAP_S,
        keys: frozenset[str] = frozenset(),
    ) -> None:
        """Ask by that transport for the pods of this node; of `keys`, see `BoundedPods`."""
        if period_s <= 0:
            raise ConfigError("kubelet period", period_s, "must be above 0 s")
        self._transport = transport
        self._node_name = node_name
        self._period_s = period_s
        self._nudge_gap_s = nudge_gap_s
        self._backoff = Backoff(0.5, max(period_s, 30.0))
        self._table = BoundedPods(keys).table(_with_mirror)
        self._read: dict[bytes, Read[Pod]] = {}  # the pods of the last good answer, by the digest of their bytes
        self._state = ClusterState(version=0, synced_at_ns=0)
        self._wake: Callable[[], None] = lambda: None
        self._stop = threading.Event()
        self._nudged = threading.Event()
        supervisor = Supervisor("kube-kubelet")
        self._thread = supervisor.thread(functools.partial(self._run, supervisor), again=True)

    def start(self, wake: Callable[[], None]) -> None:
        """Begin to ask. Does not wait: `state()` tells when something is known."""
        self._wake = wake
        self._thread.start()

    def refresh(self, now_ns: int) -> None:
        """Do nothing: the thread looks by itself."""

    def nudge(self) -> None:
        """Ask at once, but no sooner than the nudge gap after the last question, and not before a back-off is over."""
        self._nudged.set()

    def state(self) -> ClusterState:
        """Return what is known now."""
        return self._state

    def close(self) -> None:
        """Cut the connection and end the thread."""
        self._stop.set()
        self._nudged.set()
        self._transport.close()
        if self._thread.ident is not None:
            self._thread.join(_CLOSE_S)

    def _run(self, supervisor: Supervisor) -> None:
        while not self._stop.is_set():
            self._nudged.clear()
            asked, cpu_s = time.monotonic(), time.thread_time()
            try:
                self._ask()
            except KubeError as e:
                if not self._stop.is_set():
                    self._complain(str(e))
                    self._stop.wait(self._wait_s(e))
                continue
            except Exception as e:
                # A bug must not leave a node with a picture that silently stands still.
                supervisor.failed(e)
                self._complain("kubelet: internal error, see the log")
                self._stop.wait(self._backoff.next_s())
                continue
            self._backoff.reset()
            supervisor.worked()
            rest_s = min((time.thread_time() - cpu_s) * _REST_TIMES, _MOST_REST_S)
            if self._nudged.wait(max(self._period_s * random.uniform(0.9, 1.1), rest_s)):
                self._stop.wait(max(0.0, asked + max(self._nudge_gap_s, rest_s) - time.monotonic()))

    def _wait_s(self, error: KubeError) -> float:
        match error:
            case KubeDenied():
                return _SLOW_S * random.uniform(1.0, 1.1)
            case KubeBusy(retry_after_s=float(after_s)):
                return max(min(after_s, _SLOW_S), self._backoff.next_s())
            case _:
                return self._backoff.next_s()

    def _ask(self) -> None:
        asked_ns = time.monotonic_ns()
        read: dict[bytes, Read[Pod]] = {}
        try:
            for item in self._items():
                if isinstance(item, Identity):
                    read[str(item).encode()] = too_large(item, MAX_POD_BYTES)
                    continue
                digest = blake2b(item, digest_size=_DIGEST_BYTES).digest()
                read[digest] = self._read.get(digest) or self._table.read(item)
        except MALFORMED as e:
            raise malformed("kubelet", "the answer is not a list of pods", e) from e
        if not read:
            raise KubeError("kubelet: the list of pods is empty, as after its restart; the previous one stays")
        # Their order says nothing: kubelet lists its pods in that of a Go map.
        is_news = read.keys() != self._read.keys() and self._table.replace_read(list(read.values()), "")
        self._read = read
        problems = tuple(self._table.problems.values())
        if not is_news and self._state.version and problems == self._state.problems:
            self._state = msgspec.structs.replace(self._state, synced_at_ns=asked_ns)
            return
        self._state = ClusterState(
            version=self._state.version + 1,
            synced_at_ns=asked_ns,
            pods=tuple(pod for pod in self._table.objects if pod.spec.nodeName in ("", self._node_name)),
            problems=problems,
        )
        self._wake()

    # The first bytes come at once where they are all, which decoding the whole is twenty times as fast for.
    def _items(self) -> Iterator[msgspec.Raw | Identity]:
        with self._transport.parts(
            "/pods", verb="get", resource="nodes/proxy", within_s=_ANSWER_S, silence_s=_SILENCE_S
        ) as parts:
            head: deque[bytes] = deque()
            size = 0
            for part in parts:
                head.append(part)
                if (size := size + len(part)) > _WHOLE_BYTES:
                    yield from ListStream(chain(_popped(head), parts), MAX_POD_BYTES)
                    return
        yield from decode_list(b"".join(head)).items or ()

    def _complain(self, problem: str) -> None:
        if self._state.problems != (problem,):
            self._state = msgspec.structs.replace(self._state, version=self._state.version + 1, problems=(problem,))
            self._wake()


def _popped(parts: deque[bytes]) -> Iterator[bytes]:
    while parts:
        yield parts.popleft()


# The kubelet lists a static pod itself, under the name that its cgroup has, and not its mirror pod. It writes where a
# pod came from over whatever the pod says (pkg/kubelet/config/config.go), so here that can be believed. The API server
# does not know this UID, and evicting the mirror pod would leave the pod running.
def _with_mirror(pod: Pod) -> Pod:
    annotations = pod.metadata.annotations or {}
    if annotations.get(_SOURCE) not in _STATIC_SOURCES or _MIRROR in annotations:
        return pod
    metadata = msgspec.structs.replace(pod.metadata, annotations={**annotations, _MIRROR: pod.uid})
    return msgspec.structs.replace(pod, metadata=metadata)
