"""The part of the controller that gives Nodes their batch and mid resources: one look a second at most."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from koordebpf.controller.batch.calculations import Calculations, Tables
from koordebpf.controller.batch.publish import Publisher
from koordebpf.kube.clients.nodeslos import ControllerState
from koordebpf.kube.colocation.nodes import ColocationNode
from koordebpf.report.prom.controller import BatchMetrics
from koordebpf.slo.manager.effective import EffectiveKey
from koordebpf.slo.manager.node_colocation import effective_colocation
from koordebpf.slo.manager.shapes import COLOCATION_KEY
from koordebpf.units import NS_PER_S

log = logging.getLogger("koordebpf")

_EVERY_NS: Final = NS_PER_S
_NO_CRD: Final = (
    "the cluster does not serve NodeMetric: install its CRD (kubectl apply --server-side -k deploy/bootstrap, "
    "or what koordebpf slo crd --node-metric prints)"
)


class Source(Tables, Protocol):
    """What is known of pods, reports and topologies; kube.colocation.source.ColocationSource."""

    @property
    def is_synced(self) -> bool:
        """Tell whether everything was listed."""

    @property
    def serves_node_metrics(self) -> bool:
        """Tell whether the CRD of NodeMetric is installed."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences on what could not be read."""


class Looked(msgspec.Struct, frozen=True):
    """What a look came to. `problems` keep it from being ready; `due_ns`: when to look again, CLOCK_MONOTONIC."""

    due_ns: int
    problems: tuple[str, ...] = ()
    took_s: float = 0.0


class BatchResources:
    """Keeps the calculations of all Nodes; writes them where a Koordinator manager does not.

    `manager` says why nothing may be written, at a CLOCK_MONOTONIC; "": nothing does.
    """

    def __init__(self, source: Source, publisher: Publisher, manager: Callable[[int], str]) -> None:
        self.calculations = Calculations()
        self.publisher = publisher
        self.looked = Looked(0)
        self._counted: Looked | None = None
        self._source = source
        self._manager = manager
        self._text: str | None = None
        self._config: EffectiveKey | None = None  # None: nothing was listed yet
        self._config_problem = ""
        self._said: dict[str, tuple[str, ...]] = {}  # Node → its problems

    def run_due(self, state: ControllerState, may_write: Callable[[], bool]) -> Looked:
        """Compute what has changed and write what differs; before a look is due the last one is returned."""
        now_ns = time.monotonic_ns()
        if now_ns < self.looked.due_ns:
            return self.looked
        self.looked = self._run(state, may_write, now_ns)
        return self.looked

    def count(self, metrics: BatchMetrics) -> None:
        """Set the metrics, once for each look."""
        if self._counted is self.looked:
            return
        self._counted = self.looked
        computed = self.calculations.computed.values()
        resets = sum(bool(each.result.reset) and not each.is_held for each in computed)
        held = sum(each.is_held for each in computed)
        metrics.is_on = True
        metrics.nodes = {
            "computed": len(computed) - resets - held,
            "reset": resets,
            "pending": len(self.publisher.pending),
            "foreign": self.publisher.foreign,
        }
        tally = self.publisher.tally
        metrics.writes = {"node": tally.nodes, "nodemetric": tally.metrics, "topology": tally.topologies}
        metrics.writes["failed"] = self.publisher.failures
        metrics.last_look_s = self.looked.took_s

    def _run(self, state: ControllerState, may_write: Callable[[], bool], now_ns: int) -> Looked:
        due_ns = now_ns + _EVERY_NS
        if not state.is_synced or not self._source.is_synced:
            return Looked(due_ns, ("pods, NodeMetrics and topologies were not listed yet", *self._source.problems))
        config = self._read_config(state)
        nodes = [node for node in state.nodes if isinstance(node, ColocationNode)]
        changed = self.calculations.update(nodes, self._source, config, time.time_ns())
        self._log_changed(changed)
        problems = [*self._source.problems, *((self._config_problem,) if self._config_problem else ())]
        if not self._source.serves_node_metrics:
            problems.append(_NO_CRD)
        if may_write():
            if sentence := self._manager(now_ns):
                problems.append(sentence)
                self.publisher.hold(changed)
            else:
                self.publisher.publish(self.calculations, changed, may_write)
                problems += self._foreign()
                problems += self.publisher.problems
        else:
            self.publisher.hold(changed)
        took_s = (time.monotonic_ns() - now_ns) / NS_PER_S
        return Looked(due_ns, tuple(problems), took_s)

    def _read_config(self, state: ControllerState) -> EffectiveKey:
        data = (state.config_map.data if state.config_map else None) or {}
        text = data.get(COLOCATION_KEY)
        if self._config is None or text != self._text:
            self._text = text
            self._config = effective_colocation(text, self._config)
            held = "no Node is written until it is right, but where it says enable: false"
            stays = held if self._config.is_held else "the last good one stays in force"
            problems = (f"{COLOCATION_KEY} is unusable, {stays}: {error}" for error in self._config.errors)
            self._config_problem = next(problems, "")
        return self._config

    def _foreign(self) -> tuple[str, ...]:
        if not self.publisher.foreign:
            return ()
        return (
            f"batch or mid resources of {self.publisher.foreign} Nodes were written by a Koordinator manager, and are"
            " left alone. Start this with --adopt where it does not run any more",
        )

    # Once for each Node and sentence, as long as it holds.
    def _log_changed(self, changed: list[str]) -> None:
        computed = self.calculations.computed
        for gone in self._said.keys() - computed.keys():
            del self._said[gone]
        for name in changed:
            problems, known = computed[name].problems, self._said.get(name, ())
            for sentence in problems:
                if sentence not in known:
                    log.warning("Node %s: %s", name, sentence)
            if problems:
                self._said[name] = problems
            elif known:
                del self._said[name]
