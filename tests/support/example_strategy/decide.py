"""BestEffortWeight: cpu.shares of best-effort pods while the CPUs are busy. Pure."""

from __future__ import annotations

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.host.strategy_files import cgroup_file
from koordebpf.policy.reconcile import CgroupWrite
from koordebpf.policy.strategy import Decision, Strategy
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_S
from tests.support.example_strategy.values import LoadMeasured, WeightSettings, WeightState


class BestEffortWeight(Strategy[LoadMeasured, WeightState, WeightSettings]):
    """Asked each second."""

    name = "bestEffortWeight"
    gate = "BestEffortWeight"
    summary = "weigh best-effort pods less on a busy node"
    measured = LoadMeasured
    settings = WeightSettings
    state = WeightState
    needs = (cgroup_file("weigh pods", "2.6.24", CgroupFile.CPU_SHARES),)

    def decide(
        self, view: NodeView, measured: LoadMeasured | None, state: WeightState, settings: WeightSettings
    ) -> Decision[WeightState]:
        """Lower the weight while many tasks wait; what is wanted no more is restored."""
        if measured is None:
            return Decision(state=state, reason="the load was not measured", skipped="not_measured")
        is_busy = measured.tasks >= settings.busy_tasks
        paths = measured.paths.values() if is_busy else ()
        return Decision(
            state=WeightState(state.rounds + is_busy),
            reason=f"{measured.tasks} tasks run or wait, busy is {settings.busy_tasks}",
            writes=tuple(CgroupWrite(path, CgroupFile.CPU_SHARES, settings.shares) for path in paths),
            wake_at_ns=view.now_ns + NS_PER_S,
        )


BEST_EFFORT_WEIGHT = BestEffortWeight()
