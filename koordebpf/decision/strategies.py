"""The strategies of this agent, in Koordinator's order, and what follows from the tuple: gates and settings. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from koordebpf.errors import ConfigError, rule_and_place
from koordebpf.policy.evict.all_features import FEATURES
from koordebpf.policy.strategy import Decision, Empty, Strategy, off
from koordebpf.slo.feature_gates import KOORDLET_GATES
from koordebpf.state.view import NodeView
from koordebpf.strategies.block_io.decide import BLOCK_IO
from koordebpf.strategies.cpu_burst.decide import CPU_BURST
from koordebpf.strategies.cpu_suppress.decide import BE_CPU_SUPPRESS
from koordebpf.strategies.hooks.decide import RUNTIME_HOOKS
from koordebpf.strategies.katalyst.decide import KATALYST_EVICTION
from koordebpf.strategies.memory_qos.decide import MEMORY_QOS
from koordebpf.strategies.page_cache.decide import BE_PAGE_CACHE_SUPPRESS
from koordebpf.strategies.proactive_reclaim.decide import PROACTIVE_RECLAIM
from koordebpf.strategies.resctrl.decide import RDT_RESCTRL
from koordebpf.strategies.system_config.decide import SYSTEM_CONFIG

# A demand of an earlier one is met first, and what its victims release counts for the later ones. The eviction ladder
# is none of them: it comes after the arbiter, between the plan and its eviction (policy/ladder/escalation.py).
STRATEGIES: tuple[Strategy[Any, Any, Any], ...] = (
    *FEATURES,
    BE_CPU_SUPPRESS,
    KATALYST_EVICTION,
    PROACTIVE_RECLAIM,
    CPU_BURST,
    *RUNTIME_HOOKS,
    SYSTEM_CONFIG,
    RDT_RESCTRL,
    MEMORY_QOS,
    BLOCK_IO,
    BE_PAGE_CACHE_SUPPRESS,
)

_OTHER_GATES = {"BECPUManager": False}  # koordlet's: another agent places best-effort pods then

# Of jobs (koordebpf/jobs): koordlet has each of them, most without a gate. Off, since koordlet may run on the node too.
JOB_GATES: Mapping[str, bool] = dict.fromkeys(
    (
        *("UsageSeries", "PSICollector", "CPICollector", "Accelerators", "ColdPageCollector"),
        "ResctrlCollector",
        *("PeakPrediction", "NodeMetricReport", "NodeTopologyReport"),
    ),
    False,
)

# Of koordlet's flag --runtime-hooks. Off, as those of jobs.
HOOK_GATES = frozenset(each.gate for each in RUNTIME_HOOKS)

# Of koordlet's QoS manager, off with `compat: strict` too: koordlet may run on the node.
QOS_GATES: Mapping[str, bool] = dict.fromkeys((CPU_BURST.gate, SYSTEM_CONFIG.gate, RDT_RESCTRL.gate), False)

FEATURE_GATES: Mapping[str, bool] = {each.gate: each.is_on for each in STRATEGIES} | _OTHER_GATES | dict(JOB_GATES)
OWN_GATES: Mapping[str, bool] = {name: is_on for name, is_on in FEATURE_GATES.items() if name not in KOORDLET_GATES}

# The type of each part of `Measured.parts`.
PARTS: Mapping[str, type[Any]] = {each.part: each.measured for each in STRATEGIES if each.measured is not None}
# The files of the kernel that each needs, by its feature gate.
KERNEL_FILES = tuple((each.gate, file) for each in STRATEGIES for file in each.needs)
# Without those of eviction.
OWN_STRATEGIES = tuple(each for each in STRATEGIES if each.shared_section != "eviction")
STRATEGY_OF: Mapping[str, Strategy[Any, Any, Any]] = {each.name: each for each in STRATEGIES}
_SECTIONS = "strategies."
# By the name of a section; those that several share come last.
_SETTINGS: Mapping[str, type[msgspec.Struct]] = {
    **{each.name: each.settings for each in OWN_STRATEGIES if each.shared_section is None},
    **{
        each.shared_section.removeprefix(_SECTIONS): each.settings
        for each in OWN_STRATEGIES
        if each.shared_section is not None
    },
}

if TYPE_CHECKING:
    StrategySettings = msgspec.Struct
else:
    StrategySettings = msgspec.defstruct(
        "StrategySettings",
        [(name, settings, settings()) for name, settings in _SETTINGS.items() if settings is not Empty],
        frozen=True,
        forbid_unknown_fields=True,
        namespace={"__doc__": "A section for each strategy that has settings of its own."},
    )


def may_choose_any(feature_gates: Mapping[str, bool]) -> bool:
    """Tell whether a strategy that is on may ask for any pod."""
    return any(each.may_choose_any and each.is_asked(feature_gates) for each in STRATEGIES)


def reads_cnr(feature_gates: Mapping[str, bool]) -> bool:
    """Tell whether a strategy that is on reads this node's CustomNodeResource, which takes a watch and a right."""
    return any(each.reads_cnr and each.is_asked(feature_gates) for each in STRATEGIES)


