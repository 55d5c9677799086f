"""Memory of groups out of scans, and out of files of some containers in turn where there is no scan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.collect.scope import NodeScope
from koordebpf.jobs.usage_series import collector as module
from koordebpf.jobs.usage_series.collector import OUTDATED_NS, GroupMemory
from koordebpf.jobs.usage_series.groups import UsageGroup, UsageGroups
from koordebpf.kube.cache.objects import ContainerStatus, ObjectMeta, Pod, PodStatus
from koordebpf.units import NS_PER_S, PAGE_BYTES
from tests.support.played_signals import StalledNode, memcg


class Rig(StalledNode):
    def __init__(self, root: Path) -> None:
        super().__init__(root, 2, "cgroup")
        (root / "memory.max").write_text("1000000\n")
        pod, one, two = self.id("web"), self.id("web", "a"), self.id("web", "b")
        self.groups = {
            pod: UsageGroup(pod, self.path("web"), "pod", "web"),
            one: UsageGroup(one, self.path("web", "a"), "container", "a", "web"),
            two: UsageGroup(two, self.path("web", "b"), "host_application", "nginx"),
        }
        self.pod, self.one, self.two = pod, one, two

    def scanned(self, one: int, two: int) -> None:
        self.signals.scans = [
            memcg(self.ids[""], 0, 100),
            memcg(self.ids["kubepods"], self.ids[""], 80),
            memcg(self.pod, self.ids["kubepods"], 70),
            memcg(self.one, self.pod, 40, one, 1, 10, 0, 2),
            memcg(self.two, self.pod, 30, two, 0, 5, 5, 0),
        ]

    def hold(self, path: str, usage: int, *lru: int) -> None:
        names = ["inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable"]
        text = "".join(f"{name} {number}\n" for name, number in zip(names, lru, strict=True))
        (self.root / path / "memory.stat").write_text(text)
        (self.root / path / "memory.current").write_text(f"{usage}\n")

    def memory(self, *, with_page_cache: bool = True) -> GroupMemory:
        made = GroupMemory(self.watch.scope, self.collector, with_page_cache=with_page_cache)
        made.watch(self.groups)
        return made

    def measure(self) -> None:
        self.collector.everything({}, (), None)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def pages(found: dict[int, int]) -> dict[int, int]:
    return {group: held // PAGE_BYTES for group, held in found.items()}


def test_each_has_what_is_below_it_without_page_cache_and_an_application_all_that_is_charged(rig: Rig):
    rig.scanned(7, 20)
    memory = rig.memory()
    assert not memory.refresh(0)  # nothing was measured yet
    rig.measure()
    assert memory.refresh(NS_PER_S)
    assert pages(memory.held) == {rig.pod: 30, rig.one: 10, rig.two: 20}
    assert pages(memory.cached) == {rig.pod: 50, rig.one: 20, rig.two: 30}
    without = rig.memory(with_page_cache=False)
    without.refresh(NS_PER_S)
    assert without.cached == {}


def test_a_pod_of_one_container_has_its_own_memory_and_that(rig: Rig):
    pod = rig.id("batch")
    rig.groups = {pod: UsageGroup(pod, rig.path("batch"), "pod", "batch")}
    rig.signals.scans = [
        memcg(rig.ids[""], 0, 9),
        memcg(pod, rig.ids[""], 9, 1),
        memcg(rig.id("batch", "c"), pod, 8, 5),
    ]
    rig.measure()
    memory = rig.memory()
    memory.refresh(0)
    assert pages(memory.held) == {pod: 6}


def test_a_measurement_counts_for_ten_seconds(rig: Rig):
    rig.scanned(7, 20)
    rig.measure()
    memory = rig.memory()
    assert memory.refresh(5 * NS_PER_S)
    assert memory.refresh(5 * NS_PER_S + OUTDATED_NS - 1)
    assert not memory.refresh(5 * NS_PER_S + OUTDATED_NS + 1)
    rig.measure()
    assert memory.refresh(5 * NS_PER_S + OUTDATED_NS + 2)


def test_another_scan_and_other_groups_are_taken_over(rig: Rig):
    rig.scanned(7, 20)
    rig.measure()
    memory = rig.memory()
    memory.refresh(0)
    rig.scanned(9, 20)
    rig.measure()
    memory.refresh(NS_PER_S)
    assert pages(memory.held)[rig.one] == 12
    memory.watch({rig.one: rig.groups[rig.one]})
    rig.measure()
    memory.refresh(2 * NS_PER_S)
    assert pages(memory.held) == {rig.one: 12}
    assert rig.signals.scans is not None
    del rig.signals.scans[3]
    rig.measure()
    memory.refresh(3 * NS_PER_S)
    assert memory.held == {}


def test_without_a_scan_containers_are_read_in_turn_and_keep_what_they_had(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_FILES_A_PASS", 1)
    rig.hold(rig.path("web"), 500, 100, 20, 30, 40, 5)
    rig.hold(rig.path("web", "a"), 300, 10, 20, 3, 4, 5)
    rig.hold(rig.path("web", "b"), 200, 30, 40, 6, 7, 60)
    memory = rig.memory()
    rig.measure()
    for second in range(2):
        assert memory.refresh(second * NS_PER_S)
    assert memory.held == {rig.pod: 125, rig.one: 35, rig.two: 130}
    assert memory.cached == {rig.pod: 195, rig.one: 42, rig.two: 200}
    rig.hold(rig.path("web", "a"), 900, 90, 20, 3, 4, 5)
    for second in range(2, 4):
        rig.measure()
        memory.refresh(second * NS_PER_S)
    assert (memory.held[rig.one], memory.held[rig.two]) == (115, 130)
    memory.close()


@pytest.mark.parametrize("text", ["", None], ids=["empty", "gone"])
def test_one_that_cannot_be_read_is_left_out(rig: Rig, text: str | None):
    path = rig.root / rig.path("web", "a") / "memory.current"
    path.unlink() if text is None else path.write_text(text)
    memory = rig.memory()
    rig.measure()
    memory.refresh(0)
    assert rig.one not in memory.held
    assert rig.two in memory.held
    memory.watch({})
    rig.measure()
    memory.refresh(NS_PER_S)
    assert memory.held == {}
    memory.close()


def test_groups_are_pods_named_containers_and_applications_that_are_there(rig: Rig):
    status = PodStatus("Running", containerStatuses=[ContainerStatus("main", f"cri://{'a' * 64}")])
    rig.watch.index.set_pods([Pod(ObjectMeta("web", "team", "web"), status=status)])
    system = rig.make("system")
    scope = NodeScope("machine", rig.watch.scope.hierarchy, rig.root, rig.ids[""])
    groups = UsageGroups(scope, rig.watch.index)
    assert groups.refresh({"system": "nginx", "gone": "none"})
    assert {(each.kind, group) for group, each in groups.by_id.items()} == {
        ("pod", rig.pod), ("container", rig.one), ("host_application", system),
    }  # fmt: skip
    assert set(groups.parts) == {rig.pod, system}
    assert not groups.refresh({"system": "nginx", "gone": "none"})
    assert groups.refresh({})
