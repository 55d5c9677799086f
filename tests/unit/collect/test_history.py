"""What is remembered between full measurements: stalls, who caused them, and forecasts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from koordebpf.agent.jobs import open_schedule
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.collect.history import Forecasts, NodeHistory
from koordebpf.collect.memory.pressure import PodPressure
from koordebpf.kube.cache.objects import ClusterState, Pod
from koordebpf.state.measured import Measured, MemoryParts, NodeMeasure
from koordebpf.state.series.store import node_series
from koordebpf.state.stalls.windows import NODE
from koordebpf.units import MIB, NS_PER_MS, NS_PER_S, PAGE_BYTES
from tests.support.played_signals import StalledNode, memcg, stall, totals

LIMIT = 1000 * MIB // PAGE_BYTES


class Rig(StalledNode):
    def __init__(self, root: Path) -> None:
        super().__init__(root, 1)
        self.known = ClusterView()
        self.known.learn(ClusterState(1, 1, pods=self.pods))
        self.history = NodeHistory(self.watch, self.collector)
        self.stalled_ns = 0
        self.scanned(100, 100)

    def scanned(self, web: int, batch: int, other: int = 0) -> None:
        """Let them hold so many MiB."""
        one, two, three = (mib * MIB // PAGE_BYTES for mib in (web, batch, other))
        self.make("system")
        self.signals.scans = [
            memcg(self.ids[""], 0, one + two),
            memcg(self.ids["system"], self.ids[""], three, three),
            memcg(self.ids["kubepods"], self.ids[""], one + two),
            memcg(self.id("web"), self.ids["kubepods"], one, limit=LIMIT),
            memcg(self.id("web", "a"), self.id("web"), one, one),
            memcg(self.id("batch"), self.ids["kubepods"], two),
            memcg(self.id("batch", "c"), self.id("batch"), two, two),
        ]
        self.watch.rescan()

    def measure(self, after_s: float = 1, sampled: NodeMeasure | None = None) -> Measured:
        self.clock.ns += round(after_s * NS_PER_S)
        return self.history.measure(self.clock.ns, self.known, (), sampled)

    def stalls(self, seconds: float) -> None:
        """Let the container of `web` stall for so long more, for the node's memory."""
        self.stalled_ns += round(seconds * NS_PER_S)
        self.signals.rows[self.id("web", "a")] = stall(self.stalled_ns, **{"global": self.stalled_ns})
        self.signals.counted = totals(
            episodes=self.stalled_ns, node_some_ns=self.stalled_ns, node_changed_ts_ns=self.clock.ns
        )


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with contextlib.closing(Rig(tmp_path)) as made:
        yield made


def test_a_stall_is_in_the_pods_and_the_nodes_measure_and_is_charged_once(rig: Rig):
    rig.stalls(0)
    rig.measure()
    rig.scanned(100, 400, 50)
    rig.stalls(0.5)
    measured = rig.measure()
    web = {pod.uid: pod for pod in measured.pods}["web"]
    assert web.stall is not None and web.stall.global_ns == NS_PER_S // 2
    assert web.shares is not None and web.shares.some.avg10 > 4
    assert measured.node.stall is not None and measured.node.stall.global_ns == NS_PER_S // 2
    assert {uid: growth.global_ns for uid, growth in rig.history.news.by_pod.items()} == dict.fromkeys(
        ("web", NODE), NS_PER_S // 2
    )
    charged = {charge.cause.name for charge in rig.history.news.charges}
    assert "team/batch" in charged
    assert measured.ledger is not None and measured.ledger.total_ns == NS_PER_S // 2
    rig.measure()
    assert (rig.history.news.by_pod, rig.history.news.charges) == ({}, ())


def test_a_pod_that_never_stalled_has_no_share_and_is_measured_as_it_is(rig: Rig):
    measured = rig.measure()
    assert [(pod.stall, pod.shares, pod.forecast) for pod in measured.pods] == [(None, None, None)] * 2
    assert rig.history.shares_of_pod("web", rig.clock.ns) is None
    rig.stalls(0.5)
    rig.measure()
    assert rig.history.shares_of_pod("web", rig.clock.ns) is not None
    assert rig.history.shares_of(rig.id("web", "a"), rig.clock.ns) is not None
    assert rig.history.shares_of(rig.id("batch", "c"), rig.clock.ns) is None


def test_a_stray_and_a_cgroup_that_is_not_known_are_named_by_what_there_is(rig: Rig):
    rig.measure()
    rig.watch.index.set_pods(rig.pods[:1])
    rig.signals.rows[999] = stall(NS_PER_S, **{"global": NS_PER_S})
    rig.scanned(100, 400)
    rig.stalls(0.5)
    rig.measure()
    names = {(charge.victim.name, charge.cause.name) for charge in rig.history.news.charges}
    assert {victim for victim, _ in names} == {"team/web", "cgroup 999"}
    assert "batch" in {cause for _, cause in names}


