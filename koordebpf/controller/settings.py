"""What of slo-controller-config is effective. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.slo.manager.effective import EffectiveKey, effective_keys
from koordebpf.slo.manager.node_colocation import effective_colocation
from koordebpf.slo.manager.shapes import COLOCATION_KEY
from koordebpf.slo.manager.webhook import Problem, check_configmap


class Settings(msgspec.Struct, frozen=True):
    """The effective keys, and what is wrong with the newest ConfigMap.

    Attributes:
        keys: those that NodeSLOs are made of.
        colocation: colocation-config, for what is to be said of it.
        problems: all that the webhook would say, in the order of the keys.
    """

    keys: dict[str, EffectiveKey] = {}
    colocation: EffectiveKey | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def data(self) -> dict[str, str]:
        """Key → the text that is effective."""
        return {key: of.text for key, of in self.keys.items() if of.text is not None}

    @property
    def stale(self) -> frozenset[str]:
        """Keys that are unusable as a whole; of those in `data` an older text is effective."""
        return frozenset(key for key, of in self.keys.items() if of.errors)

    @property
    def held(self) -> frozenset[str]:
        """Keys of which no good text is known: NodeSLOs keep what they have of them."""
        return frozenset(key for key, of in self.keys.items() if of.is_held)

    @property
    def messages(self) -> dict[str, tuple[str, ...]]:
        """Key → what became of each entry that is unusable."""
        every = {**self.keys, **({COLOCATION_KEY: self.colocation} if self.colocation else {})}
        return {key: of.messages for key, of in every.items() if of.messages}


def settings_of(
    data: Mapping[str, str], last: Settings | None, nodes: Mapping[str, Mapping[str, str]] | None = None
) -> Settings:
    """Return the settings after the ConfigMap became `data`; `nodes` (name → labels) must not be selected twice.

    A selector that is empty, or overlaps another, is reported and counts: the first that matches counts.
    """
    known = last or Settings()
    problems = [problem for key, text in data.items() for problem in check_configmap({key: text}, nodes)]
    text = data.get(COLOCATION_KEY)
    colocation = None if text is None else effective_colocation(text, known.colocation)
    return Settings(effective_keys(data, known.keys), colocation, tuple(problems))
