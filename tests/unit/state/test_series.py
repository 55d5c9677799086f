"""Bounded series of samples, and what they say of a window."""

from __future__ import annotations

import pytest

from koordebpf.state.series.kinds import CONTAINER_CPU, NODE_CPU, POD_CPU, POD_PSI
from koordebpf.state.series.store import SERIES_BYTES, SeriesSettings, SeriesStore
from koordebpf.units import MIB, NS_PER_S

KEY = ("memory_used_bytes", "uid-1")
WINDOW_NS = 60 * NS_PER_S
PSI = (POD_PSI, "uid-1", "mem", "10", "some")


def store_of(*values: float, key: tuple[str, ...] = KEY, keep_s: int = 60) -> SeriesStore:
    """Return a store with one sample each second, the first one at 0."""
    store = SeriesStore(SeriesSettings(keep_ns=keep_s * NS_PER_S))
    for second, value in enumerate(values):
        assert store.append(key, second * NS_PER_S, value)
    return store


def counted(store: SeriesStore, key: tuple[str, ...], now_s: float, window_s: float = 1e6) -> int:
    return int(store.query(key, int(now_s * NS_PER_S), int(window_s * NS_PER_S), "count") or 0)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("avg", 5), ("p50", 4), ("p90", 8), ("p95", 8), ("p99", 8), ("latest", 1), ("count", 9)],
)
def test_what_nine_samples_say(aggregation, expected):
    # koordlet's own example: of nine values p90 is the eighth, p50 the fourth
    store = store_of(9, 8, 7, 6, 5, 4, 3, 2, 1)
    assert store.query(KEY, 8 * NS_PER_S, WINDOW_NS, aggregation) == expected


def test_a_percentile_of_one_sample_is_that_sample():
    assert {store_of(7).query(KEY, 0, NS_PER_S, each) for each in ("p50", "p90", "p95", "p99")} == {7}


def test_percentiles_of_a_hundred():
    store = store_of(*range(1, 101), keep_s=100)
    found = [store.query(KEY, 99 * NS_PER_S, 100 * NS_PER_S, each) for each in ("p50", "p90", "p95", "p99")]
    assert found == [50, 90, 95, 99]


def test_the_begin_of_a_window_is_no_part_of_it():
    store = store_of(1, 2, 3, 4)
    assert [counted(store, KEY, 3, window) for window in (0, 1, 2, 9)] == [0, 1, 2, 4]
    assert store.query(KEY, 3 * NS_PER_S, 2 * NS_PER_S, "avg") == 3.5


def test_where_nothing_was_sampled_only_the_count_is_known():
    store = store_of(1, 2)
    for key, now_s in ((KEY, 60), (("memory_used_bytes", "uid-2"), 1)):
        found = [store.query(key, now_s * NS_PER_S, NS_PER_S, each) for each in ("avg", "p50", "latest", "count")]
        assert found == [None, None, None, 0]


def test_samples_older_than_the_window_that_is_kept_are_dropped():
    # a block of samples is dropped once the newest of them is too old
    store = store_of(*range(1000), keep_s=100)
    assert 100 <= counted(store, KEY, 999) < 100 + 2 * 64
    assert store.query(KEY, 999 * NS_PER_S, 100 * NS_PER_S, "avg") == 949.5


@pytest.mark.parametrize("key", [KEY, (NODE_CPU,)])
def test_a_sample_that_comes_too_soon_is_dropped(key):
    store = SeriesStore(apart_ns=10)
    assert [store.append(key, t_ns, t_ns) for t_ns in (100, 109, 110, 110, 105, 120, 129, 130)] == [
        True, False, True, False, False, True, False, True,
    ]  # fmt: skip
    assert [store.query(key, 130, 100, each) for each in ("latest", "count", "avg")] == [130, 4, 115]


def test_two_that_sample_one_kind_in_turn_keep_their_own_pace():
    store = SeriesStore(apart_ns=10)
    for moment in range(0, 300, 3):
        store.append_round(moment, {("a", str(moment % 2)): moment})
    assert [store.query(("a", each), 300, 1000, "count") for each in "01"] == [25, 25]
    assert [store.query(("a", each), 300, 1000, "latest") for each in "01"] == [288, 291]


