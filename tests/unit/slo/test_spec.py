"""A NodeSLO's whole spec: defaults, merges, and what is wrong with it part by part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec.inspect
import pytest

from koordebpf.slo.manager.effective import render_spec
from koordebpf.slo.manager.render import SPEC_FIELDS
from koordebpf.slo.spec import _PARTS, NodeSLOSpec, parse_spec, spec_of_configmap
from koordebpf.slo.strategies.resource_qos import MemoryQOS


def nodeslo(**spec: Any) -> bytes:
    return json.dumps({"spec": spec}).encode()


def test_an_empty_spec_is_koordlets_defaults() -> None:
    spec, problems = parse_spec(b'{"spec": {}}')
    assert (spec, problems) == (NodeSLOSpec(), ())
    assert spec.cpuBurstStrategy.cfsQuotaBurstPercent == 300
    assert spec.systemStrategy.totalNetworkBandwidth == "0"
    be = spec.resourceQOSStrategy.beClass
    assert be is not None
    assert be.memoryQOS is not None
    assert (be.memoryQOS.enable, be.memoryQOS.wmarkRatio, be.memoryQOS.wmarkScalePermill) == (False, 0, 50)


def test_what_is_written_lies_over_the_default_of_an_enabled_part() -> None:
    written = {"beClass": {"memoryQOS": {"enable": True, "wmarkRatio": 80, "lowLimitPercent": 0}}}
    spec, problems = parse_spec(nodeslo(resourceQOSStrategy=written))
    assert not problems
    be = spec.resourceQOSStrategy.beClass
    assert be is not None
    assert be.memoryQOS == MemoryQOS(
        enable=True,
        minLimitPercent=0,
        lowLimitPercent=0,
        throttlingPercent=0,
        wmarkRatio=80,
        wmarkScalePermill=20,
        wmarkMinAdj=50,
        priorityEnable=0,
        priority=0,
        oomKillGroup=0,
    )
    assert be.cpuQOS is not None
    assert be.cpuQOS.groupIdentity == 0  # not enabled: −1 would be the default


def test_a_part_that_is_not_enabled_changes_nothing_whatever_it_says() -> None:
    written = {"lsClass": {"memoryQOS": {"enable": False, "minLimitPercent": 100}}}
    spec, _ = parse_spec(nodeslo(resourceQOSStrategy=written))
    ls = spec.resourceQOSStrategy.lsClass
    assert ls is not None
    assert ls.memoryQOS is not None
    assert ls.memoryQOS.minLimitPercent == 0


@pytest.mark.parametrize(
    ("part", "written", "sentence"),
    [
        ("cpuBurstStrategy", {"cpuBurstPercent": 0}, "cpuBurstPercent: 0: must be an integer >= 1"),
        ("cpuBurstStrategy", {"cpuBurstPercent": True}, "cpuBurstPercent: True: must be an integer"),
        (
            "cpuBurstStrategy",
            {"policy": "x"},
            "policy: 'x': must be one of auto, cfsQuotaBurstOnly, cpuBurstOnly, none",
        ),
        ("cpuBurstStrategy", [], ": []: must be an object"),
        ("systemStrategy", {"watermarkScaleFactor": 401}, "watermarkScaleFactor: 401: must be an integer <= 400"),
        (
            "resourceQOSStrategy",
            {"beClass": {"memoryQOS": {"wmarkRatio": "95"}}},
            "beClass.memoryQOS.wmarkRatio: '95': must be an integer",
        ),
        (
            "resourceQOSStrategy",
            {"lsClass": {"blkioQOS": {"blocks": [{"ioCfg": {"readIOPS": -1}}]}}},
            "lsClass.blkioQOS.blocks[0].ioCfg.readIOPS: -1: must be an integer >= 0",
        ),
        ("resourceUsedThresholdWithBE", {"enable": 1}, "enable: 1: must be true or false"),
        ("resourceUsedThresholdWithBE", 7, ": 7: must be an object"),
        ("extensions", 3, ": 3: must be an object"),
        ("hostApplications", [{}], "[0].name: '': must not be empty"),
        ("hostApplications", {}, ": {}: must be a list"),
    ],
)
def test_an_unusable_part_is_reported_and_the_others_are_taken_over(part: str, written: Any, sentence: str) -> None:
    good = {"resourceUsedThresholdWithBE": {"enable": True}, "cpuBurstStrategy": {"policy": "auto"}}
    before, _ = parse_spec(nodeslo(**good, hostApplications=[{"name": "yarn"}]))
    spec, (problem,) = parse_spec(nodeslo(**{"extensions": {"a": 1}, **good, part: written}), before)
    assert str(problem).startswith(f"spec.{part}")
    assert str(problem).endswith(sentence)
    assert getattr(spec, part) == getattr(before, part)
    others = {"resourceUsedThresholdWithBE", "cpuBurstStrategy"} - {part}
    assert all(getattr(spec, other) == getattr(before, other) for other in others)
    if part != "hostApplications":
        assert spec.hostApplications == ()  # absent now, and that is no error


def test_null_parts_of_what_the_manager_writes_are_absent() -> None:
    # As in koordinator issue 2303.
    written = {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": None}, "cpuBurstStrategy": None}
    spec, problems = parse_spec(nodeslo(**written, extensions={"Object": None}, hostApplications=None))
    assert problems == ()
    plain, _ = parse_spec(nodeslo(resourceUsedThresholdWithBE={"enable": True}))
    assert msgspec.structs.replace(spec, extensions={}) == msgspec.structs.replace(plain, extensions={})


def test_without_a_last_one_an_unusable_part_is_the_default() -> None:
    spec, problems = parse_spec(nodeslo(cpuBurstStrategy={"policy": 3}))
    assert len(problems) == 1
    assert spec == NodeSLOSpec()


def leaves(of: msgspec.inspect.Type, path: str = "") -> Iterator[tuple[str, msgspec.inspect.Type]]:
    """Yield the path of every field below a type, [0] for an entry of a list, with its own type."""
    match of:
        case msgspec.inspect.UnionType():
            for each in of.types:
                if not isinstance(each, msgspec.inspect.NoneType):
                    yield from leaves(each, path)
        case msgspec.inspect.StructType():
            for field in of.fields:
                yield from leaves(field.type, f"{path}.{field.encode_name}")
        case msgspec.inspect.VarTupleType():
            yield from leaves(of.item_type, f"{path}[0]")
        case _:
            yield path, of


def written_at(path: str, value: Any) -> dict[str, Any]:
    for step in reversed(path.strip(".").split(".")):
        name, is_list, _ = step.partition("[")
        value = {name: [value] if is_list else value}
    return value  # type: ignore[no-any-return]


LEAVES = dict(leaves(msgspec.inspect.type_info(NodeSLOSpec)))


@pytest.mark.parametrize("path", LEAVES)
def test_every_field_has_a_type_and_an_error_with_its_path(path: str) -> None:
    wrong: Any = "x" if isinstance(LEAVES[path], msgspec.inspect.DictType) else {"no": "such"}
    (part,) = written_at(path, wrong)
    before, _ = parse_spec(nodeslo(cpuBurstStrategy={"policy": "auto"}, systemStrategy={"watermarkScaleFactor": 9}))
    spec, (problem,) = parse_spec(nodeslo(**written_at(path, wrong)), before)
    assert problem.path == f"spec{path}"
    assert problem.rule.startswith("must be ")
    assert getattr(spec, part) == getattr(before, part)


BOUNDED = [
    path
    for path, of in LEAVES.items()
    if isinstance(of, msgspec.inspect.IntType) and (of.ge, of.gt, of.le) != (None, None, None)
]


@pytest.mark.parametrize("path", BOUNDED)
def test_every_range_ends_where_it_says(path: str) -> None:
    of = LEAVES[path]
    assert isinstance(of, msgspec.inspect.IntType)
    lowest = of.ge if of.ge is not None else of.gt + 1 if of.gt is not None else None
    tried = [(lowest, True), (of.le, True)]
    tried += [(lowest - 1, False)] if lowest is not None else []
    tried += [(of.le + 1, False)] if of.le is not None else []
    for value, is_good in tried:
        if value is not None:
            assert (parse_spec(nodeslo(**written_at(path, value)))[1] == ()) is is_good, value


DATA = {
    "resource-threshold-config": {"clusterStrategy": {"enable": True, "memoryEvictThresholdPercent": 80}},
    "cpu-burst-config": {"clusterStrategy": {"policy": "auto"}},
    "resource-qos-config": {"clusterStrategy": {"beClass": {"memoryQOS": {"enable": True, "lowLimitPercent": 5}}}},
    "system-config": {"clusterStrategy": {"watermarkScaleFactor": 150}},
    "host-application-config": {"applications": [{"name": "yarn", "qos": "BE"}]},
}


def texts() -> dict[str, str]:
    return {key: json.dumps(value) for key, value in DATA.items()}


def test_a_node_without_manager_has_what_the_manager_would_render() -> None:
    annotations = {"node.koordinator.sh/network-bandwidth": "10G"}
    spec, problems, left_out = spec_of_configmap(texts(), {}, annotations)
    assert problems == left_out == ()
    rendered = json.dumps({"spec": render_spec(texts(), {}, annotations)}).encode()
    assert (spec, ()) == parse_spec(rendered)
    assert spec.systemStrategy.totalNetworkBandwidth == "10G"
    assert spec.resourceQOSStrategy.beClass is not None
    assert spec.resourceQOSStrategy.beClass.memoryQOS is not None
    assert spec.resourceQOSStrategy.beClass.memoryQOS.wmarkRatio == 95  # koordlet's own default, which no manager sends
    assert spec_of_configmap({}, {}) == (NodeSLOSpec(), (), ())


@pytest.mark.parametrize("key", SPEC_FIELDS)
def test_an_unusable_key_leaves_its_part_as_it_was(key: str) -> None:
    before, *_ = spec_of_configmap(texts(), {})
    spec, (problem,), _ = spec_of_configmap({**texts(), key: "{"}, {}, last=before)
    assert problem.path == key
    assert spec == before
    at_first, *_ = spec_of_configmap({**texts(), key: "{"}, {})
    part = SPEC_FIELDS[key]
    assert getattr(at_first, part) == getattr(NodeSLOSpec(), part)
    assert getattr(at_first, part) != getattr(before, part)


THRESHOLD = "resource-threshold-config"


def thresholds(*entries: Any, **cluster: Any) -> dict[str, str]:
    return {THRESHOLD: json.dumps({"clusterStrategy": cluster, "nodeStrategies": list(entries)})}


def for_pool(pool: str, **values: Any) -> dict[str, Any]:
    return {"nodeSelector": {"matchLabels": {"pool": pool}}, **values}


@pytest.mark.parametrize(
    "bad",
    [
        for_pool("a", memoryEvictThresholdPercent="80"),
        {"nodeSelector": {"matchLabels": {"pool": 1}}, "memoryEvictThresholdPercent": 80},
        {"nodeSelector": "all"},
        7,
    ],
)
def test_an_unusable_entry_is_left_out_and_the_others_apply(bad: Any) -> None:
    data = thresholds(bad, for_pool("b", memoryEvictThresholdPercent=90), enable=True, memoryEvictThresholdPercent=75)
    for pool, percent in (("b", 90), ("c", 75)):
        spec, problems, (left_out,) = spec_of_configmap(data, {"pool": pool})
        assert problems == ()
        assert left_out.path.startswith(f"{THRESHOLD}.nodeStrategies[0]")
        assert spec.resourceUsedThresholdWithBE.enable is True
        assert spec.resourceUsedThresholdWithBE.memoryEvictThresholdPercent == percent


def test_the_node_of_an_unusable_entry_keeps_what_it_had() -> None:
    good = thresholds(for_pool("a", memoryEvictThresholdPercent=80), memoryEvictThresholdPercent=75)
    bad = thresholds(for_pool("a", memoryEvictThresholdPercent="82"), memoryEvictThresholdPercent=70)
    before, *_ = spec_of_configmap(good, {"pool": "a"})
    spec, _, (left_out,) = spec_of_configmap(bad, {"pool": "a"}, last=before)
    assert left_out.value == "82"
    assert spec.resourceUsedThresholdWithBE.memoryEvictThresholdPercent == 80
    at_first, *_ = spec_of_configmap(bad, {"pool": "a"})
    assert at_first.resourceUsedThresholdWithBE == NodeSLOSpec().resourceUsedThresholdWithBE


def test_host_applications_of_an_unusable_entry_are_left_out() -> None:
    entries = [{"nodeSelector": {"matchLabels": {"pool": "a"}}, "applications": [{"name": ""}]}]
    data = {"host-application-config": json.dumps({"applications": [{"name": "dns"}], "nodeConfigs": entries})}
    spec, problems, (left_out,) = spec_of_configmap(data, {"pool": "a"})
    assert (problems, left_out.path) == ((), "host-application-config.nodeConfigs[0].applications[0].name")
    assert spec.hostApplications == ()
    assert [each.name for each in spec_of_configmap(data, {})[0].hostApplications] == ["dns"]


@pytest.mark.parametrize("bandwidth", ["fast", "-1", "10Gbit"])
def test_a_bandwidth_that_is_no_quantity_is_refused(bandwidth: str) -> None:
    data = {"system-config": json.dumps({"clusterStrategy": {"totalNetworkBandwidth": bandwidth}})}
    _, (problem,), _ = spec_of_configmap(data, {})
    assert problem.path == "system-config.clusterStrategy.totalNetworkBandwidth"
    _, (problem,) = parse_spec(nodeslo(systemStrategy={"totalNetworkBandwidth": bandwidth}))
    assert problem.path == "spec.systemStrategy.totalNetworkBandwidth"
    good = {"system-config": json.dumps({"clusterStrategy": {"totalNetworkBandwidth": "10G"}})}
    annotation = "node.koordinator.sh/network-bandwidth"
    spec, problems, (left_out,) = spec_of_configmap(good, {}, {annotation: bandwidth})
    assert (problems, left_out.path, left_out.value) == ((), f"metadata.annotations[{annotation}]", bandwidth)
    assert spec.systemStrategy.totalNetworkBandwidth == "10G"


def test_a_bandwidth_of_the_node_that_is_no_quantity_leaves_the_last_one_alone() -> None:
    annotation, last = "node.koordinator.sh/network-bandwidth", None
    for factor, bandwidth in ((50, "10G"), (80, "fast")):
        data = {"system-config": json.dumps({"clusterStrategy": {"minFreeKbytesFactor": factor}})}
        last, _, _ = spec_of_configmap(data, {}, {annotation: bandwidth}, last)
        assert (last.systemStrategy.minFreeKbytesFactor, last.systemStrategy.totalNetworkBandwidth) == (factor, "10G")


def test_an_entry_of_host_applications_that_is_unusable_leaves_the_other_keys_in_force() -> None:
    entry = {"nodeSelector": {"matchLabels": {"pool": "a"}}, "applications": [[]]}
    hosts = json.dumps({"enable": False, "nodeConfigs": [entry]})
    last, _, _ = spec_of_configmap(thresholds(enable=True), {"pool": "a"})
    data = {**thresholds(enable=False), "host-application-config": hosts}
    spec, problems, _ = spec_of_configmap(data, {"pool": "a"}, None, last)
    assert (spec.resourceUsedThresholdWithBE.enable, spec.hostApplications, problems) == (False, (), ())


def test_a_key_that_fails_is_named_and_the_others_are_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_PARTS, "cpuBurstStrategy", lambda written, path: 1 // 0)
    spec, (problem,), _ = spec_of_configmap(thresholds(enable=True), {})
    assert (spec.resourceUsedThresholdWithBE.enable, problem.path) == (True, "cpu-burst-config")
    assert "cannot be used" in str(problem)


def test_what_an_unusable_strategy_switches_off_is_said() -> None:
    last, _, _ = spec_of_configmap(thresholds(enable=True), {})
    spec, _, (left_out,) = spec_of_configmap(thresholds(enable=False, memoryEvictThresholdPercent=700), {}, None, last)
    assert not spec.resourceUsedThresholdWithBE.enable
    assert str(left_out).endswith("the node keeps what it had, but enable is off")
    _, (problem,), _ = spec_of_configmap(thresholds(enable=False, cpuSuppressPolicy=5), {}, None, last)
    assert str(problem).endswith("must be a string; the last good strategy stays in force, but enable is off")


def test_field_names_match_without_regard_to_case_as_in_go() -> None:
    """Koordinator's own samples write CPUEvictTimeWindowSeconds."""
    data = thresholds(
        {"NodeSelector": {"MatchLabels": {"pool": "a"}}, "CPUEvictTimeWindowSeconds": 60},
        cpuEvictTimeWindowSeconds=30,
        Enable=True,
    )
    spec, problems, left_out = spec_of_configmap(data, {"pool": "a"})
    assert problems == left_out == ()
    assert spec.resourceUsedThresholdWithBE.cpuEvictTimeWindowSeconds == 60
    assert spec.resourceUsedThresholdWithBE.enable is True
    burst = {"cpu-burst-config": json.dumps({"ClusterStrategy": {"CPUBurstPercent": 500}})}
    assert spec_of_configmap(burst, {})[0].cpuBurstStrategy.cpuBurstPercent == 500
    spec, _ = parse_spec(nodeslo(ResourceUsedThresholdWithBE={"CPUEvictTimeWindowSeconds": 60}))
    assert spec.resourceUsedThresholdWithBE.cpuEvictTimeWindowSeconds == 60


def test_the_default_of_the_root_cgroup_is_block_io_that_is_off() -> None:
    root = NodeSLOSpec().resourceQOSStrategy.cgroupRoot
    assert root is not None
    assert root.blkioQOS is not None
    assert root.blkioQOS.enable is False
