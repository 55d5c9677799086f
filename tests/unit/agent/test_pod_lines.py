"""What runners say that their strategies want of single pods, as `koordebpf pod explain` shows it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.reconcile import CgroupWrite
from koordebpf.policy.strategy import Empty, Strategy
from koordebpf.report.pod_settings import PodLines, PodSetting, pod_settings
from koordebpf.state.build import view_of_frame
from koordebpf.state.pods.facts import facts_of_pods, pod_facts
from koordebpf.state.pods.hook_pods import PodDirectory
from koordebpf.state.view import NodeView
from koordebpf.strategies.block_io.decide import BLOCK_IO
from koordebpf.strategies.block_io.run import BlockIOMetrics, BlockIORunner
from koordebpf.strategies.block_io.values import BlockIOSettings
from koordebpf.strategies.memory_qos.decide import MEMORY_QOS
from koordebpf.strategies.memory_qos.run import MemoryQosRunner
from koordebpf.strategies.memory_qos.values import MemoryQosMeasured, MemoryQosSettings, Protection
from koordebpf.strategies.page_cache.decide import BE_PAGE_CACHE_SUPPRESS, PageCacheDecision, PageCacheState
from koordebpf.strategies.page_cache.run import PageCacheMetrics, PageCacheRunner
from koordebpf.strategies.page_cache.values import PageCacheMeasured
from koordebpf.strategies.proactive_reclaim.decide import (
    PROACTIVE_RECLAIM,
    PodTrim,
    ReclaimDecision,
    ReclaimOrder,
    ReclaimState,
)
from koordebpf.strategies.proactive_reclaim.run import ReclaimMetrics, ReclaimRunner
from koordebpf.strategies.proactive_reclaim.values import ReclaimMeasured, TrimmedPod
from koordebpf.units import MIB
from tests.support.values.block_io import block, measured, pod_object, qos
from tests.support.values.builders import frame, pod, view_of_measured
from tests.support.values.hooks import batch_pod_object
from tests.support.values.memory_qos import GIB, V1, V2, memory, memory_qos

COLLECTOR: Any = SimpleNamespace(measure=lambda _: None, is_active=False, mount_point=None)
NOTHING: Any = None


def seen(strategy: Strategy[Any, Any, Any], part: object, *facts: Any) -> NodeView:
    """Return a view of these pods on which this was measured for one strategy."""
    return view_of_measured(frame([]).measured.with_part(strategy.part, part), facts)


class TestReclaim:
    PODS = ReclaimMeasured(1, tuple(TrimmedPod(uid, 1, f"kubepods/{uid}", 0, 0, 0, 0, 0) for uid in ("a", "b")))

    def explained(self, made: ReclaimDecision) -> dict[str, PodLines]:
        runner = ReclaimRunner(COLLECTOR, NOTHING, None, ReclaimMetrics(), lambda _: None)
        runner.carry_out({PROACTIVE_RECLAIM.name: replace(made, orders=())}, seen(PROACTIVE_RECLAIM, self.PODS))
        assert runner.explain().keys() == made.whys.keys()
        return dict(runner.lines(self.PODS, made, seen(PROACTIVE_RECLAIM, self.PODS)))

    def test_what_is_taken_and_why_nothing_is(self) -> None:
        made = ReclaimDecision(
            state=ReclaimState(pods={"a": PodTrim(1, 0, 0), "b": PodTrim(1, 0, 0, hurts=2)}),
            reason="",
            orders=(ReclaimOrder("a", 1, "kubepods/a", 8 * MIB),),
            whys={"a": "step", "b": "rests"},
        )
        found = self.explained(made)
        (a,), (b,) = found["a"].settings, found["b"].settings
        assert a == PodSetting("kubepods/a", "memory.reclaim", "ProactiveReclaim", "a step", "8.0 MiB each 6 s")
        assert (b.value, found["b"].path) == ("nothing", "kubepods/b")
        assert b.source == "it rests; halved 2 times, because it stalled or memory came back"

    def test_a_pod_that_ended_has_no_line(self) -> None:
        assert self.explained(ReclaimDecision(state=ReclaimState(), reason="", whys={"a": "floor"})).keys() == {"a"}


class TestPageCache:
    LIMITED = PageCacheDecision(
        state=PageCacheState(),
        reason="pod ls refaults",
        writes=(CgroupWrite("kubepods/a", CgroupFile.MEMORY_HIGH, 64 * MIB),),
        paths={"a": "kubepods/a", "b": "kubepods/b"},
    )

    def test_limits_have_their_reason_until_there_are_none(self) -> None:
        runner = PageCacheRunner(COLLECTOR, PageCacheMetrics())
        assert runner.explain() == {}
        view = seen(BE_PAGE_CACHE_SUPPRESS, PageCacheMeasured(1))
        runner.carry_out({BE_PAGE_CACHE_SUPPRESS.name: self.LIMITED}, view)
        found = runner.explain()
        line = PodSetting("kubepods/a", "memory.high", "BEPageCacheSuppress", "pod ls refaults", 64 * MIB)
        assert (found["a"].settings, found["b"].settings) == ((line,), ())
        not_due = replace(self.LIMITED, writes=(), skipped="not_due")
        runner.carry_out({BE_PAGE_CACHE_SUPPRESS.name: not_due}, view_of_frame(frame([])))
        assert runner.explain() == found
        runner.carry_out({BE_PAGE_CACHE_SUPPRESS.name: replace(self.LIMITED, writes=())}, view)
        assert runner.explain() == {}


def test_each_pod_has_its_own_limits_of_devices_with_their_field() -> None:
    pods = (pod_object("be"), pod_object("be2"), pod_object("ls", "Burstable", block(readIOPS=5)))
    part = measured(*pods, qos=qos(beClass=[block(writeBPS=8)]))
    view = seen(BLOCK_IO, part, *facts_of_pods(pods))
    made = BLOCK_IO.decide(view, part, Empty(), BlockIOSettings())
    runner = BlockIORunner(COLLECTOR, BlockIOMetrics())
    runner.carry_out({BLOCK_IO.name: made}, view)
    found = runner.explain()
    (be,) = found["be"].settings
    assert (be.path, be.file) == ("kubepods/besteffort/podbe/be-0", "blkio.throttle.write_bps_device")
    assert (be.value, be.hook, found["be"].path) == ("8:16 4", "BlkIOReconcile", "kubepods/besteffort/podbe")
    assert found["ls"].settings[0].source == "annotation koordinator.sh/blkioQOS"
    assert found.keys() == {"be", "be2", "ls"}


class TestMemoryQos:
    def explained(self, *files: CgroupFile, soft_limits: bool = False, **classes: Any) -> PodLines:
        annotation = {"koordinator.sh/memoryQOS": '{"lowLimitPercent": 200}'}
        its = batch_pod_object("LS", {"a": memory("1Gi")}, uid="1", kube_qos="Burstable", annotations=annotation)
        part = MemoryQosMeasured(
            (PodDirectory("1", "kubepods/pod1", {"id-a": "kubepods/pod1/a"}),),
            {"Guaranteed": "kubepods", "Burstable": "kubepods/burstable"},
            (Protection("kubelet", 0, None),),
            tuple(sorted(each.value for each in files)),
            memory_qos(**classes),
        )
        view = seen(MEMORY_QOS, part, pod_facts(its))
        made = MEMORY_QOS.decide(view, part, Empty(), MemoryQosSettings(soft_limits=soft_limits))
        runner = MemoryQosRunner(COLLECTOR)
        runner.carry_out({MEMORY_QOS.name: made}, view)
        return runner.explain()["1"]

    def test_a_pod_has_its_files_and_what_lacks_above_it(self) -> None:
        found = self.explained(*V2, ls={"minLimitPercent": 50})
        assert found.path == "kubepods/pod1"
        (least,) = [each for each in found.settings if each.file == "memory.min" and each.path == found.path]
        assert (least.value, least.hook) == (GIB // 2, "CgroupReconcile")
        (high,) = [each for each in found.settings if each.file == "memory.high"]
        assert (high.value, high.path) == (None, "kubepods/pod1/a")
        assert "annotation koordinator.sh/memoryQOS" in found.problems[0]
        assert found.problems[1].startswith("/kubelet has memory.min 0")

    def test_its_soft_limit_is_among_them(self) -> None:
        found = self.explained(*V1, soft_limits=True, ls={"minLimitPercent": 50})
        assert [each.file for each in found.settings] == ["memory.soft_limit_in_bytes"]


def test_a_pod_has_the_lines_of_all_strategies() -> None:
    view = view_of_frame(frame([pod("a", uid="a"), pod("b", uid="b")]))
    one, other = (PodSetting("kubepods/a", file, "Gate", "why", 7) for file in ("cpu.shares", "memory.high"))
    wanted = [{"a": PodLines(None, (one,), ("it is odd",))}, {"a": PodLines("kubepods/a", (other,), ("it is odd",))}]
    a, b = pod_settings(view.pods, wanted)
    assert (a.path, a.settings, a.problems) == ("kubepods/a", (one, other), ("it is odd",))
    assert (b.name, b.path, b.settings) == ("b", None, ())
