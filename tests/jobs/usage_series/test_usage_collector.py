"""A round of usage out of a counter that a test turns: what is recorded when, and how often a pass is made."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from koordebpf.attribution.index import CgroupIndex
from koordebpf.clock import Due
from koordebpf.jobs.usage_series import collector as module
from koordebpf.jobs.usage_series.collector import NodeUse, UsageCollector
from koordebpf.jobs.usage_series.cpu import CpuReading
from koordebpf.jobs.usage_series.groups import UsageGroup, UsageGroups
from koordebpf.state.series.store import NodeSeries, node_series
from koordebpf.units import NS_PER_MS, NS_PER_S

POD, CONTAINER, BE, APPLICATION = 1, 2, 3, 4
GROUPS = {
    POD: UsageGroup(POD, "kubepods/besteffort/poda", "pod", "a"),
    CONTAINER: UsageGroup(CONTAINER, "kubepods/besteffort/poda/c", "container", "c", "a"),
    BE: UsageGroup(BE, "kubepods/besteffort", "best_effort"),
    APPLICATION: UsageGroup(APPLICATION, "system/nginx", "host_application", "nginx"),
}


class Counters:
    """Counters that a test writes; `is_whole` as of the pass."""

    how = "a test"

    def __init__(self, *, is_whole: bool) -> None:
        self.is_whole = is_whole
        self.next = CpuReading(0, 0, {}, {})
        self.readings = 0

    def watch(self, groups: Mapping[int, UsageGroup]) -> None:
        """Nothing is kept."""

    def read(self) -> CpuReading:
        self.readings += 1
        return self.next

    def close(self) -> None:
        """Nothing is open."""


class Memory:
    """What the last scan said; `is_recent` whether it counts."""

    with_page_cache = True

    def __init__(self) -> None:
        self.is_recent = True
        self.held = {POD: 100, CONTAINER: 60, APPLICATION: 30}
        self.cached = {POD: 150, CONTAINER: 90, APPLICATION: 40}

    def refresh(self, t_ns: int) -> bool:
        return self.is_recent

    def watch(self, groups: Mapping[int, UsageGroup]) -> None:
        """Nothing is kept."""


class Rig:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_whole: bool = True) -> None:
        self.counters, self.memory = Counters(is_whole=is_whole), Memory()
        self.use = NodeUse(2.0, 1000, 1500)
        self.series: NodeSeries = node_series()
        node = SimpleNamespace(read=lambda *_: self.use, watch=lambda _: None, close=lambda: None)
        monkeypatch.setattr(module, "open_cpu", lambda *_: self.counters)
        monkeypatch.setattr(module, "GroupMemory", lambda *_, **__: self.memory)
        monkeypatch.setattr(module, "WholeNode", lambda *_: node)
        made: Any = UsageCollector(SimpleNamespace(node_path=""), None, None, (), dict)  # type: ignore[arg-type]
        made.groups = SimpleNamespace(by_id=GROUPS, parts=(POD, APPLICATION), best_effort=BE, refresh=lambda _: True)
        self.collector: UsageCollector = made

    def round(
        self, second: float, used: Mapping[int, int], throttling: Mapping[int, Any] | None = None, took_ns: int = 0
    ) -> None:
        now_ns = round(second * NS_PER_S)
        self.counters.next = CpuReading(now_ns, took_ns, used, throttling or {})
        self.collector.collect(now_ns, self.series)

    def at(self, second: float, *key: str) -> float | None:
        """Return the sample of the last half second."""
        return self.series.query(key, round(second * NS_PER_S), NS_PER_S // 2, "latest")


def used(second: float) -> dict[int, int]:
    """Return counters of which the pod uses half a core, its container a quarter, the application one."""
    return {group: round(cores * second * NS_PER_S) for group, cores in ((1, 0.5), (2, 0.25), (3, 0.5), (4, 1.0))}


def test_a_round_is_a_sample_of_each_series(monkeypatch):
    rig = Rig(monkeypatch)
    rig.round(1, used(1), {CONTAINER: (10, 5)})
    rig.round(2, used(2), {CONTAINER: (20, 6)})
    assert {key: rig.at(2, *key) for key in rig.series._series} == {
        ("node_cpu_usage",): 2.0,
        ("node_memory_usage",): 1000,
        ("node_memory_usage_with_page_cache",): 1500,
        ("sys_cpu_usage",): 0.5,
        ("sys_memory_usage",): 870,
        ("pod_cpu_usage", "a"): 0.5,
        ("pod_memory_usage", "a"): 100,
        ("pod_memory_usage_with_page_cache", "a"): 150,
        ("container_cpu_usage", "c"): 0.25,
        ("container_memory_usage", "c"): 60,
        ("container_memory_usage_with_page_cache", "c"): 90,
        ("container_cpu_throttled", "c"): 0.1,
        ("host_application_cpu_usage", "nginx"): 1.0,
        ("host_application_memory_usage", "nginx"): 30,
        ("host_application_memory_usage_with_page_cache", "nginx"): 40,
        ("node_be", "cpu", "usage"): 0.5,
    }


def test_memory_that_was_not_measured_for_long_is_no_sample(monkeypatch):
    rig = Rig(monkeypatch)
    rig.round(1, used(1))
    rig.memory.is_recent = False
    rig.round(2, used(2))
    assert rig.at(2, "pod_cpu_usage", "a") == 0.5
    assert [rig.at(2, kind) for kind in ("pod_memory_usage", "sys_memory_usage")] == [None, None]
    assert rig.at(2, "node_memory_usage") == 1000


def test_a_node_that_is_not_known_has_no_system(monkeypatch):
    rig = Rig(monkeypatch)
    rig.use = NodeUse()
    rig.round(1, used(1))
    rig.round(2, used(2))
    assert [rig.at(2, kind) for kind in ("node_cpu_usage", "sys_cpu_usage", "sys_memory_usage")] == [None] * 3
    assert rig.at(2, "pod_cpu_usage", "a") == 0.5


def test_what_went_back_is_logged_and_the_others_are_measured(monkeypatch, caplog):
    caplog.set_level("INFO")
    rig = Rig(monkeypatch)
    rig.round(1, used(1))
    rig.round(2, {**used(2), POD: 7})
    assert rig.at(2, "pod_cpu_usage", "a") is None
    assert rig.at(2, "container_cpu_usage", "c") == 0.25
    assert "1 CPU counters went back" in caplog.text


def test_a_long_pass_is_made_less_often(monkeypatch):
    rig = Rig(monkeypatch)
    rig.round(1, used(1), took_ns=25 * NS_PER_MS)
    for second in (2, 3):
        rig.round(second, used(second), took_ns=25 * NS_PER_MS)
    assert rig.counters.readings == 1
    rig.round(3.6, used(3.6), took_ns=25 * NS_PER_MS)
    assert rig.counters.readings == 2
    assert rig.at(3.6, "pod_cpu_usage", "a") == pytest.approx(0.5)


def test_its_period_is_the_shortest_of_which_the_store_drops_no_sample():
    def dropped(period_ns: int) -> int:
        series, due = node_series(), Due(period_ns)
        count = 0
        for now_ns in range(NS_PER_S, 60 * NS_PER_S, 2 * NS_PER_MS):  # the agent is awake all the time
            if due.is_nearly_due(now_ns):
                due.done(now_ns)
                count += not series.append(("node_cpu_usage",), now_ns, 1.0)
        return count

    period_ns = UsageCollector.period_ns
    assert dropped(period_ns) == 0
    assert dropped(period_ns - NS_PER_S // 100) > 0


def test_what_is_read_in_turn_counts_for_the_system_until_its_next_turn(monkeypatch):
    rig = Rig(monkeypatch, is_whole=False)
    rig.round(1, used(1))
    rig.round(2, {POD: used(2)[POD]})
    rig.round(3, {APPLICATION: used(3)[APPLICATION]})
    assert rig.at(3, "pod_cpu_usage", "a") is None  # it was read a second ago
    assert rig.at(3, "sys_cpu_usage") == 0.5
    # Eleven seconds later the pod's last rate is too old.
    rig.round(13.5, {APPLICATION: used(13.5)[APPLICATION]})
    assert rig.at(13.5, "sys_cpu_usage") == 1.0


def test_of_two_best_effort_directories_the_one_with_pods_is_measured():
    # GIVEN what a change of kubelet's cgroup driver leaves until the next boot
    index = CgroupIndex()
    names = ("", "kubepods", "besteffort", "kubepods.slice", "kubepods-besteffort.slice")
    for number, (parent, name) in enumerate(zip((0, 1, 2, 1, 4), names, strict=True), start=1):
        index.add(number, parent, name)
    index.add(6, 5, "kubepods-besteffort-poda.slice")
    scope: Any = SimpleNamespace(node_path="", root_id=1, hierarchy=None)
    groups = UsageGroups(scope, index)
    assert groups.refresh({})
    assert groups.best_effort == 5
    assert groups.by_id[5].path == "kubepods.slice/kubepods-besteffort.slice"