def test_a_round_may_have_several_kinds():
    store = SeriesStore()
    assert store.append_round(5, {(NODE_CPU,): 1.5, (POD_CPU, "a"): 0.5, (POD_CPU, "b"): 0.25}) == 3
    assert store.append_round(6, {(NODE_CPU,): 2.5, (POD_CPU, "b"): 0.75}) == 2
    assert [store.query(key, 6, 10, "avg") for key in ((NODE_CPU,), (POD_CPU, "a"), (POD_CPU, "b"))] == [2, 0.5, 0.5]
    assert store.kinds() == {NODE_CPU: 1, POD_CPU: 2}


def test_rounds_that_a_series_misses_are_no_samples_of_it():
    store = SeriesStore(SeriesSettings(keep_ns=600 * NS_PER_S))
    for second in range(400):
        values = {("a", "all"): float(second)}
        if second % 5 == 0 or second > 300:
            values["a", "some"] = second
        if not 100 < second < 250:
            values["a", "paused"] = second
        store.append_round(second * NS_PER_S, values)
    assert [counted(store, ("a", name), 400) for name in ("all", "some", "paused")] == [400, 61 + 99, 251]
    assert store.query(("a", "paused"), 300 * NS_PER_S, 270 * NS_PER_S, "p50") is not None
    assert store.query(("a", "some"), 299 * NS_PER_S, 399 * NS_PER_S, "latest") == 399


def test_a_sample_older_than_the_newest_of_its_kind_is_dropped():
    store = SeriesStore()
    assert store.append((POD_CPU, "a"), 10, 1)
    assert not store.append((POD_CPU, "b"), 9, 1)
    assert store.append((NODE_CPU,), 9, 1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e301])
def test_what_is_no_finite_number_is_dropped(value):
    store = store_of(1, 2)
    assert not store.append(KEY, 2 * NS_PER_S, value)
    assert store.append(KEY, 3 * NS_PER_S, 3)
    assert (store.query(KEY, 3 * NS_PER_S, WINDOW_NS, "avg"), store.counts.refused_samples) == (2, 1)


def test_all_aggregations_at_once_are_those_that_are_asked_for_one_by_one():
    store = store_of(*range(100), keep_s=100)
    found = store.aggregated(KEY, 99 * NS_PER_S, 70 * NS_PER_S)
    assert found is not None
    for name in ("avg", "p50", "p90", "p95", "p99", "latest", "count"):
        assert getattr(found, name) == store.query(KEY, 99 * NS_PER_S, 70 * NS_PER_S, name)
    assert found.span_ns == 69 * NS_PER_S


def test_samples_that_span_less_than_half_of_the_window_say_nothing_together():
    store = store_of(*range(31))
    assert store.aggregated(KEY, 30 * NS_PER_S, 60 * NS_PER_S) is not None
    assert store.aggregated(KEY, 30 * NS_PER_S, 61 * NS_PER_S) is None
    assert store.aggregated(KEY, 99 * NS_PER_S, 9 * NS_PER_S) is None
    assert store.aggregated(("nothing",), 30 * NS_PER_S, 60 * NS_PER_S) is None


def test_series_of_a_kind_are_found_by_some_of_their_properties():
    store = SeriesStore()
    others = ((POD_PSI, "uid-1", "cpu", "10", "some"), (POD_PSI, "uid-2", "mem", "10", "some"))
    store.append_round(1, dict.fromkeys((PSI, *others, (POD_CPU, "uid-1")), 1))
    assert store.keys(POD_PSI) == [PSI, *others]
    assert store.keys(POD_PSI, {"pod_uid": "uid-1"}) == [PSI, others[0]]
    assert store.keys(POD_PSI, {"pod_uid": "uid-1", "psi_resource": "mem"}) == [PSI]
    assert store.keys(CONTAINER_CPU) == []
    with pytest.raises(ValueError, match="has no property container_id; it has: pod_uid, psi_resource"):
        store.keys(POD_PSI, {"container_id": "x"})


@pytest.mark.parametrize("key", [(POD_CPU,), (NODE_CPU, "uid"), PSI[:-1]])
def test_a_key_of_koordlets_kinds_has_all_properties(key):
    with pytest.raises(ValueError, match="has the properties"):
        SeriesStore().append(key, 1, 1)


