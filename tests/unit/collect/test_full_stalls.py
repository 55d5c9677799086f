"""What the stall net is decided on: whose stalls are in a sample, and when a limit of a pod's own explains them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from koordebpf.collect import history as module
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.collect.history import FullStalls
from koordebpf.kernel.bpf.programs import EVERY_STALL
from koordebpf.kernel.signals import SignalSource
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.state.measured import PsiLine, StallParts, StallSample, StallShares
from koordebpf.state.stalls.windows import StalledPod, stall_sample
from koordebpf.units import NS_PER_S
from tests.support.played_signals import StalledNode

STALL = StallParts(window_ns=NS_PER_S, global_ns=NS_PER_S // 2, limit_ns=0)
LINE, WORSE = PsiLine(20.0, 0, 0, 5), PsiLine(60.0, 0, 0, 9)


class Rig(StalledNode):
    def __init__(self, root: Path, version: int = 2) -> None:
        super().__init__(root, version)  # type: ignore[arg-type]
        self.full: float | None = 12.0
        self.pods_seen: list[StalledPod] = []  # of the last sample
        self.stalls = FullStalls(self.watch, lambda uid, now_ns: self.full)
        known = ClusterView()
        known.learn(ClusterState(1, 1, pods=self.pods))
        self.facts = list(known.facts)

    def sample(self, now_ns: int, pods: list[StalledPod], *, is_whole: bool) -> StallSample:
        self.pods_seen = pods
        return stall_sample(now_ns, pods, is_whole=is_whole)

    def look(self, second: float = 1, shares: StallShares | None = None, *uids: str) -> tuple[StallSample, ...]:
        found = shares or StallShares(LINE, None, derived=True)
        return self.stalls.sample(
            round(second * NS_PER_S),
            self.facts,
            dict.fromkeys(uids or ("web", "batch"), STALL),
            dict.fromkeys(uids or ("web", "batch"), found),
        )

    def hits(self, count: int) -> None:
        (self.root / self.path("web") / "memory.events").write_text(f"low 0\nhigh {count}\nmax 0\noom 0\noom_kill 0\n")


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(tmp_path)
    monkeypatch.setattr(module, "stall_sample", made.sample)
    yield made
    made.close()


def test_latency_sensitive_pods_that_run_are_in_a_sample(rig: Rig):
    assert rig.look()[-1].at_most_pod == "team/web"
    assert [pod.name for pod in rig.pods_seen] == ["team/web"]
    assert len(rig.look(5)) == 2
    rig.stalls.restart()
    assert len(rig.look(6)) == 1
    rig.facts = [replace(each, is_terminating=True) for each in rig.facts]
    rig.look(20)
    assert rig.pods_seen == []


def test_a_share_is_the_most_that_it_may_be_and_of_its_own_or_its_containers_full_one(rig: Rig):
    rig.look()
    (pod,) = rig.pods_seen
    assert (pod.some_ratio, pod.full_ratio, pod.is_derived) == (0.2, 0.12, True)
    rig.look(2, StallShares(LINE, LINE, derived=False, some_at_most=WORSE))
    (pod,) = rig.pods_seen
    assert (pod.some_ratio, pod.full_ratio, pod.is_derived) == (0.6, 0.2, False)
    rig.full = None
    rig.look(3)
    (pod,) = rig.pods_seen
    assert pod.full_ratio is None


def test_where_stalls_are_not_timed_there_is_no_window(rig: Rig):
    rig.look()
    rig.watch.health.quality = replace(rig.watch.health.quality, stalls="pressure")
    assert rig.look(2) == ()
    rig.watch.health.quality = replace(rig.watch.health.quality, stalls="timed")
    assert len(rig.look(3)) == 1


@pytest.mark.parametrize("how", ["lost", "broken", "absent"])
def test_a_sample_is_whole_while_every_stall_is_seen(rig: Rig, how: str):
    assert rig.look()[-1].is_whole
    source = SignalSource(EVERY_STALL, "", works=False)
    if how == "lost":
        rig.watch.health.lost = (source,)
    else:
        rig.signals.sources[2:] = [source] if how == "broken" else []
    assert not rig.look(2)[-1].is_whole


def meets_high(rig: Rig, second: float) -> bool:
    rig.look(second)
    return rig.pods_seen[0].meets_high


def test_a_pod_that_met_its_memory_high_is_marked_for_ten_seconds(rig: Rig):
    rig.hits(5)
    assert not meets_high(rig, 1)  # hits of before the first look say nothing of now
    rig.hits(6)
    assert meets_high(rig, 2)
    assert meets_high(rig, 12)
    assert not meets_high(rig, 12.1)
    rig.hits(0)  # it was made again
    assert meets_high(rig, 13)


def test_one_that_stalled_no_more_is_forgotten(rig: Rig):
    rig.hits(5)
    rig.look(1)
    rig.look(2, None, "batch")
    rig.hits(6)
    assert not meets_high(rig, 3)


def test_where_nothing_is_known_of_the_limit_it_may_explain_the_stalls(rig: Rig):
    (rig.root / rig.path("web") / "memory.events").unlink()
    assert meets_high(rig, 1)


def test_v1_has_no_such_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rig = Rig(tmp_path, version=1)
    monkeypatch.setattr(module, "stall_sample", rig.sample)
    assert not meets_high(rig, 1)
    rig.close()
