"""What of slo-controller-config is in force. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.slo.render import SPEC_FIELDS, render_spec
from koordebpf.slo.webhook import Problem, check_configmap


class Settings(msgspec.Struct, frozen=True):
    """The keys in force, and what is wrong with the newest ConfigMap.

    Attributes:
        data: key → the newest good text.
        held: keys that are unusable and of which no good text is known: NodeSLOs keep what they have of them.
        stale: keys that are unusable; of those in `data` an older text is in force.
        problems: all that the webhook would say, in the order of the keys.
    """

    data: dict[str, str] = {}
    held: frozenset[str] = frozenset()
    stale: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()


def settings_of(
    data: Mapping[str, str], last: Settings | None, nodes: Mapping[str, Mapping[str, str]] | None = None
) -> Settings:
    """Return the settings after the ConfigMap became `data`; `nodes` (name → labels) must not be selected twice.

    Each key stands for itself, as in Koordinator: one that is unusable stays as it was, and the others are taken over.
    Unusable is what cannot be parsed and what holds a value outside its range: Koordinator's manager hands the latter
    on and the agents skip the feature, which a typing error would switch off. A selector that is empty, or overlaps
    another, is told and in force: the first that matches counts.
    """
    good: dict[str, str] = {}
    stale: set[str] = set()
    problems: list[Problem] = []
    for key, text in data.items():
        found = check_configmap({key: text}, nodes)
        problems += found
        if key not in SPEC_FIELDS:
            continue
        if _renders(key, text) and not any(_is_unusable(problem) for problem in found):
            good[key] = text
            continue
        stale.add(key)
        if last is not None and key in last.data:
            good[key] = last.data[key]
    return Settings(good, frozenset(stale - good.keys()), frozenset(stale), tuple(problems))


def _renders(key: str, text: str) -> bool:
    try:
        render_spec({key: text}, {})
    except ConfigError:
        return False
    return True


def _is_unusable(problem: Problem) -> bool:
    is_about_nodes = problem.path.endswith(".nodeSelector")
    return problem.reason in ("ParseConfigFail", "ConfigParamInvalid") and not is_about_nodes
