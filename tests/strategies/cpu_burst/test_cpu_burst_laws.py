"""Laws of CPU burst, whatever containers do, and other processes write."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.slo.strategies.cpu_burst import CPUBurstStrategy
from koordebpf.strategies.cpu_burst.values import BurstSettings
from tests.support.values.cpu_burst import AUTO, CPU, ONE, POD, TWO, BurstNode, container, pod, web

QUOTA, BURST = CgroupFile.CPU_QUOTA, CgroupFile.CPU_BURST
OWN = {POD: 200_000, ONE: 100_000, TWO: 100_000}

strategies = st.builds(
    CPUBurstStrategy,
    policy=st.sampled_from(["none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto"]),
    cpuBurstPercent=st.integers(1, 10_000),
    cfsQuotaBurstPercent=st.integers(100, 10**12),
    cfsQuotaBurstPeriodSeconds=st.integers(-1, 10**6),
    sharePoolThresholdPercent=st.integers(0, 100),
)
settings_of = st.builds(
    BurstSettings,
    raise_percent=st.integers(101, 400),
    lower_percent=st.integers(1, 99),
    starved_percent=st.integers(0, 100),
    return_after_s=st.floats(0, 10),
)
# Seconds since the round before; whether each container was throttled; what the node used; the two containers' use.
rounds = st.lists(
    st.tuples(
        st.floats(0.01, 5), st.booleans(), st.booleans(), st.one_of(st.none(), st.integers(0, 8000)),
        st.integers(0, 8000),
    ),
    max_size=25,
)  # fmt: skip


def measured(held, throttled, used):
    both = [
        container(name, throttled=each, quota_us=held[path], used_millicpu=used, throttled_ratio=1.0 * each)
        for name, path, each in (("a", ONE, throttled[0]), ("b", TWO, throttled[1]))
    ]
    return pod(*both, quota_us=held[POD])


@given(strategies, settings_of, rounds)
def test_quotas_stay_between_their_own_and_their_bound_and_the_pod_has_room_for_its_containers(
    strategy, settings, steps
):
    node = BurstNode(web(containers={"a": CPU, "b": CPU}), strategy=strategy, settings=settings)
    held = dict(OWN)
    for after_s, first, second, node_used, used in steps:
        decided = node.round(measured(held, (first, second), used), after_s=after_s, used=node_used)
        wanted = {each.path: each.value for each in decided.writes if each.file is QUOTA}
        held = {path: wanted.get(path, own) for path, own in OWN.items()}
        for path in (ONE, TWO):
            assert OWN[path] <= held[path] <= 8 * 100_000
            assert held[path] <= max(OWN[path] * (strategy.cfsQuotaBurstPercent or 100) // 100, OWN[path])
        assert held[POD] - OWN[POD] == held[ONE] - OWN[ONE] + held[TWO] - OWN[TWO]
        for each in decided.writes:
            if each.file is BURST:  # the kernel takes no more
                assert 0 <= each.value <= OWN[each.path] <= held[each.path]
        assert strategy.policy in ("auto", "cfsQuotaBurstOnly") or held == OWN


@given(rounds)
def test_what_was_raised_comes_back_as_soon_as_the_policy_is_none(steps):
    node = BurstNode(web(containers={"a": CPU, "b": CPU}))
    held = dict(OWN)
    for after_s, first, second, node_used, used in steps:
        decided = node.round(measured(held, (first, second), used), after_s=after_s, used=node_used)
        wanted = {each.path: each.value for each in decided.writes if each.file is QUOTA}
        held = {path: wanted.get(path, own) for path, own in OWN.items()}
    node.strategy = replace(AUTO, policy="none")
    decided = node.round(measured(held, (True, True), 1000))
    assert all(each.value == OWN[each.path] for each in decided.writes)
    assert {each.path for each in decided.writes} >= {path for path, own in OWN.items() if held[path] != own}
    assert node.round(measured(OWN, (True, True), 1000)).writes == ()


@given(st.lists(st.tuples(st.booleans(), st.integers(1_000, 900_000)), min_size=1, max_size=20))
def test_a_quota_that_another_process_writes_is_never_written_over(steps):
    node = BurstNode(web(containers={"a": CPU, "b": CPU}))
    held = dict(OWN)
    for is_foreign, quota_us in steps:
        known = node.state.containers.get(ONE)
        ours = () if known is None else (known.level.own_us, known.level.wanted_us, known.level.before_us)
        if is_foreign and quota_us not in ours and known is not None and known.level.is_raised:
            held[ONE] = quota_us
            decided = node.round(measured(held, (True, True), 1000))
            wanted = {each.path: each.value for each in decided.writes if each.file is QUOTA}
            assert wanted.get(ONE, quota_us) == quota_us
        else:
            decided = node.round(measured(held, (True, True), 1000))
            wanted = {each.path: each.value for each in decided.writes if each.file is QUOTA}
        own = {path: each.own_us for path, each in decided.state.pods.items()}
        own |= {path: each.level.own_us for path, each in decided.state.containers.items()}
        held = {path: wanted.get(path, own[path]) for path in OWN}


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: raw.decode(errors="replace")))
def test_whatever_an_annotation_says_the_other_pod_gets_the_same(written):
    def quotas(annotations):
        hostile = web(name="hostile", annotations=annotations)
        node = BurstNode(web(), hostile)
        own = pod(container())
        other = replace(
            own, uid="uid-hostile", path="kubepods/poduid-hostile",
            containers=(replace(container(), path="kubepods/poduid-hostile/id-a"),),
        )  # fmt: skip
        return {each.path: each.value for each in node.round(own, other).writes if each.path in (POD, ONE)}

    assert quotas({"koordinator.sh/cpuBurst": written}) == quotas({})
