"""Two pods' memory each second of a window: when one loses its file to the other, and when it has that back."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from koordebpf.units import MIB
from tests.host.paging_probe import memory_stat, refaults
from tests.host.rigs.page_cache_node import SET_MIB, PageCacheNode


class Second(msgspec.Struct, frozen=True):
    """At one moment of time.monotonic(); bytes, and pages that pod `ls` has refaulted so far."""

    at_s: float
    refaulted: int
    ls_file: int
    be_file: int
    limit: int | None


class Seconds:
    """Looks once a second while its context is open."""

    def __init__(self, node: PageCacheNode) -> None:
        self.seen: list[Second] = []
        self._node = node
        self._ended = threading.Event()
        self._looks = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._looks.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._looks.join()

    def _look(self) -> None:
        while not self._ended.wait(1):
            node = self._node
            files = (_file_bytes(node.ls_pod), _file_bytes(node.be_pod))
            self.seen.append(Second(time.monotonic(), refaults(node.ls_pod), *files, node.limit()))


def harmed_at_s(seen: Sequence[Second], began_s: float, per_s: float) -> float | None:
    """Return the begin of the first second after `began_s` in which the pod refaulted so much; None: of none."""
    looks = [each for each in seen if each.at_s >= began_s]
    return next((was.at_s for was, now in itertools.pairwise(looks) if _rate(was, now) >= per_s), None)


def back_at_s(seen: Sequence[Second], began_s: float, per_s: float) -> float | None:
    """Return when the pod had its file back, under a limit of the other one; None: not yet.

    At the first look at which it has 98 % of it and refaulted less than so many pages a second.
    """
    looks = [each for each in seen if each.at_s >= began_s]
    return next(
        (
            now.at_s
            for was, now in itertools.pairwise(looks)
            if now.limit is not None and now.ls_file * 50 >= SET_MIB * MIB * 49 and _rate(was, now) < per_s
        ),
        None,
    )


def lines(seen: Sequence[Second], began_s: float) -> list[str]:
    """Return the window as text, a column each second from the first request on."""
    pairs = [(before, now) for before, now in itertools.pairwise(seen) if now.at_s >= began_s]
    after = [now for _, now in pairs]
    rows = {
        "second": [f"{each.at_s - began_s:.0f}" for each in after],
        "refaults": [f"{_rate(was, now):.0f}" for was, now in pairs],
        "ls MiB": [str(each.ls_file // MIB) for each in after],
        "be MiB": [str(each.be_file // MIB) for each in after],
        "limit MiB": ["-" if each.limit is None else str(each.limit // MIB) for each in after],
    }
    return [f"{name:<9} {' '.join(f'{value:>5}' for value in values)}" for name, values in rows.items()]


def _rate(was: Second, now: Second) -> float:
    return (now.refaulted - was.refaulted) / (now.at_s - was.at_s)


def _file_bytes(pod: Path) -> int:
    stat = memory_stat(pod)
    return stat["active_file"] + stat["inactive_file"]
