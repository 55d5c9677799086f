"""Best-effort weight in a running agent: reads the load, shows a metric, and says what it wants of each pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric

from koordebpf.kernel.io.text_file import read_kernel_file
from koordebpf.policy.strategy import Decision
from koordebpf.report.pod_settings import PodLines, PodSetting, json_value
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import StrategyRunner
from koordebpf.state.view import NodeView
from tests.support.example_strategy.decide import BEST_EFFORT_WEIGHT
from tests.support.example_strategy.values import LoadMeasured, WeightState


class WeightRunner(StrategyRunner[LoadMeasured, Decision[WeightState]]):
    """Measures in each round."""

    def __init__(self, node: NodeContext) -> None:
        super().__init__("best-effort weight", BEST_EFFORT_WEIGHT, Decision, self._load)
        self._node = node
        self._load_file = Path(node.settings_of(BEST_EFFORT_WEIGHT).load_file)
        self._pods = 0

    def _load(self, _now_ns: int) -> LoadMeasured:
        index, facts = self._node.measuring.watch.index, self._node.measuring.known.facts
        owners = (
            (each.uid, index.owner(index.pod_cgroups().get(each.uid, 0))) for each in facts if each.koord_qos == "BE"
        )
        tasks = read_kernel_file(self._load_file).text.split()[3].partition("/")[0]
        return LoadMeasured(int(tasks), {uid: owner.path.strip("/") for uid, owner in owners if owner is not None})

    def act(self, made: Decision[WeightState], view: NodeView) -> tuple[str, ...]:
        """Count the pods."""
        self._pods = len(made.writes)
        return ()

    def families(self) -> Iterator[Metric]:
        """Yield how many pods weigh less."""
        yield GaugeMetricFamily("koordebpf_best_effort_weight_pods", "Best-effort pods that weigh less.", self._pods)

    def lines(self, measured: LoadMeasured, made: Decision[WeightState], view: NodeView) -> Mapping[str, PodLines]:
        """Return the weight of each pod that has one."""
        gate, reason = BEST_EFFORT_WEIGHT.gate, made.reason
        lines = {
            each.path: PodSetting(each.path, each.file.value, gate, reason, json_value(each.value))
            for each in made.writes
        }
        return {uid: PodLines(path, (lines[path],)) for uid, path in measured.paths.items() if path in lines}


def open_runner(node: NodeContext) -> WeightRunner:
    """Return it."""
    return WeightRunner(node)
