"""What `koordebpf doctor --config` says of the hooks around evictions; it calls none of them."""

from __future__ import annotations

from pathlib import Path

from koordebpf.act.eviction_hooks.settings import WebhookHook
from koordebpf.configuration.settings import AgentConfig
from koordebpf.kernel.signals.interface import SignalSource

_COST = "evictions are made all the same, and this is not called"
_REMEDY = "Mount it into the agent's container, readable, and writable by root alone."


def eviction_hook_sources(config: AgentConfig) -> tuple[SignalSource, ...]:
    """Return one line for each hook that is set: whether its files are there."""
    return tuple(map(_line, config.eviction_hooks.webhooks))


def _line(hook: WebhookHook) -> SignalSource:
    signal = f"eviction hook {hook.name}"
    problem = _missing(hook.url_file, hook.ca_file, hook.headers_file)
    if problem is None:
        return SignalSource(signal, "posts to its URL", True)
    return SignalSource(signal, "", False, problem, _REMEDY, _COST)


def _missing(*paths: str | None) -> str | None:
    for path in paths:
        if path is not None:
            try:
                with Path(path).open("rb"):
                    pass
            except OSError as error:
                return f"{path}: {error.strerror}"
    return None