def taken_over(feature_gates: Mapping[str, bool]) -> frozenset[str]:
    """Return the names of those that are on and continue from what the agent before wrote."""
    on = (each for each in STRATEGIES if feature_gates.get(each.gate, each.is_on))
    return frozenset(each.name for each in on if each.is_taken_over)


def stays_at_exit(sections: Any) -> bool:
    """Tell whether any strategy leaves what it wrote to a successor that no agent has announced."""
    return any(each.stays_at_exit(settings_of(each, sections)) for each in STRATEGIES)


def section_of(strategy: Strategy[Any, Any, Any]) -> str | None:
    """Return the section of the configuration file that has a strategy's settings; None: it has none."""
    if strategy.settings is Empty:
        return None
    return strategy.shared_section or strategy.section or f"{_SECTIONS}{strategy.name}"


def settings_of(strategy: Strategy[Any, Any, Any], sections: Any) -> Any:
    """Return a strategy's settings out of `eviction` and `strategies` of a configuration."""
    if strategy.settings is Empty:
        return Empty()
    return attrgetter(strategy.shared_section or f"{_SECTIONS}{strategy.name}")(sections)


def decide_strategies(
    view: NodeView, states: Mapping[str, Any], sections: Any, *, has_cpu: bool
) -> dict[str, Decision[Any]]:
    """Return the decision of each strategy that is asked in this round, by name, in their order.

    Args:
        view: the node.
        states: what each one remembers, by name, as it is or as JSON has it; of one that is left out, nothing.
        sections: of a configuration, as `settings_of` takes them.
        has_cpu: the CPUs were measured, and pods and Node are known.
    Raises:  ConfigError: what one remembers is not of its type.
    """
    decisions: dict[str, Decision[Any]] = {}
    for strategy in STRATEGIES:
        if strategy.needs_cpu and not has_cpu:
            continue
        state = _state(strategy, states)
        if strategy.is_asked(view.feature_gates):
            shared = {"eviction": sections.eviction} if strategy.reads_eviction else {}
            measured, settings = strategy.measured_of(view), settings_of(strategy, sections)
            decisions[strategy.name] = strategy.decide(view, measured, state, settings, **shared)
        else:
            decisions[strategy.name] = off(strategy, state)
    return decisions


def _state(strategy: Strategy[Any, Any, Any], states: Mapping[str, Any]) -> Any:
    state = states.get(strategy.name)
    if state is None:
        return strategy.state()
    if isinstance(state, strategy.state):
        return state
    try:
        return msgspec.convert(state, strategy.state)
    except msgspec.ValidationError as error:
        rule, place = rule_and_place(error)
        raise ConfigError(f"states.{strategy.name}{place}", state, rule) from error
