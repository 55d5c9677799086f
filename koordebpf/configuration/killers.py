"""Which killers of Katalyst's an agent needs, and whether it can have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from koordebpf.decision.strategies import settings_of
from koordebpf.errors import ConfigError
from koordebpf.policy.katalyst.killers import EXECUTORS, Killer, KillerSettings
from koordebpf.policy.katalyst.manager import GATE, KATALYST_EVICTION

if TYPE_CHECKING:
    from koordebpf.configuration.settings import AgentConfig

SECTION = f"{KATALYST_EVICTION.section}.killers"
_ASKING_THE_SERVER = frozenset({"api", "delete"})


def named_killers(config: AgentConfig) -> Mapping[str, Killer]:
    """Return the killers that the configuration names, by setting; none while Katalyst's manager is off."""
    if not config.feature_gates.get(GATE):
        return {}
    settings: KillerSettings = settings_of(KATALYST_EVICTION, config).killers
    return {f"{SECTION}.{name}": each for name, each in settings.named().items()}


def asks_the_server(config: AgentConfig) -> bool:
    """Tell whether one of them needs the API server."""
    return any(EXECUTORS[each] in _ASKING_THE_SERVER for each in named_killers(config).values())


def check_killers(config: AgentConfig) -> None:
    """Refuse a killer that this source cannot have.

    Raises:  ConfigError: it asks the API server, and pods are read from files.
    """
    for place, each in named_killers(config).items():
        if config.source == "file" and EXECUTORS[each] in _ASKING_THE_SERVER:
            raise ConfigError(place, each, "needs source api or kubelet: files know no API server")