def test_a_pod_near_its_limit_has_a_forecast(rig: Rig):
    for second in range(8):
        rig.scanned(100 + 100 * second, 50)
        measured = rig.measure()
    web = {pod.uid: pod for pod in measured.pods}["web"]
    assert web.forecast is not None
    assert web.forecast.point_ns == pytest.approx(2 * NS_PER_S, rel=0.2)  # 200 MiB at 100 MiB a second
    # In a hurry that is left for the next measurement.
    rig.scanned(950, 50)
    hurried = rig.measure(1, measured.node)
    assert {pod.uid: pod for pod in hurried.pods}["web"].forecast == web.forecast


def test_the_node_has_a_forecast_of_what_it_uses_without_page_cache(rig: Rig):
    forecasts = Forecasts(rig.watch, rig.collector)
    memory = MemoryParts(1, 1, 1, 1, 1, 1)
    for step in range(60):
        now_ns, used = step * 20 * NS_PER_MS, step * 2 * MIB  # 100 MiB a second
        forecasts.record(now_ns, NodeMeasure("cgroup", 1000 * MIB, used, None, memory))
        forecasts.record(now_ns, NodeMeasure("cgroup", 1000 * MIB, 900 * MIB))  # with page cache: it is not noted
    node = NodeMeasure("cgroup", 218 * MIB, used, None, memory)
    found = forecasts.of_node(ClusterView(), node)
    assert (found.lower, found.threshold) == (None, None)
    assert found.oom is not None
    assert found.oom.point_ns == pytest.approx(NS_PER_S, rel=0.1)


class TestPodPressure:
    def collector(self, node: StalledNode, pods: Any) -> tuple[PodPressure, list[int]]:
        watched: list[int] = []
        loop: Any = SimpleNamespace(watch=lambda fd, *_, **__: watched.append(fd), unwatch=watched.remove)
        node.watch.source = SimpleNamespace(state=lambda: SimpleNamespace(pods=pods))  # type: ignore[assignment]
        return PodPressure(node.watch, loop), watched

    def test_triggers_are_of_latency_sensitive_pods_with_a_cgroup(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        node = StalledNode(tmp_path, 2)
        made, watched = self.collector(node, node.pods)
        wanted: list[dict[int, Path]] = []

        def keep_only(paths: dict[int, Path]) -> tuple[list[int], list[int]]:
            before, wanted[:] = dict(wanted[0] if wanted else {}), [dict(paths)]
            return sorted(paths.keys() - before.keys()), sorted(before.keys() - paths.keys())

        monkeypatch.setattr(made.triggers, "keep_only", keep_only)
        made.collect(0, node_series())
        assert wanted == [{node.id("web"): tmp_path / node.path("web")}]
        assert watched == [node.id("web")]
        node.watch.source = SimpleNamespace(state=lambda: SimpleNamespace(pods=node.pods[1:]))  # type: ignore[assignment]
        made.collect(0, node_series())
        assert watched == []
        made.close()
        node.close()

    def test_a_pod_without_a_class_in_its_status_has_that_of_its_requests(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        node = StalledNode(tmp_path, 2)
        requests = {"requests": {"memory": "1Gi"}}
        specs: list[Any] = [
            {"containers": [{"name": "main", "resources": requests}]},
            {"containers": [{"name": "main"}], "resources": requests},
            {"containers": [{"name": "main"}]},
        ]
        found: list[list[int]] = []
        for spec in specs:
            pod = msgspec.convert({"metadata": {"name": "web", "namespace": "shop", "uid": "web"}, "spec": spec}, Pod)
            made, _ = self.collector(node, (pod,))
            monkeypatch.setattr(made.triggers, "keep_only", lambda paths: (found.append(sorted(paths)), ([], []))[1])
            made.collect(0, node_series())
            made.close()
        assert found[::2] == [[node.id("web")], [node.id("web")], []]
        node.close()

    def test_v1_has_none_and_the_schedule_closes_its_collectors(self, tmp_path: Path):
        node = StalledNode(tmp_path, 1)
        _, watched = self.collector(node, node.pods)
        closed: list[str] = []
        job: Any = SimpleNamespace(name="job", period_ns=NS_PER_S, collect=lambda *_: None)
        job.close = lambda: closed.append("job")
        with contextlib.ExitStack() as stack:
            loop: Any = SimpleNamespace(watch=lambda *_, **__: watched.append(1), unwatch=watched.remove)
            schedule = open_schedule(node.watch, loop, node_series(), stack, [job])
            assert schedule.run(0) == NS_PER_S
        assert (closed, watched) == (["job"], [])
        node.close()
