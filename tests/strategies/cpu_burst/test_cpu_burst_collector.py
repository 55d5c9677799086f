"""What CPU burst decides from, on a tree of cgroup v2: when a container's counts are read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kube.cache.objects import ClusterState, ContainerStatus, ObjectMeta, Pod, PodStatus
from koordebpf.strategies.cpu_burst.measure import BurstCollector
from koordebpf.strategies.cpu_burst.values import BurstContainer
from koordebpf.units import NS_PER_MS

ID = "c" * 64
POD, CONTAINER = "kubepods/podweb", f"kubepods/podweb/{ID}"


class Node:
    """One pod with one container of half a CPU; its cpu.stat is what `used` says."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for path in ("kubepods", POD, CONTAINER):
            (root / path).mkdir()
            (root / path / "cpu.max").write_text("50000 100000\n")
            (root / path / "cpu.max.burst").write_text("0\n")
        self.used(0, 0, 0)
        index, known = CgroupIndex(), ClusterView()
        status = PodStatus("Running", qosClass="Burstable", containerStatuses=[ContainerStatus("web", f"cri://{ID}")])
        pods = (Pod(ObjectMeta("web", "team", "web"), status=status),)
        index.replace_all([(1, 0, ""), (2, 1, "kubepods"), (3, 2, POD), (4, 3, CONTAINER)])
        index.set_pods(pods)
        known.learn(ClusterState(1, 1, pods=pods))
        self.collector = BurstCollector(index, known, {"cpu": ControllerMount(2, root)})

    def used(self, milliseconds: int, periods: int, throttled: int) -> None:
        text = f"usage_usec {milliseconds * 1000}\nnr_periods {periods}\nnr_throttled {throttled}\n"
        for path in ("kubepods", POD, CONTAINER):
            (self.root / path / "cpu.stat").write_text(text)

    def container(self, now_ms: int) -> BurstContainer:
        measured = self.collector.measure(now_ms * NS_PER_MS)
        assert measured is not None
        ((found,),) = (each.containers for each in measured.pods)
        return found


@pytest.fixture
def bursty(tmp_path: Path):
    made = Node(tmp_path)
    yield made
    made.collector.close()


def test_one_that_was_read_within_the_period_of_its_throttling_is_read_again_when_the_kernel_reports_it(bursty):
    bursty.container(0)
    bursty.used(45, 1, 0)  # of 50 ms in this period
    assert not bursty.container(60).is_throttled
    bursty.used(50, 2, 1)  # 5 ms since then: alone they throttle no container
    bursty.collector.is_throttled = True
    assert bursty.container(100).is_throttled


def test_else_it_is_read_only_once_it_has_used_enough_for_a_throttling(bursty):
    bursty.container(0)
    bursty.used(5, 1, 1)
    assert not bursty.container(60).is_throttled
    bursty.used(50, 1, 1)
    assert bursty.container(100).is_throttled


def test_of_counts_that_went_back_nothing_is_said_until_they_grow(bursty):
    bursty.container(0)
    bursty.used(500, 10, 8)
    assert bursty.container(1000).throttled_ratio == 0.8
    # Another cgroup has the path now: its throttlings are its own, and no share is below zero.
    bursty.used(60, 2, 2)
    made_again = bursty.container(1500)
    assert (made_again.is_throttled, made_again.throttled_ratio) == (False, None)
    bursty.used(160, 4, 3)
    grown = bursty.container(2000)
    assert (grown.is_throttled, grown.throttled_ratio) == (True, 0.5)


@pytest.mark.parametrize("counts", [(9, 9), (11, 7)], ids=["fewer periods", "fewer throttled"])
def test_either_count_that_went_back_is_that_of_another_cgroup(bursty, counts):
    bursty.container(0)
    bursty.used(500, 10, 8)
    bursty.container(500)
    bursty.used(20, *counts)
    found = bursty.container(600)
    assert (found.is_throttled, found.throttled_ratio) == (False, None)
