"""How long a node's tasks wait for memory, in the windows that the dead man's switch adds up."""

from __future__ import annotations

import struct
import time

from koordebpf.kernel.bpf.deadman import DeadMan, DeadManOrder, StallSource
from koordebpf.kernel.io.closing import Closing
from koordebpf.units import NS_PER_MS

_WINDOW = struct.Struct("<2Q")  # the first members of struct stall_window, bpf/deadman.bpf.c
_WINDOW_BYTES = 88
_LOOK_S = 0.01


class StallWindows(Closing):
    """Counts as the switch does, and never fires: it has no victim.

    Args:
        node_cgroup_id: 0: the machine.
        after_ns: how long a window is.
        source: as the switch has it.
    """

    def __init__(
        self, node_cgroup_id: int = 0, after_ns: int = 500 * NS_PER_MS, source: StallSource | None = None
    ) -> None:
        self.programs = DeadMan(source)
        self._after_ns = after_ns
        assert self.programs._object is not None
        self._map = self.programs._object.map("deadman_stall", _WINDOW_BYTES)
        order = DeadManOrder(after_ns, stall_ns=1, node_cgroup_id=node_cgroup_id, mode="count", until_ns=1)
        self.programs.order(time.monotonic_ns(), order)

    def _now(self) -> tuple[int, int]:
        value = self._map.lookup(bytes(4))
        assert value is not None
        since, stall = _WINDOW.unpack_from(value)
        return since, stall

    def during(self, seconds: float) -> list[float]:
        """Return the milliseconds of each window that began and ended in that time.

        Without a stall none begins.
        """
        began = self._now()[0]
        windows: dict[int, int] = {}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            since, stall = self._now()
            if since != began:
                windows[since] = max(stall, windows.get(since, 0))
            self.programs.beat(time.monotonic_ns())
            time.sleep(_LOOK_S)
        now_ns = time.monotonic_ns()
        return [stall / NS_PER_MS for since, stall in windows.items() if since + self._after_ns <= now_ns]

    def close(self) -> None:
        """Detach the programs."""
        self.programs.close()
