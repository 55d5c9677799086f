"""A configuration whose settings do not contradict each other, from what is given of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordebpf.act.eviction_hook_settings import check_eviction_hooks
from koordebpf.configuration.file import ConfigProblems, file_value, placed, read_config, value_at
from koordebpf.configuration.schema import settings
from koordebpf.configuration.settings import AgentConfig, check_executors, defaults_for, with_values
from koordebpf.decision.strategies import HOOK_GATES, JOB_GATES, OWN_GATES
from koordebpf.errors import ConfigError
from koordebpf.state.pods.namespaces import as_written, check_namespaces
from koordebpf.units import format_ns


def agent_config(given: Mapping[str, Any]) -> AgentConfig:
    """Return the configuration with what was given by field, and the defaults that depend on another field.

    What is given of `eviction`, `guards`, `emergency`, `node_mark` and `feature_gates` are mappings by field or gate.

    Raises:  ConfigError: two of them contradict each other.
    """
    config = with_values(defaults_for(given.get("source") or "file", given.get("compat") or "none"), given)
    _check(config)
    return config


def check_config(path: str, text: bytes) -> dict[str, Any]:
    """Return the same of a file that an agent can run with as it is.

    Raises:  ConfigProblems, ConfigError: as `read_config`, and where two settings contradict each other.
    """
    given = read_config(path, text)
    try:
        agent_config(given)
    except ConfigError as error:
        problem = ConfigError(f"{path}: {error.path}", error.value, error.rule)
        raise ConfigProblems((placed(problem, path, text),)) from None
    return given


def differences(given: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return by path of the file the default and what the settings change it to, both in the file's form."""
    config = agent_config(given)
    base = defaults_for(config.source, config.compat)
    first = AgentConfig()
    changes: dict[str, tuple[Any, Any]] = {}
    for setting in settings():
        default = value_at(first if setting.path in ("source.type", "compat") else base, setting.field)
        value = value_at(config, setting.field)
        if value != default:
            changes[setting.path] = (file_value(setting, default), file_value(setting, value))
    return changes


def _check(config: AgentConfig) -> None:
    if config.sample_cap_ns < config.sample_floor_ns:
        rule = f"must be sampling.floor ({format_ns(config.sample_floor_ns)}) or more"
        raise ConfigError("sampling.cap", format_ns(config.sample_cap_ns), rule)
    if config.node_mark.type != "nothing" and config.source == "file":
        raise ConfigError("nodeMark.type", config.node_mark.type, "needs source api or kubelet: files have no Node")
    if config.shadow.configurations:
        from koordebpf.configuration.variant import shadow_variants

        shadow_variants(config.shadow)
    eviction, emergency = config.eviction, config.emergency
    for place, is_on in (
        ("preferAggressor", eviction.prefer_aggressor),
        ("acrossPriorities", eviction.across_priorities),
        ("spreadOwners", eviction.spread_owners),
    ):
        if is_on and eviction.strict_compat:
            raise ConfigError(f"eviction.{place}", is_on, "must be false with compat: strict, which is another order")
    of_koordlet = {*JOB_GATES, *HOOK_GATES}
    on = [name for name in OWN_GATES if name not in of_koordlet and config.feature_gates.get(name)]
    if eviction.strict_compat and on:
        rule = "must be false with compat: strict: Koordinator has no such feature"
        raise ConfigError(f"featureGates.{on[0]}", True, rule)
    _check_exemptions(config)
    check_eviction_hooks(config.eviction_hooks)
    check_executors(config)
    if emergency.action == "nothing":
        return
    if config.source != "api":
        raise ConfigError(
            "emergency.action", emergency.action, "needs source api; with another one executor.killAfter serves"
        )
    if emergency.after_ns < config.guards.pods_max_age_ns:
        fresh = format_ns(config.guards.pods_max_age_ns)
        rule = f"must be guards.podsMaxAge ({fresh}) or more: until then the list of pods counts as fresh"
        raise ConfigError("emergency.after", format_ns(emergency.after_ns), rule)
    if emergency.max_age_ns <= emergency.after_ns:
        rule = f"must be more than emergency.after ({format_ns(emergency.after_ns)})"
        raise ConfigError("emergency.maxAge", format_ns(emergency.max_age_ns), rule)


def _check_exemptions(config: AgentConfig) -> None:
    exemptions = config.eviction.exemptions
    for name, place in (
        ("budgets", "budgets"),
        ("policies", "policies"),
        ("grace_periods", "gracePeriods"),
        ("qos_labels", "qosLabels"),
    ):
        check_namespaces(getattr(exemptions, name), f"eviction.exemptions.{place}")
    if "*" not in exemptions.budgets and config.executor == "api" and config.kill_after_s is None:
        rule = "needs executor.killAfter with executor.type api: the API server honours every PodDisruptionBudget"
        raise ConfigError("eviction.exemptions.budgets", as_written(exemptions.budgets), rule)
