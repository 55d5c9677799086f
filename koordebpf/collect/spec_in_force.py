"""The NodeSLO in force. A part of it that is unusable leaves the last good one in force."""

from __future__ import annotations

from koordebpf.errors import ConfigError
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.slo.lint import strategy_doubts
from koordebpf.slo.manager.keys import THRESHOLD_KEY
from koordebpf.slo.manager.shapes import unknown_in_config, unknown_in_nodeslo
from koordebpf.slo.spec import LeftOut, NodeSLOSpec, parse_spec, spec_of_configmap
from koordebpf.slo.strategies.host_applications import host_directories


class SpecInForce:
    """The last good spec of a node, and what is wrong with the newest one."""

    def __init__(self) -> None:
        self.spec: NodeSLOSpec | None = None  # None: neither a NodeSLO nor the ConfigMap is there
        self.host_applications: dict[str, str] = {}
        self.problems: tuple[str, ...] = ()
        self._read: tuple[object, ...] = ()  # what the spec is made of, when it was read last

    def learn(self, state: ClusterState, *, keeps_deleted: bool) -> None:
        """Take over what a source says now. With `keeps_deleted` a NodeSLO that was deleted stays in force."""
        of_node = (state.node.metadata.labels, state.node.metadata.annotations) if state.node else ()
        made_of = (state.nodeslo, state.slo_controller_config, *of_node)
        if made_of == self._read:
            return  # most changes are of pods
        self._read = made_of
        try:
            spec, errors, notes = parse_cluster_spec(state, self.spec)
        except ConfigError as error:
            self.problems = (f"{error}; the last good NodeSLO stays in force",)
            return
        stays = "; the last good strategy stays in force"
        in_force = [str(error) if isinstance(error, LeftOut) else f"{error}{stays}" for error in errors]
        self.problems = (*in_force, *notes)
        if spec is None and keeps_deleted:
            return
        if spec is not None:
            place = "spec.resourceUsedThresholdWithBE" if state.nodeslo is not None else THRESHOLD_KEY
            self.problems += tuple(strategy_doubts(spec.resourceUsedThresholdWithBE, place))
        self.spec = spec
        self.host_applications = host_directories(spec.hostApplications) if spec else {}


def parse_cluster_spec(
    state: ClusterState, last: NodeSLOSpec | None
) -> tuple[NodeSLOSpec | None, tuple[ConfigError, ...], tuple[str, ...]]:
    """Return the spec that a source reports, what is wrong with parts of it, and what is not known of it.

    The NodeSLO takes precedence: koordlet reads it. The ConfigMap is its source for a node without manager.
    """
    if state.nodeslo is not None:
        return *parse_spec(state.nodeslo, last), tuple(map(str, unknown_in_nodeslo(state.nodeslo)))
    if state.slo_controller_config is not None:
        meta = state.node.metadata if state.node else None
        labels, annotations = (meta.labels or {}, meta.annotations) if meta else ({}, None)
        spec, errors, left_out = spec_of_configmap(state.slo_controller_config, labels, annotations, last)
        return spec, errors, (*map(str, left_out), *map(str, unknown_in_config(state.slo_controller_config)))
    return None, (), ()
