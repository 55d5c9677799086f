"""A recorded frame and the agent's settings for it: what `koordebpf plan` decides, also under other settings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import msgspec
from msgspec.structs import replace

from koordebpf.configuration.checked import agent_config
from koordebpf.configuration.file import API_VERSION, KIND, file_value, read_config
from koordebpf.configuration.schema import sections_of, settings
from koordebpf.configuration.settings import named_gates, with_values
from koordebpf.decision.dead_man import DeadManSettings, PlannedDeadMan, dead_man_choice
from koordebpf.decision.decide_tick import TickFrame, TickSettings
from koordebpf.decision.frames import check_frame, decode_frame
from koordebpf.decision.node_plan import NodePlan, decide_node
from koordebpf.decision.strategies import StrategySettings
from koordebpf.errors import ConfigError
from koordebpf.kube.config_map import CONFIG_MAP, ConfigMapName
from koordebpf.kube.sources.manifest import parse_documents, parse_manifests
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.guards import GuardLimits, closed_guards, unexplained_memory
from koordebpf.slo.manager.shapes import UnknownField, unknown_in_config, unknown_in_nodeslo
from koordebpf.slo.nodeslo import STRATEGY_KEY, strategy_doubts
from koordebpf.slo.spec import spec_of_configmap
from koordebpf.state.build import capacity_doubt, strategy_of_frame, view_of_frame
from koordebpf.state.guard_facts import ClosedGuard, GuardFacts
from koordebpf.state.view import Frame, NodeView
from koordebpf.state.what_if import (
    Setting,
    changed_settings,
    parse_field,
    with_configmap,
    with_fields,
    with_gates,
    with_nodeslo,
)
from koordebpf.store.frames import tick_in

_FIELDS = ("eviction", "strategies", "dead_man")  # of the agent's settings, those that decide


class Case(msgspec.Struct, frozen=True):
    """One moment of a node, and how it is to be judged.

    `guards`: that were closed when the frame was recorded; `facts`: what they looked at, None: nothing is known of it.
    `config_map` is the one of Koordinator's settings in files that are compared with.
    """

    frame: Frame
    eviction: EvictSettings = EvictSettings()
    strategies: StrategySettings = StrategySettings()
    states: dict[str, Any] = {}  # what each strategy remembered when the frame was recorded, by name
    guards: tuple[ClosedGuard, ...] = ()
    facts: GuardFacts | None = None
    limits: GuardLimits = GuardLimits()
    dead_man: DeadManSettings = DeadManSettings()
    config_map: ConfigMapName = CONFIG_MAP

    def plan(self) -> NodePlan:
        """Decide.

        Raises:  ConfigError: the frame's NodeSLO, ConfigMap or a quantity in it is unusable.
        """
        view = view_of_frame(self.frame, strict=self.eviction.strict_compat)
        plan = decide_node(view, self.eviction, self.strategies, self.states)
        use_guard = unexplained_memory(view, plan, self.limits, strict=self.eviction.strict_compat)
        guards = self.guards if use_guard is None else (*self.guards, use_guard.guard)
        return replace(plan, guards=guards, dead_man=self._dead_man(view))

    def _dead_man(self, view: NodeView) -> PlannedDeadMan | None:
        if self.dead_man.action == "nothing":
            return None
        tick = TickFrame(
            frame=self.frame,
            settings=TickSettings(eviction=self.eviction, guards=self.limits),
            guards=self.facts or GuardFacts(view.now_ns, "file", view.now_ns),
        )
        return PlannedDeadMan(self.dead_man, dead_man_choice(tick, view, self.guards))

    @property
    def doubts(self) -> tuple[str, ...]:
        """What is effective although it cannot be meant so: of the strategy, and of the Node's capacity."""
        strategy, frame = strategy_of_frame(self.frame), self.frame
        of_node = capacity_doubt(frame.node, frame.measured.node, strict=self.eviction.strict_compat)
        of_strategy = () if strategy is None else tuple(strategy_doubts(strategy, STRATEGY_KEY))
        return (*self._left_out, *of_strategy, *(() if of_node is None else (of_node,)))

    # What of the ConfigMap is unusable, where the strategy comes of that.
    @property
    def _left_out(self) -> tuple[str, ...]:
        frame = self.frame
        has_nodeslo = frame.nodeSLO is not msgspec.UNSET and bytes(frame.nodeSLO) != b"null"
        has_other = has_nodeslo or frame.strategyInForce is not msgspec.UNSET
        if has_other or frame.sloControllerConfig is None:
            return ()
        labels = frame.node.metadata.labels if frame.node else None
        return tuple(map(str, spec_of_configmap(frame.sloControllerConfig, labels or {})[2]))

    @property
    def unknown_fields(self) -> tuple[UnknownField, ...]:
        """The fields of the frame's NodeSLO, or of its ConfigMap, that nothing reads."""
        if self.frame.nodeSLO is not msgspec.UNSET and self.frame.nodeSLO is not None:
            return unknown_in_nodeslo(self.frame.nodeSLO)
        return unknown_in_config(self.frame.sloControllerConfig or {})


def read_case(raw: bytes, path: str) -> Case:
    """Return what a file holds: a frame, or a round with its settings, alone or as a line of an agent's --frames.

    Raises:  ConfigError: names the place in the file, the value and the rule.
    """
    if (tick := tick_in(raw, path)) is not None:
        return case_of_tick(tick, path)
    frame = decode_frame(raw, path)
    return Case(frame, states=frame.states)


