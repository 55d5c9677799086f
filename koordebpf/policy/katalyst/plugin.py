"""A plugin inside the agent: a module of `plugins/` has one of these, and `inner.py` a line for it. Pure.

Source: katalyst-core pkg/agent/evictionmanager/plugin/plugin.go.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection
from typing import Annotated, Generic, TypeVar

import msgspec

from koordebpf.policy.katalyst.pods import KatalystPod
from koordebpf.state.katalyst.measured import EvictAsked, KatalystMeasured, Threshold, TopPods
from koordebpf.state.view import NodeView

Grace = Annotated[int, msgspec.Meta(ge=0)] | None  # seconds that an evicted pod is given; None: its own
_NAMES = 2  # spelled out in a sentence
NO_CNR = "there is no CustomNodeResource of this node"  # what plugins lack that judge by it
S = TypeVar("S", bound=msgspec.Struct)  # what a plugin remembers from one round to the next
C = TypeVar("C", bound=msgspec.Struct)  # what an operator may set


class Seen(msgspec.Struct, frozen=True):
    """What a plugin decides from.

    `active`     all pods that did not end.
    `candidates` those it is asked about: they may be forced out now.
    `is_regular` False: pressure began the round ahead of its time, that of the plugins in `pressing`.
    `kept_softly` UIDs of candidates that may not be evicted softly now.
    `leaving`    pods that leave already, and are counted on.
    """

    view: NodeView
    measured: KatalystMeasured
    active: tuple[KatalystPod, ...]
    candidates: tuple[KatalystPod, ...]
    is_regular: bool = True
    pressing: tuple[str, ...] = ()
    kept_softly: Collection[str] = frozenset()
    leaving: tuple[KatalystPod, ...] = ()

    @property
    def soft(self) -> list[KatalystPod]:
        """The candidates that may also be evicted softly now."""
        return [each for each in self.candidates if each.pod.uid not in self.kept_softly]

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


def coming_back(
    seen: Seen, need: float, gives: Callable[[KatalystPod], int | None], text: Callable[[int], str]
) -> str | None:
    """Return why no pod is chosen for a need, in a sentence: what leaves already covers it; None: it does not.

    Args:
        seen: as of the round.
        need: what is missing.
        gives: what of it comes back when a pod has left; None: not measured.
        text: such an amount, for people.
    """
    given = {each.pod.key: amount for each in seen.leaving if (amount := gives(each))}
    if not given or sum(given.values()) < need:
        return None
    names = sorted(given, key=lambda key: (-given[key], key))
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"{text(sum(given.values()))} is already coming back from {', '.join(names[:_NAMES])}{more}"


def is_cooling(seen: Seen, chosen_ns: int | None, chosen: Collection[str], cool_down_ns: int) -> bool:
    """Tell whether the cool-down after a choice still runs: not if the API server refused every pod that was chosen.

    Args:
        seen: as of the round.
        chosen_ns: when pods were chosen last; None: never.
        chosen: their UIDs; none: refusals do not count.
        cool_down_ns: from one choice to the next.
    """
    if chosen_ns is None or seen.now_ns - chosen_ns >= cool_down_ns:
        return False
    refused = {each.uid for each in seen.view.frame.refused}
    return not chosen or any(uid not in refused for uid in chosen)


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