class TestBudget:
    def test_series_of_what_is_gone_end_after_their_window(self):
        store = SeriesStore(SeriesSettings(keep_ns=100 * NS_PER_S))
        for second in range(400):
            store.append((POD_CPU, "stays"), second * NS_PER_S, 1)
            if second <= 200:
                store.append((POD_CPU, "ends"), second * NS_PER_S, 1)
            if second in (299, 399):
                assert ((POD_CPU, "ends") in store) is (second == 299)
        assert store.counts.series == 1
        assert store.counts.bytes < SERIES_BYTES + 4 * 100

    def test_beyond_the_budget_the_oldest_samples_are_dropped_and_counted(self):
        # GIVEN 300 pods in 1 MiB
        store = SeriesStore(SeriesSettings(keep_ns=1800 * NS_PER_S, budget_bytes=MIB))
        for second in range(1500):
            values = {(POD_CPU, str(pod)): (second * 7919 + pod) % 1000 / 7 for pod in range(300)}
            store.append_round(second * NS_PER_S, {**values, (NODE_CPU,): second / 7})
        # THEN all of them have the same newest part of the window, and the node all of it
        kept = {counted(store, (POD_CPU, str(pod)), 1500) for pod in range(300)}
        assert 64 < min(kept) <= max(kept) < min(kept) + 128
        assert counted(store, (NODE_CPU,), 1500) == 1500
        assert store.counts.bytes <= MIB
        assert sum(counted(store, key, 1500) for key in store.keys(POD_CPU)) == 450_000 - store.counts.dropped_samples

    def test_who_creates_containers_in_a_loop_does_not_push_out_the_series_of_others(self):
        # GIVEN 50 pods, and one that has three new containers each second, for an hour
        store = SeriesStore(SeriesSettings(keep_ns=1800 * NS_PER_S, budget_bytes=MIB))
        pods = [(POD_CPU, str(pod)) for pod in range(50)]
        for second in range(3600):
            values = dict.fromkeys(pods, second % 60 / 7)
            values |= {(CONTAINER_CPU, f"{second}-{each}"): 1.0 for each in range(3)}
            store.append_round(second * NS_PER_S, values)
            # WHEN a pod of another tenant starts in the middle of it
            if second == 2000:
                pods.append((POD_CPU, "new"))
        # THEN the window of each pod is whole
        assert {counted(store, key, 3599, 1590) for key in pods} == {1590}
        assert {counted(store, key, 3599, 1800) for key in pods[:-1]} == {1800}
        counts = store.counts
        assert counts.dropped_series > 1000
        assert (counts.dropped_samples, counts.refused_samples) == (0, 0)
        assert counts.series <= MIB // (2 * SERIES_BYTES)

    def test_nor_those_of_what_ran_for_long_before_it_ended(self):
        store = SeriesStore(SeriesSettings(keep_ns=1800 * NS_PER_S, budget_bytes=MIB))
        for second in range(1500):
            values = {(POD_CPU, "lives"): 1.0} | ({(POD_CPU, "web"): 1.0} if second < 300 else {})
            values |= {(CONTAINER_CPU, f"{second}-{each}"): 1.0 for each in range(3)}
            store.append_round(second * NS_PER_S, values)
        assert store.counts.dropped_series > 1000
        assert counted(store, (POD_CPU, "web"), 1499, 1500) == 300

    def test_where_all_series_are_alive_a_new_one_is_refused_and_counted(self):
        store = SeriesStore(SeriesSettings(budget_bytes=MIB))
        most = MIB // (2 * SERIES_BYTES)
        values = {(POD_CPU, str(pod)): 1.0 for pod in range(most + 2)}
        assert [store.append_round(second, values) for second in (1, 2)] == [most, most]
        assert store.counts.refused_samples == 4
        assert store.append((NODE_CPU,), 3, 1)

    def test_many_series_that_find_no_room_cost_one_look_at_the_others_a_second(self, monkeypatch):
        # GIVEN a store full of live series, and as many that find no room
        looks: list[int] = []
        ended = SeriesStore._ended
        monkeypatch.setattr(SeriesStore, "_ended", lambda store: looks.append(len(store)) or ended(store))
        store, most = SeriesStore(SeriesSettings(budget_bytes=MIB)), MIB // (2 * SERIES_BYTES)
        values = {(POD_CPU, str(pod)): 1.0 for pod in range(2 * most)}
        # WHEN all of them are appended for ten seconds, four times a second
        for quarter in range(40):
            assert store.append_round(quarter * NS_PER_S // 4, values) == most
        assert looks == [most] * 10
        assert store.counts.refused_samples == 40 * most
