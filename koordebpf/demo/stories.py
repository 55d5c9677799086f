"""The demo's stories: which pods there are, and what they do to the node."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.demo.verdict import Kind
from koordebpf.units import GIB, MIB

LIMIT_BYTES = GIB
THRESHOLD_PERCENT = 80
LOWER_PERCENT = 75
NEEDS_BYTES = 2 * GIB

_QUIET_S = 3.0  # the LS pod's baseline


class DemoPod(msgspec.Struct, frozen=True):
    """One pod of a story: what it is, and the worker in it."""

    name: str
    is_be: bool
    priority: int
    says: str
    worker: tuple[str, ...]
    limit_bytes: int | None = None


class Story(msgspec.Struct, frozen=True):
    """What is going to happen. `aggressor` is the pod that makes the trouble."""

    kind: Kind
    title: str
    pods: tuple[DemoPod, ...]
    aggressor: str
    ls_pod: str


_WEB = DemoPod("web", False, 9500, "works all the time and times every round", ("ls", "--mib", "100"))
_TRAIN = DemoPod("train", True, 5500, "grows to 250 MiB", ("hog", "--mib", "250", "--mib-per-s", "80"))

STORIES: Mapping[Kind, Story] = {
    "hog": Story(
        "hog",
        "a best-effort pod eats the node",
        (
            _WEB,
            _TRAIN,
            DemoPod(
                "hog", True, 5000, "grows without end, from second 3",
                ("hog", "--mib", "1500", "--mib-per-s", "300", "--wait-s", str(_QUIET_S)),
            ),
        ),
        "hog",
        "web",
    ),
    "page-cache": Story(
        "page-cache",
        "a best-effort pod floods the node with page cache",
        (
            _WEB,
            _TRAIN,
            DemoPod(
                "reader", True, 5000, "reads a file of 3 GiB, from second 3",
                ("page-cache", "--mib", "3000", "--wait-s", str(_QUIET_S)),
            ),
        ),
        "reader",
        "web",
    ),
    "own-limit": Story(
        "own-limit",
        "a best-effort pod thrashes inside its own limit",
        (
            _WEB,
            _TRAIN,
            DemoPod(
                "thrash", True, 5000, "walks 300 MiB, may hold 200 MiB, from second 3",
                ("own-limit", "--mib", "300", "--wait-s", str(_QUIET_S)),
                limit_bytes=200 * MIB,
            ),
        ),
        "thrash",
        "web",
    ),
}  # fmt: skip
