"""What a CustomNodeResource says, and what of it cannot be read."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.collect.cluster_view import ClusterView
from koordebpf.errors import ConfigError
from koordebpf.kube.body import MALFORMED
from koordebpf.kube.cache.cnr import CustomNodeResource, decode_cnr
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.kube.sources.manifest import parse_manifests
from koordebpf.state.cnr import Cnr, CnrZone, cnr_of
from koordebpf.state.pods.requests import NET_BANDWIDTH, RECLAIMED_CPU, RECLAIMED_MEMORY
from koordebpf.units import GIB

Zone = dict[str, Any]
ASKING_RUBBISH = [{"consumer": "a", "requests": {NET_BANDWIDTH: "x"}}]


def zone(kind: str, name: str, allocatable: Any = None, **more: Any) -> Zone:
    return {"type": kind, "name": name, "resources": {"allocatable": allocatable}, **more}


def written(*zones: Zone | None, allocatable: Any = None) -> CustomNodeResource:
    status = {"resources": {"allocatable": allocatable}, "topologyZone": list(zones), "topologyPolicy": "none"}
    return decode_cnr(msgspec.Raw(json.dumps({"metadata": {"name": "n1"}, "status": status}).encode()))


def test_zones_of_numa_nodes_and_nics_are_found_where_katalyst_has_them() -> None:
    allocations = [{"consumer": "a/b/u", "requests": {RECLAIMED_MEMORY: "1Gi", "cpu": 2}}, None, {"consumer": "x"}]
    below = zone("Numa", "9", {RECLAIMED_CPU: 1})
    numa = [zone("Numa", "1", {"cpu": "2500m"}), zone("Numa", "0", allocations=allocations, children=[below])]
    nics = [zone("NIC", "eth0", {NET_BANDWIDTH: "25k"}), zone("GPU", "g", {"gpu": "1"})]
    found = cnr_of(written(zone("Socket", "0", children=[*numa, None, *nics]), None, zone("NIC", "eth9", {})))
    assert found.numa == (CnrZone("0", {}, {"a/b/u": {RECLAIMED_MEMORY: GIB}}), CnrZone("1", {"cpu": 3}))
    assert found.nics == (CnrZone("eth0", {NET_BANDWIDTH: 25_000}),)


def test_quantities_are_rounded_up_and_capped_as_kubernetes_does() -> None:
    amounts = {RECLAIMED_CPU: "1500m", RECLAIMED_MEMORY: "16Ei"}
    assert cnr_of(written(allocatable=amounts)).allocatable == {RECLAIMED_CPU: 2, RECLAIMED_MEMORY: 2**63 - 1}


@pytest.mark.parametrize("nothing", [{}, {"status": None}, {"status": {"resources": None, "topologyZone": None}}])
def test_without_a_status_it_has_nothing_to_give(nothing: Zone) -> None:
    assert cnr_of(decode_cnr(msgspec.Raw(json.dumps(nothing).encode()))) == Cnr()


@pytest.mark.parametrize(
    ("zones", "path", "rule"),
    [
        ([zone("Numa", "0", {"cpu": "-1"})], "topologyZone[0].resources.allocatable.cpu", "must not be negative"),
        ([zone("Numa", "0", {"cpu": "lots"})], "topologyZone[0].resources.allocatable.cpu", "Kubernetes quantity"),
        (
            [zone("Socket", "0", children=[zone("NIC", "e", allocations=ASKING_RUBBISH)])],
            f"topologyZone[0].children[0].allocations[0].requests.{NET_BANDWIDTH}",
            "Kubernetes quantity",
        ),
        ([zone("Numa", "0"), zone("Numa", "0")], "topologyZone[1].name", "the name of another Numa zone"),
        ([zone("Numa", "")], "topologyZone[0].name", "printable characters"),
        ([zone("Numa", "a\nb")], "topologyZone[0].name", "printable characters"),
        ([zone("Numa", "a" * 254)], "topologyZone[0].name", "printable characters"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(zones: list[Zone], path: str, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cnr_of(written(*zones))
    assert f"customnoderesource.status.{path}:" in str(caught.value)
    assert rule in str(caught.value)


@pytest.mark.parametrize("depth", [17, 300, 100_000])
def test_zones_that_are_nested_deeper_than_a_node_are_refused(depth: int) -> None:
    opening = b'{"type": "Socket", "name": "0", "children": ['
    text = b'{"status": {"topologyZone": [' + opening * depth + b"]}" * depth + b"]}}"
    with pytest.raises(MALFORMED):
        decode_cnr(msgspec.Raw(text))
    document = {"apiVersion": "node.katalyst.kubewharf.io/v1alpha1", "kind": "CustomNodeResource"}
    manifest = json.dumps(document).encode()[:-1] + b", " + text[1:]
    if depth == 100_000:
        with pytest.raises(ConfigError, match="nest"):
            parse_manifests({"f.json": manifest})
    else:
        assert "nest" in parse_manifests({"f.json": manifest}).bad[0].rule


def test_a_file_may_have_one() -> None:
    text = """
apiVersion: node.katalyst.kubewharf.io/v1alpha1
kind: CustomNodeResource
metadata: {name: n1}
status:
  resources: {allocatable: {resource.katalyst.kubewharf.io/reclaimed_millicpu: 8k}}
"""
    found = parse_manifests({"n.yaml": text.encode()}).cnr
    assert found is not None
    assert cnr_of(found) == Cnr({RECLAIMED_CPU: 8000})
    with pytest.raises(ConfigError, match=r"is there already in n\.yaml"):
        parse_manifests({"n.yaml": text.encode(), "m.yaml": text.encode()})
    (bad,) = parse_manifests({"n.yaml": text.encode() + b"  topologyZone: 3\n"}).bad
    assert "topologyZone" in bad.rule


def test_one_that_cannot_be_read_any_more_is_not_judged_by_its_last_values() -> None:
    known = ClusterView()
    known.learn(ClusterState(1, 1, cnr=written(allocatable={RECLAIMED_CPU: 5})))
    assert known.cnr == Cnr({RECLAIMED_CPU: 5})
    broken = written(allocatable={RECLAIMED_CPU: "five"})
    for version in (2, 3):
        known.learn(ClusterState(version, 1, cnr=broken))
        assert known.cnr is None
        assert "no plugin of Katalyst's judges the CustomNodeResource" in known.problems[0]
    known.learn(ClusterState(4, 1))
    assert (known.cnr, known.problems) == (None, ())


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "name", "resources", "allocatable", "allocations", "consumer", "requests", "children"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(_JSON)
def test_whatever_is_in_it_is_read_or_refused(status: Any) -> None:
    text = json.dumps({"status": {"resources": status, "topologyZone": [status, {"type": "Numa", "name": "0"}]}})
    try:
        cnr_of(decode_cnr(msgspec.Raw(text.encode())))
    except (*MALFORMED, ConfigError):
        pass
