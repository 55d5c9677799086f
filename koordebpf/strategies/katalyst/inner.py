"""The plugins inside the agent, in the order of their names: their settings and states. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from koordebpf.strategies.katalyst.plugin import InnerPlugin, Seen
from koordebpf.strategies.katalyst.plugins.cnr import NETWORK, RECLAIMED, RECLAIMED_NUMA
from koordebpf.strategies.katalyst.plugins.memory import NUMA_MEMORY, RSS_OVERUSE, SYSTEM_MEMORY, are_critical, is_below
from koordebpf.strategies.katalyst.plugins.rootfs import ROOTFS_OVERUSE, ROOTFS_PRESSURE
from koordebpf.strategies.katalyst.requests import MetSince, is_actionable
from koordebpf.strategies.katalyst.values import PluginAnswer

INNER: Mapping[str, InnerPlugin[Any, Any]] = {
    "network": NETWORK,
    "numaMemory": NUMA_MEMORY,
    "reclaimedNuma": RECLAIMED_NUMA,
    "reclaimedResources": RECLAIMED,
    "rootfsOveruse": ROOTFS_OVERUSE,
    "rootfsPressure": ROOTFS_PRESSURE,
    "rssOveruse": RSS_OVERUSE,
    "systemMemory": SYSTEM_MEMORY,
}
INSIDE = frozenset(plugin.name for plugin in INNER.values())
_BY_NAME = {plugin.name: (section, plugin) for section, plugin in INNER.items()}

if TYPE_CHECKING:
    InnerSettings = Any
else:
    InnerSettings = msgspec.defstruct(
        "InnerSettings",
        [(section, each.settings, each.settings()) for section, each in INNER.items()],
        frozen=True,
        forbid_unknown_fields=True,
        namespace={"__doc__": "A section for each plugin inside the agent."},
    )

States = Mapping[str, Any]  # by the plugin's name, as it is or as JSON has it


def problem_text(plugin: str, problem: str | None) -> str | None:
    """Return what keeps a plugin from judging, for people: one inside lacks something, a call of one outside failed."""
    return problem and f"{'lacks input' if plugin in INSIDE else 'failed'}: {problem}"


def typed_states(states: States) -> States:
    """Return them as their plugins have them, so that a replay's decision has the bytes of the agent's own."""
    return {name: _state(_BY_NAME[name][1], states) if name in _BY_NAME else state for name, state in states.items()}


def judge_inside(
    seen: Seen, states: States, settings: InnerSettings, is_on: Callable[[str], bool]
) -> tuple[tuple[PluginAnswer, ...], dict[str, Any]]:
    """Return what each plugin says, before pods are chosen for thresholds, and what it remembers."""
    answers, after = [], dict(states)
    for section, plugin in INNER.items():
        if not is_on(plugin.name):
            after.pop(plugin.name, None)
            continue
        found = plugin.judge(seen, _state(plugin, states), getattr(settings, section))
        after[plugin.name] = found.state
        answers.append(PluginAnswer(plugin.name, found.threshold, found.evict, problem=found.lacks))
    return tuple(answers), after


def pressing(seen: Seen, settings: InnerSettings, before: tuple[str, ...]) -> tuple[str, ...]:
    """Return the plugins whose memory is short now: once it has become so, no round waits for its time.

    Args:
        seen: what is known now.
        settings: of the plugins.
        before: those of the last look, which stand where it was not looked this time.
    """
    system, numa = seen.measured.system, seen.measured.numa
    is_short = {
        SYSTEM_MEMORY.name: system and settings.systemMemory.is_on and is_below(system, settings.systemMemory),
        NUMA_MEMORY.name: numa and settings.numaMemory.is_on and are_critical(numa, settings.numaMemory),
    }
    return tuple(name for name, short in is_short.items() if (name in before if short is None else short))


def choose_inside(
    answers: tuple[PluginAnswer, ...],
    clocks: Mapping[str, MetSince],
    seen: Seen,
    states: States,
    settings: InnerSettings,
) -> tuple[tuple[PluginAnswer, ...], dict[str, Any]]:
    """Return the answers with the pods for each threshold that has been met for its grace period.

    `seen`, `states`, `settings` as in `judge_inside`; `answers` and `states` are what that returned.
    """
    chosen, after = [], dict(states)
    for answer in answers:
        section, plugin = _BY_NAME[answer.plugin]
        if answer.threshold is None or not is_actionable(answer, clocks, seen.now_ns):
            chosen.append(answer)
            continue
        top_n = 1 if answer.threshold.met == "hard" else 0
        top, after[plugin.name] = plugin.top_pods(seen, _state(plugin, after), getattr(settings, section), top_n)
        chosen.append(msgspec.structs.replace(answer, top=top))
    return tuple(chosen), after


def _state(plugin: InnerPlugin[Any, Any], states: States) -> Any:
    state = states.get(plugin.name)
    if state is None:
        return plugin.state()
    return state if isinstance(state, plugin.state) else msgspec.convert(state, plugin.state)
