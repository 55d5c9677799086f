"""What holds for every decision, whatever the node looks like."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.policy.credit import credit_bytes
from koordebpf.policy.decide import decide
from koordebpf.policy.evict.ranking import as_candidates, be_key, be_order
from koordebpf.policy.evict.resources import MEMORY_RELIEF
from koordebpf.policy.evict.selection import choose_victims
from koordebpf.slo.pods.eviction import allows_eviction
from koordebpf.state.amount import MEMORY, USED
from koordebpf.state.build import view_of_frame
from koordebpf.state.view import Frame, PendingRelease
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import NOW_NS, frame, memory_volume, pod, read_back

_PLAIN_PRIORITIES = st.sampled_from([5000, 5000, 5500, 5999])


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    """Return a frame; most are short of memory that it takes one or more of several plain pods to free."""
    is_short = draw(st.sampled_from([True, True, True, False]))
    most = 40 if is_short else 400  # MiB: what is coming back from odd pods leaves something to free
    plain = [
        pod(f"plain-{index}", uid=f"plain-{index}", anon=draw(st.integers(10, 120)), priority=draw(_PLAIN_PRIORITIES))
        for index in range(draw(st.integers(3, 6)) if is_short else 0)
    ]
    pods = plain + [
        pod(
            draw(st.sampled_from(["a", "b", "hog"])),
            namespace=draw(st.sampled_from(["x", "y"])),
            uid=f"uid-{index}",
            anon=(anon := draw(st.integers(0, most))),
            shmem=draw(st.none() | st.integers(0, anon)),
            file=draw(st.integers(0, 100)),
            kernel=draw(st.none() | st.integers(0, most)),
            priority=draw(st.none() | st.sampled_from([0, 5000, 5500, 9500])),
            qos=draw(st.sampled_from(["BE", "BE", "BE", "be", "LS", None])),
            phase=draw(st.sampled_from(["Running", "Running", "Running", "Pending", "Failed"])),
            terminating=draw(st.integers(0, 9)) == 0,
            policy=draw(st.sampled_from([None, None, None, '["BEMemoryEvict"]', "[]"])),
            has_cgroup=draw(st.integers(0, 9)) > 0,
            measured=draw(st.integers(0, 9)) > 0,
            volumes=[memory_volume()] if draw(st.booleans()) else [],
        )
        for index in range(draw(st.integers(0, 6 if is_short else 12)))
    ]
    uids = [each.pod.uid for each in pods[len(plain) :]] or ["uid-gone"]
    return frame(
        pods,
        used=draw(st.integers(850, 1000) if is_short else st.integers(700, 1000)),
        executor=draw(st.sampled_from(["api", "cgroup"])),
        pending=[
            PendingRelease(uid, NOW_NS - draw(st.integers(0, 130)) * NS_PER_S, draw(st.integers(0, most)) * MIB)
            for uid in draw(st.lists(st.sampled_from(uids), max_size=2, unique=True))
        ],
        last_evict_ns=None
        if is_short
        else draw(st.none() | st.integers(0, 6).map(lambda seconds: NOW_NS - seconds * NS_PER_S)),
    )


@given(frames())
def test_a_frame_survives_its_json(recorded):
    assert decode_frame(encode_frame(recorded), "frame") == recorded


@given(frames())
def test_the_same_frame_gives_the_same_plan(recorded):
    first, again = decide(view_of_frame(recorded)), decide(view_of_frame(decode_frame(encode_frame(recorded), "frame")))
    assert first == again
    assert read_back(first) == first


@given(frames())
def test_only_true_candidates_ever_go(recorded):
    view = view_of_frame(recorded)
    pods = {each.uid: each for each in view.pods}
    for victim in decide(view).victims:
        chosen = pods[victim.candidate.uid]
        assert chosen.koord_qos == "BE"
        assert chosen.phase not in {"Succeeded", "Failed"}
        assert not chosen.is_terminating
        assert allows_eviction(chosen.eviction_policy, "BEMemoryEvict")
        assert chosen.cgroup_id is not None
        assert credit_bytes(chosen) == victim.candidate.of(MEMORY).released > 0


@given(frames())
def test_every_labelled_pod_is_a_candidate_or_has_a_reason(recorded):
    view = view_of_frame(recorded)
    (feature,) = decide(view).features
    ranking, excluded = {each.uid for each in feature.candidates}, {each.uid for each in feature.excluded}
    assert not ranking & excluded
    if feature.victims or feature.balance.missing:
        assert ranking | excluded >= {each.uid for each in view.pods if each.koord_qos == "BE"}


@given(frames())
def test_no_victim_is_needless_and_the_books_balance(recorded):
    (feature,) = decide(view_of_frame(recorded)).features
    credits = [victim.candidate.of(MEMORY).released for victim in feature.victims]
    assert feature.balance.credit == sum(credits)
    if not credits:
        return
    open_need = feature.balance.need - feature.balance.pending
    assert feature.balance.missing == max(open_need - sum(credits), 0)
    for credit in credits:
        assert sum(credits) - credit < open_need


@given(frames(), st.integers(0, 300))
def test_more_usage_never_frees_less(recorded, more):
    def freed(used_bytes: int) -> int:
        measured = replace(recorded.measured, node=replace(recorded.measured.node, used_bytes=used_bytes))
        return decide(view_of_frame(replace(recorded, measured=measured))).features[0].balance.credit

    used = recorded.measured.node.used_bytes
    assert freed(used + more * MIB) >= freed(used)


@given(frames(), st.integers(0, 2000))
def test_victims_are_part_of_what_the_ranking_alone_would_take(recorded, need):
    order = be_order(each for each in view_of_frame(recorded).pods if each.memory is not None)
    candidates = as_candidates(order, [MEMORY_RELIEF])
    victims = choose_victims(candidates, {USED: need * MIB})
    # The shortest run from the top that covers the need, or all of it.
    run = next(
        (n for n in range(len(candidates)) if sum(each.of(MEMORY).released for each in candidates[:n]) >= need * MIB),
        len(candidates),
    )
    assert all(each in candidates[:run] for each in victims)
    assert [each.rank for each in victims] == sorted(each.rank for each in victims)


@settings(max_examples=50)
@given(frames(), st.randoms(use_true_random=False))
def test_the_order_is_strict_total_and_blind_to_the_order_of_the_list(recorded, random):
    pods = list(view_of_frame(recorded).pods)
    order = be_order(pods)
    random.shuffle(pods)
    assert be_order(pods) == order
    for first, second in itertools.combinations(order, 2):
        # Every pair is in the order it has on its own: the relation is transitive.
        pair = [each for each in pods if each.uid in {first.uid, second.uid}]
        assert be_order(pair) == [first, second]
        assert (be_key(first), -credit_bytes(first)) <= (be_key(second), -credit_bytes(second))
