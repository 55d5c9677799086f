"""Judges the tokens of plugins that want to register, and counts the outcomes."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from pathlib import Path

from koordebpf.errors import ConfigError
from koordebpf.slo.katalyst.access import AccessSettings, Rules, Validation, judge, parse_rules

log = logging.getLogger(__name__)

_FILE_BYTES = 1 << 20
_MOST_OUTCOMES = 500  # Why: plugins name themselves, and users too; more are counted together
_OTHERS = "others"


class PluginAccess:
    """Who may register, as the file says now. Called from any thread.

    Args:
        settings: how plugins are judged.
    """

    def __init__(self, settings: AccessSettings = AccessSettings()) -> None:  # noqa: B008 - frozen
        self._settings = settings
        self._lock = threading.Lock()
        self._counts: Counter[Validation] = Counter()

    @property
    def validations(self) -> dict[Validation, int]:
        """How often each outcome was seen: what Katalyst's metric eviction_plugin_validate counts."""
        with self._lock:
            return dict(self._counts)

    def validate(self, name: str, token: str | None) -> tuple[Validation, str]:
        """Judge a plugin by what GetToken answered; return the outcome, and why it is not valid.

        A file that cannot be used makes every plugin fail that it would be needed for.
        """
        needs_file = self._settings.auth_type != "Insecure" or self._settings.access_control_type != "insecure"
        problem = ""
        rules = Rules()
        if needs_file:
            try:
                rules = self._rules()
            except ConfigError as error:
                problem = str(error)
        validation, why = judge(name, token, self._settings, rules)
        self._count(validation)
        if not validation.is_valid and problem:
            why = f"{why} ({problem})"
        if not validation.is_valid and not validation.is_refused:
            log.warning("plugin %s is accepted though %s", name, why)
        return validation, why

    def _rules(self) -> Rules:
        path = self._settings.file
        if not path:
            raise ConfigError("eviction.katalyst.access.file", path, "must name a file with users and permissions")
        try:
            with Path(path).open("rb") as file:
                raw = file.read(_FILE_BYTES + 1)
        except OSError as error:
            raise ConfigError(path, error.strerror, "must be a readable file") from error
        if len(raw) > _FILE_BYTES:
            raise ConfigError(path, len(raw), f"must have at most {_FILE_BYTES} bytes")
        return parse_rules(path, raw)

    def _count(self, validation: Validation) -> None:
        with self._lock:
            if validation not in self._counts and len(self._counts) >= _MOST_OUTCOMES:
                user = validation.user if validation.user in ("anonymous", "unknown") else _OTHERS
                validation = Validation(_OTHERS, validation.is_strict, validation.reason, user)
            self._counts[validation] += 1
