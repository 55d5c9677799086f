"""What is predicted keeps its bounds for any pods, and no pod of another band changes it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koordebpf.jobs.prediction.predict import PredictedPod, node_allocatable, predict
from koordebpf.jobs.prediction.values import PredictionSettings
from koordebpf.kube.cache.objects import Node, NodeStatus, ObjectMeta
from koordebpf.state.prediction import Amounts

SETTINGS = PredictionSettings()
NOW_S = 2e9
OWN = ("__node-sys__", "__node-koord-prod__", "__node-__")
_AMOUNTS = st.builds(Amounts, st.integers(0, 64_000), st.integers(0, 1 << 38))
_PODS = st.lists(
    st.builds(
        PredictedPod,
        st.integers(0, 30).map("uid-{}".format),
        st.sampled_from(("koord-prod", "", "koord-mid", "koord-batch", "koord-free")),
        _AMOUNTS,
        st.one_of(st.none(), st.floats(0, 2 * NOW_S)),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
    unique_by=lambda pod: pod.uid,
)
_PEAKS = st.dictionaries(st.sampled_from([*(f"uid-{n}" for n in range(31)), *OWN]), _AMOUNTS)
_NODES = st.builds(
    lambda cpu, memory: Node(ObjectMeta(), NodeStatus(allocatable={"cpu": f"{cpu}m", "memory": memory})),
    st.integers(0, 128_000),
    st.integers(0, 1 << 40),
)


@given(peaks=_PEAKS, pods=_PODS, node=_NODES)
def test_no_more_is_reclaimable_than_prod_pods_request_or_the_node_has(peaks, pods, node):
    predicted = predict(peaks, pods, node, NOW_S, SETTINGS)
    if not set(OWN) <= peaks.keys():
        assert predicted.prod.reclaimable is None and predicted.prod.peak is None and predicted.problem
        return
    found, peak = predicted.prod.reclaimable, predicted.prod.peak
    assert found is not None and peak is not None
    requests = sum((pod.request for pod in pods if pod.is_prod and not pod.is_finished), Amounts())
    limits = (requests, node_allocatable(node), *(each.reclaimable for each in predicted.by.values()))
    for limit in limits:
        assert limit is not None
        assert found.cpu_millicpu <= limit.cpu_millicpu and found.memory_bytes <= limit.memory_bytes
    assert found.cpu_millicpu >= 0 and found.memory_bytes >= 0
    # What is reclaimable and what is used at most together fit into the node, where what is used does.
    if peak.cpu_millicpu <= node_allocatable(node).cpu_millicpu:
        assert found.cpu_millicpu + sum(int(peaks[uid].cpu_millicpu) for uid in OWN) <= max(
            node_allocatable(node).cpu_millicpu, sum(int(peaks[uid].cpu_millicpu) for uid in OWN)
        )


@given(peaks=_PEAKS, pods=_PODS, node=_NODES)
def test_pods_of_other_bands_change_nothing(peaks, pods, node):
    prod = [pod for pod in pods if pod.is_prod]
    assert predict(peaks, pods, node, NOW_S, SETTINGS) == predict(peaks, prod, node, NOW_S, SETTINGS)


@given(peaks=_PEAKS, pods=_PODS, node=_NODES)
def test_their_order_does_not_matter(peaks, pods, node):
    one, other = (predict(peaks, each, node, NOW_S, SETTINGS) for each in (pods, pods[::-1]))
    assert (one.prod, one.by) == (other.prod, other.by)
    assert sorted(one.unpredicted) == sorted(other.unpredicted)
