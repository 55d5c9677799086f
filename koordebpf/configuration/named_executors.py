"""Which executors the settings of strategies name beside executor.type, and whether an agent can have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koordebpf.decision.strategies import STRATEGIES, settings_of
from koordebpf.errors import ConfigError
from koordebpf.policy.strategy import NamedExecutor

if TYPE_CHECKING:
    from koordebpf.configuration.settings import AgentConfig

_ASKING_THE_SERVER = frozenset({"api", "delete"})


def named_executors(config: AgentConfig) -> tuple[NamedExecutor, ...]:
    """Return the executors that settings name; none of strategies that are off."""
    is_on = config.feature_gates.get
    asked = [each for each in STRATEGIES if is_on(each.gate)]
    return tuple(named for each in asked for named in each.executors_named(settings_of(each, config)))


def asks_the_server(config: AgentConfig) -> bool:
    """Tell whether one of them needs the API server."""
    return any(each.executor in _ASKING_THE_SERVER for each in named_executors(config))


def check_executors(config: AgentConfig) -> None:
    """Refuse an executor that this source cannot have.

    Raises:  ConfigError: it asks the API server, and pods are read from files.
    """
    for each in named_executors(config):
        if config.source == "file" and each.executor in _ASKING_THE_SERVER:
            raise ConfigError(each.place, each.value, "needs source api or kubelet: files know no API server")
