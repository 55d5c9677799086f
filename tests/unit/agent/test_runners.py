"""Which parts a round has: those of the feature gates that are on, where the node has what they need."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast, get_args, get_type_hints

import pytest
from msgspec.structs import replace

from koordebpf.agent.runners import open_runners
from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import STRATEGIES
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, MemoryHierarchy
from koordebpf.policy.reconcile import CgroupWrite, TaskSetting
from koordebpf.policy.strategy import GATE_OFF, Empty
from koordebpf.runner.context import NodeContext
from koordebpf.runner.runner import Runner
from koordebpf.state.build import view_of_frame
from koordebpf.strategies.block_io.decide import BlockIODecision
from koordebpf.strategies.block_io.run import BlockIOMetrics, BlockIORunner
from koordebpf.strategies.block_io.values import BlockIOMeasured
from koordebpf.strategies.cpu_burst.decide import BurstDecision, BurstState
from koordebpf.strategies.cpu_burst.run import CpuBurstMetrics, CpuBurstRunner
from koordebpf.strategies.cpu_burst.values import BurstMeasured
from koordebpf.strategies.hooks.decide import HookDecision
from koordebpf.strategies.hooks.run import RuntimeHooks
from koordebpf.strategies.memory_qos.decide import MemoryQosDecision
from koordebpf.strategies.memory_qos.run import MemoryQosRunner
from koordebpf.strategies.memory_qos.values import MemoryQosMeasured
from koordebpf.strategies.resctrl.decide import ResctrlDecision
from koordebpf.strategies.resctrl.run import RdtResctrlRunner
from koordebpf.strategies.resctrl.values import ResctrlMeasured
from koordebpf.strategies.system_config.run import SystemConfigRunner
from tests.support.contexts import context_of
from tests.support.values.builders import frame

if TYPE_CHECKING:
    from koordebpf.collect.pod_directories import HookCollector
    from koordebpf.strategies.block_io.run import BlockIOCollector
    from koordebpf.strategies.cpu_burst.measure import ThrottleWatch
    from koordebpf.strategies.hooks.tasks import CoreCookies, OomScores
    from koordebpf.strategies.memory_qos.run import MemoryQosCollector
    from koordebpf.strategies.resctrl.groups import ResctrlGroups
    from koordebpf.strategies.resctrl.run import ResctrlCollector

ROOT = Path(__file__).parents[3]
ALL = ("blkio", "memory", "cpu")
GATES = {
    "CPUSetAllocator": "RuntimeHooks",
    "BlkIOReconcile": "BlockIORunner",
    "BEPageCacheSuppress": "PageCacheRunner",
    "ProactiveReclaim": "ReclaimRunner",
    "CPUBurst": "CpuBurstRunner",
    "CgroupReconcile": "MemoryQosRunner",
    "RdtResctrl": "RdtResctrlRunner",
    "SystemConfig": "SystemConfigRunner",
}
Open = Callable[..., tuple[Runner, ...]]


@pytest.fixture
def open_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    stack = contextlib.ExitStack()

    def _open(gates: dict[str, bool], *controllers: str, **given: Any) -> tuple[Runner, ...]:
        mounts = {name: ControllerMount(2, tmp_path) for name in controllers}
        for name in ("block_io", "cpu_burst", "hooks", "memory_qos", "resctrl"):
            monkeypatch.setattr(f"koordebpf.strategies.{name}.run.find_controllers", lambda: mounts)
        hierarchy = MemoryHierarchy(2, tmp_path, 0)
        scope = SimpleNamespace(node_path="", hierarchy=hierarchy)
        watch = SimpleNamespace(index=CgroupIndex(), scope=scope)
        measuring = SimpleNamespace(watch=watch, known=ClusterView())
        loop = SimpleNamespace(wake=lambda: None)
        config = AgentConfig(feature_gates=gates)
        return open_runners(context_of(config, measuring, stack=stack, loop=loop, **given))

    yield _open
    stack.close()


def names(parts: tuple[Runner, ...]) -> list[str]:
    return [type(part).__name__ for part in parts]


def test_what_a_strategy_runs_is_loaded_only_where_its_gate_is_on() -> None:
    running = (".run", ".measure", ".monitor", ".doctor", ".sink", ".metrics", ".sockets", ".notices", ".taints")
    code = (
        "import sys, koordebpf.agent.run, koordebpf.cli.run; print([name for name in sys.modules"
        f" if name.startswith('koordebpf.strategies.') and name.endswith({running})])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_run_module_opens_a_runner() -> None:
    modules = {each.run_module for each in STRATEGIES if find_spec(each.run_module)}
    folders = {path.parent.name for path in (ROOT / "koordebpf/strategies").glob("*/run.py")}
    assert {each.split(".")[-2] for each in modules} == folders
    for each in modules:
        hints = get_type_hints(import_module(each).open_runner)
        assert hints["node"] is NodeContext
        assert issubclass(next(kind for kind in get_args(hints["return"]) or (hints["return"],)), Runner)


class TestOpened:
    def test_without_gates_there_are_none(self, open_parts: Open) -> None:
        assert open_parts({}, *ALL) == ()
        assert open_parts(dict.fromkeys(GATES, False), *ALL) == ()

    @pytest.mark.parametrize("gate", GATES)
    def test_each_gate_has_its_part(self, gate: str, open_parts: Open) -> None:
        assert names(open_parts({gate: True}, *ALL)) == [GATES[gate]]

    @pytest.mark.parametrize(
        ("gate", "there", "says"),
        [("BlkIOReconcile", "io", "no controller blkio or io"), ("CgroupReconcile", "memory", "no memory controller")],
    )
    def test_without_its_controller_one_is_left_out_and_the_log_says_why(
        self, gate: str, there: str, says: str, open_parts: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert names(open_parts({gate: True}, there)) == [GATES[gate]]
        assert caplog.messages == []
        assert open_parts({gate: True}, "cpu") == ()
        (message,) = caplog.messages
        assert says in message


class Calls:
    """Keeps what it is called for, with its first argument."""

    def __init__(self) -> None:
        self.made: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.made.append((name, arguments[0] if arguments else None))


VIEW = view_of_frame(frame([]))
TASK = TaskSetting("p", "be/p", "c", 5, "x", "annotation")


class TestHooks:
    def test_scores_and_cookies_go_to_who_writes_them(self) -> None:
        scores, cookies, collector = Calls(), Calls(), Calls()
        part = RuntimeHooks(cast("HookCollector", collector), cast("OomScores", scores), cast("CoreCookies", cookies))
        made = HookDecision(state=Empty(), reason="", tasks=(TASK,))
        part.carry_out(dict.fromkeys(("oomScoreAdj", "batchResource"), made), VIEW)
        assert (scores.made, cookies.made) == ([("apply", (TASK,))], [])
        part.carry_out({"coreSched": made, "oomScoreAdj": replace(made, skipped="not_due")}, VIEW)
        assert (len(scores.made), cookies.made) == (1, [("apply", (TASK,))])
        part.close()
        assert [scores.made[-1][0], cookies.made[-1][0], collector.made[-1][0]] == ["restore", "restore", "close"]

    def test_problems_are_those_of_a_hook_that_was_asked(self, caplog: pytest.LogCaptureFixture) -> None:
        part = RuntimeHooks(cast("HookCollector", Calls()), cast("OomScores", Calls()), cast("CoreCookies", Calls()))
        made = HookDecision(state=Empty(), reason="", problems=("a pod's annotation",))
        for skipped in ("not_due", None, "not_due", None):
            part.carry_out({"groupIdentity": replace(made, skipped=skipped)}, VIEW)
        assert caplog.messages == ["a pod's annotation"]


class TestResctrl:
    def part(self, groups: Calls) -> RdtResctrlRunner:
        return RdtResctrlRunner(ClusterView(), cast("ResctrlCollector", Calls()), cast("ResctrlGroups", groups))

    @pytest.mark.parametrize(
        ("skipped", "done"), [(None, ["apply"]), (GATE_OFF, ["restore"]), ("not_due", [])], ids=str
    )
    def test_groups_are_removed_where_the_gate_is_off_and_stay_where_it_is_skipped(
        self, skipped: Any, done: list[str]
    ) -> None:
        groups = Calls()
        made = ResctrlDecision(state=Empty(), reason="", skipped=skipped)
        self.part(groups).carry_out({"rdtResctrl": made}, VIEW)
        assert [name for name, _ in groups.made] == done

    def test_a_round_that_decides_nothing_on_it_changes_nothing(self) -> None:
        groups = Calls()
        self.part(groups).carry_out({}, VIEW)
        assert groups.made == []


QUOTA = CgroupWrite("be/a", CgroupFile.CPU_QUOTA, 50_000)
OWN_BURST = CgroupWrite("be/b", CgroupFile.CPU_BURST, 0)


class TestCpuBurst:
    def part(self, metrics: CpuBurstMetrics, *throttled: bool) -> tuple[CpuBurstRunner, Any, Any]:
        answers = iter(throttled)
        collector: Any = SimpleNamespace(measure=lambda _: None, is_throttled=False, active=set())
        watch: Any = SimpleNamespace(poll=lambda: next(answers), watched={})
        return CpuBurstRunner(collector, watch, metrics), collector, watch

    def test_a_throttled_container_begins_a_round_and_is_measured_in_it(self) -> None:
        metrics = CpuBurstMetrics()
        part, collector, _ = self.part(metrics, False, True, False, True)
        assert [(part.poll_due(0), collector.is_throttled) for _ in range(4)] == [
            *((False, False), (True, True), (False, True), (True, True))
        ]
        assert metrics.wakes == 2

    def test_those_whose_quota_is_raised_are_looked_at(self) -> None:
        metrics = CpuBurstMetrics()
        part, collector, watch = self.part(metrics)
        made = BurstDecision(state=BurstState(), reason="", writes=(QUOTA, OWN_BURST), watched={"be/c": 7})
        part.carry_out({"cpuBurst": made}, VIEW)
        assert (collector.active, watch.watched, metrics.decision) == ({"be/a"}, {"be/c": 7}, made)


def test_what_block_io_limits_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    metrics = BlockIOMetrics()
    part = BlockIORunner(cast("BlockIOCollector", SimpleNamespace(measure=lambda _: None)), metrics)
    for reason in ("two pods", "two pods", "none"):
        part.carry_out({"blockIO": BlockIODecision(state=Empty(), reason=reason, writes=(QUOTA,))}, VIEW)
    assert caplog.messages == ["two pods", "none"]
    (family,) = metrics.families()
    assert family.samples[0].value == 1


def test_what_memory_qos_protects_is_shown() -> None:
    part = MemoryQosRunner(cast("MemoryQosCollector", SimpleNamespace(measure=lambda _: None)))
    made = MemoryQosDecision(state=Empty(), reason="", protected_bytes={"memory.min": {"Guaranteed": 7}})
    part.carry_out({"memoryQos": made}, VIEW)
    (family,) = part.families()
    assert [(each.labels, each.value) for each in family.samples] == [
        ({"file": "memory.min", "kube_qos": "Guaranteed"}, 7)
    ]


class TestMeasured:
    @pytest.mark.parametrize("is_sample", [True, False])
    @pytest.mark.parametrize("of", ["blockIO", "memoryQos", "cpuBurst"])
    def test_a_sample_leaves_out_what_a_collector_measures(self, of: str, is_sample: bool) -> None:
        found: Any = {
            "blockIO": BlockIOMeasured(version=2),
            "memoryQos": MemoryQosMeasured(),
            "cpuBurst": BurstMeasured(),
        }[of]
        collector: Any = SimpleNamespace(measure=lambda _: found)
        part = {
            "blockIO": lambda: BlockIORunner(collector, BlockIOMetrics()),
            "memoryQos": lambda: MemoryQosRunner(collector),
            "cpuBurst": lambda: CpuBurstRunner(collector, cast("ThrottleWatch", None), CpuBurstMetrics()),
        }[of]()
        measured = part.measure(frame([]).measured, is_sample=is_sample)
        assert measured.parts == ({} if is_sample else {of: found})

    @pytest.mark.parametrize("is_sample", [True, False])
    @pytest.mark.parametrize("is_whole", [True, False])
    def test_neither_a_sample_nor_an_unknown_cluster_is_measured(self, is_sample: bool, is_whole: bool) -> None:
        known = ClusterView()
        known.is_whole = is_whole
        collector: Any = SimpleNamespace(measure=lambda _spec, made: ResctrlMeasured(problem=",".join(made)))
        groups: Any = SimpleNamespace(made={"BE"})
        for part, name in (
            (RdtResctrlRunner(known, collector, groups), "rdtResctrl"),
            (SystemConfigRunner(known), "systemConfig"),
        ):
            found = part.measure(frame([]).measured, is_sample=is_sample)
            assert (name in found.parts) is (is_whole and not is_sample)
