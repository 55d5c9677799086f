"""A plugin inside the agent: a module of `plugins/` has one of these, and `inner.py` a line for it. Pure.

Source: katalyst-core pkg/agent/evictionmanager/plugin/plugin.go.
"""

from __future__ import annotations

import abc
from typing import Annotated, Generic, TypeVar

import msgspec

from koordebpf.policy.katalyst.pods import KatalystPod
from koordebpf.state.katalyst.answers import EvictAsked, Threshold, TopPods
from koordebpf.state.katalyst.measured import KatalystMeasured
from koordebpf.state.view import NodeView

Grace = Annotated[int, msgspec.Meta(ge=0)] | None  # seconds that an evicted pod is given; None: its own
NO_CNR = "there is no CustomNodeResource of this node"  # what plugins lack that judge by it
S = TypeVar("S", bound=msgspec.Struct)  # what a plugin remembers from one round to the next
C = TypeVar("C", bound=msgspec.Struct)  # what an operator may set


class Seen(msgspec.Struct, frozen=True):
    """What a plugin decides from. `active` are all pods that did not end, `candidates` those it is asked about.

    `is_regular` False: pressure began the round ahead of its time, that of the plugins in `pressing`.
    """

    view: NodeView
    measured: KatalystMeasured
    active: tuple[KatalystPod, ...]
    candidates: tuple[KatalystPod, ...]
    is_regular: bool = True
    pressing: tuple[str, ...] = ()

    @property
    def now_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return self.view.now_ns


class Looked(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """What a plugin finds in one round. `lacks`: what is not known here, in a sentence, so that it judges nothing."""

    state: S
    threshold: Threshold | None = None
    evict: tuple[EvictAsked, ...] = ()
    lacks: str | None = None


class InnerPlugin(abc.ABC, Generic[S, C]):
    """One plugin. `name` is Katalyst's; `settings` and `state` are types with a default for each field."""

    name: str
    settings: type[C]
    state: type[S]

    @abc.abstractmethod
    def look(self, seen: Seen, state: S, settings: C) -> Looked[S]:
        """Return whether the threshold is met, and pods to be evicted whatever it says: ThresholdMet, GetEvictPods."""

    def top_pods(self, seen: Seen, state: S, settings: C, top_n: int) -> tuple[TopPods, S]:
        """Return the pods to evict for the threshold, at most so many where that is not 0: GetTopEvictionPods."""
        return TopPods(()), state
