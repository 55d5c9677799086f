"""Best-effort pods weigh less while the CPUs are busy: an example of a strategy, whole."""

import msgspec

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.reconcile.values import CgroupWrite
from koordebpf.policy.strategy import Decision, Strategy
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_S


class Settings(msgspec.Struct, frozen=True):
    """When, and how much.

    `busy_percent` of the CPUs in use, from which on best-effort pods weigh less. Why 50: half of them wait then.
    `shares`       cpu.shares of the best-effort directory. Why 4: twice the least.
    """

    busy_percent: int = 50
    shares: int = 4


class State(msgspec.Struct, frozen=True):
    """How many rounds there were."""

    rounds: int = 0


class BestEffortWeight(Strategy[None, State, Settings]):
    """The strategy."""

    name, gate, summary = "bestEffortWeight", "BestEffortWeight", "weigh best-effort pods less on a busy node"
    settings, state, needs_cpu = Settings, State, True

    def decide(self, view: NodeView, measured: None, state: State, settings: Settings) -> Decision[State]:
        """Lower the weight while the node is busy."""
        if view.cpu is None or (usage := view.cpu.measured.usage) is None:
            return Decision(state=state, reason="CPU usage needs two samples", skipped="first_sample")
        percent = usage.node_used_millicpu * 100 // view.cpu.capacity_millicpu
        paths = [each.path for each in view.cpu.measured.be_cgroups if each.level == "root"]
        writes = tuple(CgroupWrite(path, CgroupFile.CPU_SHARES, settings.shares) for path in paths)
        return Decision(
            state=State(state.rounds + 1),
            reason=f"{percent} % of the CPUs are used, busy is {settings.busy_percent} %",
            writes=writes if percent >= settings.busy_percent else (),
            wake_at_ns=view.now_ns + NS_PER_S,
        )


BEST_EFFORT_WEIGHT = BestEffortWeight()
