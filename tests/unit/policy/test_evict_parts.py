from __future__ import annotations

from koordebpf.policy.credit import credit_bytes, koordinator_credit_bytes
from koordebpf.policy.evict.pending import still_pending
from koordebpf.policy.evict.ranking import as_candidates, be_order
from koordebpf.policy.evict.resources import MEMORY_RELIEF
from koordebpf.policy.evict.selection import choose_victims
from koordebpf.policy.plan import Candidate, Holding
from koordebpf.state.amount import MEMORY, USED
from koordebpf.state.build import view_of_frame
from koordebpf.units import MIB
from tests.support.values.builders import PodAndMeasure, frame, host_shm, in_flight, pod


def _views(*pods: PodAndMeasure):
    return view_of_frame(frame(pods)).pods


def _candidates(*credits: int) -> list[Candidate]:
    return [
        Candidate(rank, f"u{rank}", "n", f"p{rank}", 1, 0, (Holding(MEMORY, size, size),), size)
        for rank, size in enumerate(credits, 1)
    ]


def _chosen(need: int, *credits: int) -> list[int]:
    return [each.of(MEMORY).released for each in choose_victims(_candidates(*credits), {USED: need})]


def test_credit_is_anon_and_unevictable_not_page_cache():
    (view,) = _views(pod("p", anon=100, unevictable=7, file=500))
    assert credit_bytes(view) == koordinator_credit_bytes(view) == 107 * MIB


def test_shmem_counts_unless_it_outlives_the_pod():
    gone, kept, unknown = _views(
        pod("gone", anon=100, shmem=60),
        pod("kept", anon=100, shmem=60, volumes=[host_shm()]),
        pod("unknown", anon=100, volumes=[host_shm()]),
    )
    assert [credit_bytes(each) // MIB for each in (gone, kept, unknown)] == [100, 40, 100]
    assert koordinator_credit_bytes(kept) == 100 * MIB


def test_credit_is_never_negative():
    # The counters are read one after another: shmem may have grown in between.
    (view,) = _views(pod("p", anon=10, shmem=11, volumes=[host_shm()]))
    assert credit_bytes(view) == 0


def test_unmeasured_gives_nothing():
    (view,) = _views(pod("p", measured=False))
    assert credit_bytes(view) == koordinator_credit_bytes(view) == 0


def test_the_ranking_spelled_out():
    order = as_candidates(
        be_order(
            _views(
                pod("b", anon=1, priority=5000, namespace="y"),
                pod("b", anon=1, priority=5000, namespace="x"),
                pod("ba", anon=1, priority=5000),
                pod("big", anon=2, priority=5000),
                pod("idle", priority=None),
                pod("zero", anon=9, priority=0),
                pod("low", anon=9, priority=-10),
                pod("top", anon=99, priority=5999),
            )
        ),
        [MEMORY_RELIEF],
    )
    assert [f"{each.namespace}/{each.name}" for each in order] == [
        "spark/low", "spark/zero", "spark/idle", "spark/big", "spark/ba", "x/b", "y/b", "spark/top",
    ]  # fmt: skip
    assert [each.rank for each in order] == list(range(1, 9))


def test_victims():
    assert _chosen(10) == []
    assert _chosen(0, 5) == []
    assert _chosen(5, 5, 5) == [5]
    assert _chosen(6, 5, 5, 5) == [5, 5]
    assert _chosen(3, 0, 4) == [4]
    assert _chosen(99, 1, 0, 2) == [1, 2]
    assert _chosen(10, 1, 1, 1, 20) == [20]  # the large one is evicted in any case, so the small ones need not be
    assert _chosen(12, 5, 6, 7) == [5, 7]  # the later in rank is spared first


def test_a_release_ends_when_the_pod_or_its_memory_is_gone():
    full, eighth, gone = pod("full", anon=80), pod("eighth", anon=10), pod("gone")
    notes = [in_flight(each, credit=80, seconds_ago=1) for each in (full, eighth, gone)]
    assert [note.uid for note in still_pending(notes, _views(full, eighth))] == [full.pod.uid]
