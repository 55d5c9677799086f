"""Whether koordlet keeps the NodeResourceTopology of this node: two writers would change it in turn, every 3 s."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from koordebpf.kube.colocation.node_topologies import Object, written_at
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.pods.koordlet import koordlet_pod

log = logging.getLogger(__name__)

MANAGER = "koordlet"  # its user agent, and so the name of its field manager
RECENT = timedelta(minutes=15)  # Why: koordlet writes only what changed, so that a young entry means that it is there
_LONGEST = timedelta(hours=24)


class KoordletWriter:
    """koordlet, by its pod on this node and by the object's managed fields. Says once when it is there, or is gone.

    `said`: why the object is left alone; empty where it is not.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        """Begin; `now` is the wall clock."""
        self._now = now
        self._quiet = RECENT
        self._wrote_at: datetime | None = None  # this agent, last
        self._answered_at: datetime | None = None  # the write of koordlet's that is counted already
        self.said = ""

    def is_here(self, pods: Iterable[PodFacts]) -> bool:
        """Tell whether its pod is on this node."""
        pod = koordlet_pod(pods)
        if pod is not None:
            self._say(f"pod {pod} keeps the NodeResourceTopology of this node: it is left alone")
        return pod is not None

    def wrote(self, written: Object) -> bool:
        """Tell whether koordlet wrote the object lately, or over what this agent wrote.

        After the latter it is left alone for 15 minutes, and twice as long each further time, a day at most.
        """
        at = written_at(written, MANAGER)
        if at is None:
            self._say("")
            return False
        if self._wrote_at is not None and at >= self._wrote_at and at != self._answered_at:
            self._answered_at = at
            self._quiet = min(self._quiet * 2, _LONGEST)
        if self._now() - at >= self._quiet:
            self._say("")
            return False
        self._say(f"koordlet wrote the NodeResourceTopology of this node at {at.isoformat()}: it is left alone")
        return True

    def note_write(self) -> None:
        """Note that this agent is about to write. The API server keeps whole seconds."""
        self._wrote_at = self._now().replace(microsecond=0)

    def _say(self, sentence: str) -> None:
        if sentence and sentence.partition(" at ")[0] != self.said.partition(" at ")[0]:
            log.warning("%s", sentence)
        elif self.said and not sentence:
            log.info("koordlet no longer keeps the NodeResourceTopology of this node")
        self.said = sentence
