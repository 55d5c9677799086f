"""When the next write may be sent: at a rate, not while all rest, and not before its own object's next try."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from koordebpf.errors import KubeBusy, KubeConflict, KubeDenied, KubeError, KubeGone
from koordebpf.kube.http.backoff import Backoff
from koordebpf.units import NS_PER_S

# Why 50: 5,000 Nodes are written within 100 s of a start; koord-manager may send 30 requests a second.
RATE_PER_S: Final = 50
_FIRST_S, _CAP_S = 1.0, 300.0
_REST_S: Final = 5.0
_DENIED_S: Final = 30.0
_MAX_PROBLEMS: Final = 5  # sentences; a thousand Nodes may fail for the same reason


class _Failure(msgspec.Struct):
    backoff: Backoff
    due_ns: int = 0
    sentence: str = ""


class WritePace:
    """What fails for one Node waits on its own, longer each time; what would fail for all rests all."""

    def __init__(self) -> None:
        self.failed = 0  # since the start
        self._failures: dict[str, _Failure] = {}
        self._rests_until_ns = 0
        self._allowance = (0, float(RATE_PER_S))  # when it was counted, and writes allowed then

    @property
    def problems(self) -> tuple[str, ...]:
        """Why what is pending was not written."""
        return tuple(dict.fromkeys(each.sentence for each in self._failures.values() if each.sentence))[:_MAX_PROBLEMS]

    def take(self, node: str, now_ns: int) -> bool:
        """Tell whether this Node may be written now, and count it."""
        failure = self._failures.get(node)
        if now_ns < self._rests_until_ns or (failure is not None and now_ns < failure.due_ns):
            return False
        at_ns, allowed = self._allowance
        allowed = min(float(RATE_PER_S), allowed + (now_ns - at_ns) / NS_PER_S * RATE_PER_S)
        is_allowed = allowed >= 1
        self._allowance = (now_ns, allowed - is_allowed)
        return is_allowed

    def succeeded(self, node: str) -> None:
        """Note that a Node was written."""
        self._failures.pop(node, None)

    def after(self, error: KubeError, node: str, now_ns: int) -> None:
        """Note that a write failed."""
        failure = self._failures.setdefault(node, _Failure(Backoff(_FIRST_S, _CAP_S)))
        failure.due_ns = now_ns + int(failure.backoff.next_s() * NS_PER_S)
        # Another was faster, or it is gone: the watch brings what is newer, and the next try is made from that.
        if isinstance(error, KubeConflict | KubeGone):
            return
        self.failed += 1
        failure.sentence = f"Node {node}: {error}"
        match error:
            case KubeDenied():
                rest_s = _DENIED_S
            case KubeBusy():
                rest_s = error.retry_after_s or _REST_S
            case KubeError(retry=True):
                rest_s = _FIRST_S
            case _:
                return
        self._rests_until_ns = now_ns + int(rest_s * NS_PER_S)

    def forget_all_but(self, nodes: Iterable[str]) -> None:
        """Forget Nodes that are gone."""
        for gone in self._failures.keys() - set(nodes):
            del self._failures[gone]
