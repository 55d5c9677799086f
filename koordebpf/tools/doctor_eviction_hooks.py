"""What `koordebpf doctor --config` says of the hooks around evictions; it calls none of them."""

from __future__ import annotations

from pathlib import Path

from koordebpf.agent.config.settings import AgentConfig
from koordebpf.kernel.signals.interface import SignalSource

_COST = "evictions are made all the same, and this is not called"


def eviction_hook_sources(config: AgentConfig) -> tuple[SignalSource, ...]:
    """Return one line for each hook that is set: whether its program and files are there."""
    settings = config.eviction_hooks
    if not settings.hooks:
        return ()
    from koordebpf.act.eviction_hooks.command import command_problem

    found = [
        _line(each.name, f"runs {each.command[0]}", command_problem(Path(each.command[0])))
        for each in settings.commands
    ]
    found += [
        _line(each.name, "posts to its URL", _missing(each.url_file, each.ca_file, each.headers_file))
        for each in settings.webhooks
    ]
    return tuple(found)


def _line(name: str, does: str, problem: str | None) -> SignalSource:
    signal = f"eviction hook {name}"
    if problem is None:
        return SignalSource(signal, does, True)
    remedy = "Mount it into the agent's container, readable and for commands executable, and writable by root alone."
    return SignalSource(signal, "", False, problem, remedy, _COST)


def _missing(*paths: str | None) -> str | None:
    for path in paths:
        if path is not None:
            try:
                with Path(path).open("rb"):
                    pass
            except OSError as error:
                return f"{path}: {error.strerror}"
    return None
