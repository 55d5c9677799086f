"""The settings in force out of slo-controller-config, and what is wrong with it: logged, and recorded as Events."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Final

from koordebpf.controller.settings import Settings, settings_of
from koordebpf.errors import KubeConflict, KubeError
from koordebpf.kube.cache.objects import ConfigMap
from koordebpf.kube.clients.nodeslos import ControllerState, NodeSLOWriter
from koordebpf.slo.manager.webhook import Problem
from koordebpf.units import NS_PER_S

log = logging.getLogger("koordebpf")

_EVENT_RETRY_NS: Final = 30 * NS_PER_S
# Koordinator's reason for what cannot be parsed; its webhook, which would refuse the rest, writes no Event.
_UNPARSED, _INVALID = "SLOCfgUnmarshalFailed", "SLOCfgInvalid"


class SettingsInForce:
    """The last settings, and the Events on their ConfigMap that are still to be recorded. `writer` None: dry run."""

    def __init__(self, writer: NodeSLOWriter | None) -> None:
        self._writer = writer
        self.settings: Settings | None = None  # None: nothing was listed yet
        self._config_map: ConfigMap | None = None
        self._events: list[tuple[ConfigMap, str, str]] = []  # still to be recorded: on what, reason, message
        self._events_due_ns = 0

    def take(self, state: ControllerState) -> Settings:
        """Return the settings in force, which a ConfigMap that changed may have changed."""
        config_map = state.config_map
        if self.settings is None or config_map is not self._config_map:
            data = (config_map.data if config_map else None) or {}
            nodes = {node.name: node.labels or {} for node in state.nodes}
            settings = settings_of(data, self.settings, nodes)
            if settings != self.settings:
                self._log_problems(config_map, settings)
                self.settings = settings
            self._config_map = config_map
        return self.settings

    # Once until something else is wrong: in the log, and as Events that wait until this one leads.
    def _log_problems(self, config_map: ConfigMap | None, settings: Settings) -> None:
        if config_map is None:
            self._events = []
            log.info("no ConfigMap slo-controller-config: every NodeSLO gets the defaults")
            return
        last = self.settings or Settings()
        known = last.problems
        if (settings.problems, settings.messages) == (known, last.messages):
            return
        for problem in settings.problems:
            if problem not in known:
                log.warning("slo-controller-config: %s: %s", problem.reason, problem)
        for key in sorted(settings.stale if settings.problems != known else ()):
            log.warning("slo-controller-config: %s", _stale_sentence(key, settings))
        for key, of_key in settings.messages.items():
            for message in of_key if settings.problems != known or of_key != last.messages.get(key) else ():
                log.warning("slo-controller-config: %s", message)
        self._events = []
        for reason in (_UNPARSED, _INVALID):
            said = [each for each in settings.problems if _event_reason(each) == reason]
            if said:
                stale = [_stale_sentence(key, settings) for key in sorted(settings.stale) if _concerns(key, said)]
                messages = [
                    each for key, of_key in settings.messages.items() if _concerns(key, said) for each in of_key
                ]
                self._events.append((config_map, reason, "; ".join([*map(str, said), *stale, *messages])))

    def record_events(self, now_ns: int) -> None:
        """Record the Events that wait, where the API server takes them; others stay for the next call."""
        if self._writer is None or now_ns < self._events_due_ns:
            return
        while self._events:
            config_map, reason, message = self._events[0]
            try:
                self._writer.warn(config_map, reason, message, datetime.now(UTC))
            except KubeConflict:
                pass  # another leader has said it
            except KubeError as error:
                log.warning("event %s on slo-controller-config was not recorded: %s", reason, error)
                if error.retry:
                    self._events_due_ns = now_ns + _EVENT_RETRY_NS
                    return
            del self._events[0]


def _event_reason(problem: Problem) -> str:
    return _UNPARSED if problem.reason == "ParseConfigFail" else _INVALID


def _concerns(key: str, problems: list[Problem]) -> bool:
    return any(problem.path == key or problem.path.startswith((f"{key}.", f"{key}[")) for problem in problems)


def _stale_sentence(key: str, settings: Settings) -> str:
    if key in settings.held:
        return f"{key} is unusable: NodeSLOs keep what they have of it, and new ones get the default, which is off"
    return f"{key} is unusable: its last good value stays in force"
