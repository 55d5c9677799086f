"""Other settings for a round: what differs of the strategy, the feature gates and the agent's own settings. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickFrame, TickSettings
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy
from koordebpf.state.build import strategy_of_frame
from koordebpf.state.what_if import with_fields


def as_they_are(settings: TickSettings) -> TickSettings:
    """Return the agent's own settings as they were."""
    return settings


class Variant:
    """One other configuration. It remembers what it made of the last round's settings, which rarely change.

    Args:
        name: for people.
        fields: of resourceUsedThresholdWithBE that differ.
        gates: feature gates that differ.
        change: the agent's own settings to the others.
    """

    def __init__(
        self,
        name: str,
        fields: Mapping[str, Any] | None = None,
        gates: Mapping[str, bool] | None = None,
        change: Callable[[TickSettings], TickSettings] = as_they_are,
    ) -> None:
        self.name = name
        self._fields = dict(fields or {})
        self._gates = dict(gates or {})
        self._change = change
        self._known: tuple[object, ...] | None = None
        self._made: tuple[ResourceThresholdStrategy | None, dict[str, bool], TickSettings]

    def applied(self, tick: TickFrame) -> TickFrame:
        """Return the round under these settings.

        Raises:  ConfigError: a value has the wrong type, or what is in force cannot be used.
        """
        frame = tick.frame
        key = (
            frame.strategyInForce,
            frame.nodeSLO,
            frame.sloControllerConfig,
            frame.node,
            frame.featureGates,
            tick.settings,
        )
        if key != self._known:  # equal objects are the same ones most of the time, which is seen first
            other = with_fields(frame, self._fields) if self._fields else frame
            self._made = strategy_of_frame(other), {**frame.featureGates, **self._gates}, self._change(tick.settings)
            self._known = key
        strategy, gates, settings = self._made
        return replace(tick, frame=replace(frame, strategyInForce=strategy, featureGates=gates), settings=settings)