def case_of_tick(tick: TickFrame, path: str) -> Case:
    """Return a round as the case that it was; `path` says where it came from.

    Raises:  ConfigError: names the place in it, the value and the rule.
    """
    frame = check_frame(tick.frame, path)
    settings = tick.settings
    guards = closed_guards(tick.guards, settings.guards)
    return Case(
        frame,
        settings.eviction,
        settings.strategies,
        tick.states,
        guards,
        tick.guards,
        settings.guards,
    )


def with_file(case: Case, path: str, raw: bytes) -> Case:
    """Return the case under what a file holds: a NodeSLO, the ConfigMap slo-controller-config, or AgentConfiguration.

    Of the last the sections `eviction`, `guards` and `deadMan` and those of strategies count, the executor and the
    feature gates that it names, and for files after it which ConfigMap has Koordinator's settings.

    Raises:  ConfigError: names the file, the place in it, the value and the rule.
    """
    documents = [each for each in parse_documents(path, raw) if isinstance(each, dict)]
    if any(each.get("kind") == KIND for each in documents):
        return _with_agent(case, path, raw)
    found = parse_manifests({path: raw}, among_others=True, config_map=case.config_map)
    try:
        if found.nodeslo is not None:
            return replace(case, frame=with_nodeslo(case.frame, found.nodeslo))
        if found.slo_controller_config is not None:
            return replace(case, frame=with_configmap(case.frame, found.slo_controller_config))
    except ConfigError as error:  # which reads an object and does not know where it came from
        raise ConfigError(f"{path}: {error.path}", error.value, error.rule) from error
    if found.bad:
        raise found.bad[0].error
    rule = f"must hold a NodeSLO, the ConfigMap {case.config_map.name} (slo.configMap) or an {KIND}"
    others = ", ".join(found.other_config_maps)
    raise ConfigError(path, f"ConfigMap {others}" if others else "nothing to compare with", rule)


def with_entries(case: Case, entries: Sequence[str]) -> Case:
    """Return the case with single settings: fields of resourceUsedThresholdWithBE, or of the agent's own.

    Those are `eviction.…`, `deadMan.…`, `strategies.…` and others of strategies.

    Raises:  ConfigError: no such setting, or not its type.
    """
    fields: dict[str, Any] = {}
    for entry in entries:
        if entry.partition(".")[0] in sections_of(_FIELDS):
            case = _with_agent(case, "--set", _document(entry))
        else:
            name, value = parse_field(entry)
            fields[name] = value
    if not fields:
        return case
    try:
        return replace(case, frame=with_fields(case.frame, fields))
    except ConfigError as error:
        raise ConfigError(f"--set: {error.path}", error.value, error.rule) from error


def with_feature_gates(case: Case, given: Sequence[str]) -> Case:
    """Return the case with the gates that are named in `Name=true,Other=false`.

    Raises:  ConfigError: an unknown gate, or a value that is neither true nor false.
    """
    gates, others = named_gates(given)
    if others:
        raise ConfigError(
            "--feature-gates", ", ".join(others), "koordlet has this gate, it is not used by any decision here"
        )
    return replace(case, frame=with_gates(case.frame, gates))


def case_changes(before: Case, after: Case) -> tuple[Setting, ...]:
    """Return every setting that two cases of one moment do not agree on, under the name it has where it is set."""
    changed = list(changed_settings(before.frame, after.frame))
    if before.frame.executor != after.frame.executor:
        changed.append(Setting("executor.type", before.frame.executor, after.frame.executor))
    for setting in settings():
        if setting.field[0] not in _FIELDS:
            continue
        was, is_now = (reduce(getattr, setting.field, each) for each in (before, after))
        if was != is_now:
            changed.append(Setting(setting.path, *(_shown(file_value(setting, value)) for value in (was, is_now))))
    if before.eviction.strict_compat != after.eviction.strict_compat:
        words = [("strict" if each.eviction.strict_compat else "none") for each in (before, after)]
        changed.append(Setting("compat", *words))
    return tuple(changed)


def _with_agent(case: Case, path: str, raw: bytes) -> Case:
    given = read_config(path, raw)
    if path == "--set":
        return replace(case, **{name: with_values(getattr(case, name), given.get(name, {})) for name in _FIELDS})
    config = agent_config(given)
    frame = with_gates(case.frame, given.get("feature_gates", {}))
    return replace(
        case,
        frame=replace(frame, executor=given.get("executor", frame.executor)),
        eviction=config.eviction,
        strategies=config.strategies,
        limits=config.guards,
        dead_man=config.dead_man,
        config_map=config.config_map,
    )


def _document(entry: str) -> bytes:
    path, has_value, text = entry.partition("=")
    if not has_value:
        raise ConfigError("--set", entry, "must be SETTING=VALUE")
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = text
    for name in reversed(path.split(".")):
        value = {name: value}
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, **value})


def _shown(value: Any) -> bool | int | str | None:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list):
        value = [each if isinstance(each, str) else msgspec.json.encode(each).decode() for each in value]
    return ", ".join(value) if isinstance(value, list) and value else "none" if value == [] else str(value)
