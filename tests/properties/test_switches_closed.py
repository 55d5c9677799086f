"""What slo-controller-config switches off is off: whatever else is wrong, for every reader, restarted or not."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.collect.cluster_view import EffectiveSpec
from koordebpf.controller.reconcile import desired_nodeslo
from koordebpf.controller.settings import Settings, settings_of
from koordebpf.errors import ConfigError
from koordebpf.kube.cache.objects import ClusterState, Node, ObjectMeta
from koordebpf.kube.clients.nodeslos import NodeMeta, NodeSLO, NodeSLOMeta
from koordebpf.slo.manager.effective import EffectiveKey, render_spec
from koordebpf.slo.manager.node_colocation import effective_colocation, node_colocation
from koordebpf.slo.manager.render import SPEC_FIELDS
from koordebpf.slo.manager.shapes import THRESHOLD_KEY
from koordebpf.slo.spec import spec_of_configmap
from koordebpf.state.build import strategy_of_frame
from tests.support.values.builders import frame

FIELD = "resourceUsedThresholdWithBE"
LABELS = {"pool": "off", "zone": "1"}
NODE = NodeMeta("n1", "uid-n1", LABELS)
SELECTOR: dict[str, Any] = {"matchLabels": {"pool": "off"}}
UNREADABLE: list[Any] = [
    {"matchLabels": {"pool": "off", "zone": 1}},
    {**SELECTOR, "matchExpressions": {"key": "pool", "operator": "Exists"}},
    "off",
]

nested = st.sampled_from([{"enable": False}, {"policy": "none"}, {"a": {"enable": False}}, [{"enable": False}]])
odd = st.sampled_from(["50", 700, -1, 5.5, True, [], {}, "cpuset", 60, 50, 40, None, 10**30]) | nested
threshold_fields = st.dictionaries(
    st.sampled_from(
        [
            "memoryEvictThresholdPercent",
            "memoryEvictLowerPercent",
            "cpuSuppressPolicy",
            "cpuEvictThresholdPercent",
            "cpuEvictLowerPercent",
            "cpuEvictTimeWindowSeconds",
            "allocatableEvictPriorityThreshold",
            "unknownField",
        ]
    ),
    odd,
    max_size=4,
)
colocation_fields = st.dictionaries(
    st.sampled_from(["degradeTimeMinutes", "cpuReclaimThresholdPercent", "resourceDiffThreshold", "midReclaimMode"]),
    odd,
    max_size=3,
)
names = st.sampled_from([{}, {"name": "off"}, {"name": "other"}])
other_entries = st.lists(
    st.sampled_from(
        [
            {"name": "x", "nodeSelector": {"matchLabels": {"pool": "x"}}, "enable": True, "cpuEvictLowerPercent": "1"},
            {"name": "off", "nodeSelector": {"matchLabels": {"pool": "x"}}, "enable": True},
            {"nodeSelector": {"matchLabels": {"pool": "x"}}, "enable": False},
            {"name": "y", "nodeSelector": "all", "enable": True},
            7,
        ]
    ),
    max_size=2,
)


def entry(fields: st.SearchStrategy[dict[str, Any]], selectors: list[Any], *enable: Any) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda name, selector, more, on: {
            **name,
            "nodeSelector": selector,
            **more,
            **({} if on == "" else {"enable": on}),
        },
        names,
        st.sampled_from(selectors),
        fields,
        st.sampled_from(enable),
    )


def threshold(own: st.SearchStrategy[Any], **also: Any) -> st.SearchStrategy[str]:
    return st.builds(
        lambda cluster, others, one: json.dumps(
            {"clusterStrategy": {"enable": True, **cluster, **also}, "nodeStrategies": [*others, one]}
        ),
        threshold_fields,
        other_entries,
        own,
    )


def colocation(own: st.SearchStrategy[Any], **also: Any) -> st.SearchStrategy[str]:
    return st.builds(
        lambda cluster, others, one: json.dumps({"enable": True, **cluster, **also, "nodeConfigs": [*others, one]}),
        colocation_fields,
        other_entries,
        own,
    )


ANY = (True, False, None, "false", "", {"enable": False})  # "": absent
junk = st.sampled_from(["{", "[]", "", '{"clusterStrategy": 1}', '{"nodeStrategies": 1}', '{"nodeConfigs": 1}'])
any_threshold = st.one_of(junk, threshold(entry(threshold_fields, [SELECTOR, *UNREADABLE], *ANY)))
any_colocation = st.one_of(junk, colocation(entry(colocation_fields, [SELECTOR, *UNREADABLE], *ANY)))
off_threshold = threshold(entry(threshold_fields, [SELECTOR, *UNREADABLE], False))
off_colocation = colocation(entry(colocation_fields, [SELECTOR, *UNREADABLE], False))
# Texts that are unusable for the node, whatever they say of its switch.
WRONG = {"memoryEvictThresholdPercent": 700}
wrong_threshold = st.one_of(
    junk.filter(lambda text: "nodeConfigs" not in text),
    threshold(entry(threshold_fields, [SELECTOR], *ANY), **WRONG),
    threshold(entry(threshold_fields.map(lambda fields: {**fields, **WRONG}), [SELECTOR], *ANY)),
)
wrong_colocation = st.one_of(
    st.sampled_from(["{", "[]", "", '{"nodeConfigs": 1}']),
    colocation(entry(colocation_fields, [SELECTOR], *ANY), degradeTimeMinutes=-1),
    colocation(entry(colocation_fields.map(lambda fields: {**fields, "degradeTimeMinutes": -1}), [SELECTOR], *ANY)),
)
field_names = st.sampled_from(
    [
        *("enable", "policy", "name", "nodeSelector", "clusterStrategy", "nodeStrategies", "nodeConfigs"),
        *(
            "beClass",
            "policies",
            "cpuQOS",
            "networkQOS",
            "blocks",
            "groupIdentity",
            "applications",
            "cpuSuppressPolicy",
        ),
        *("cpuBurstPercent", "minFreeKbytesFactor", "totalNetworkBandwidth", "metricAggregatePolicy", "durations"),
    ]
)
any_value = st.recursive(
    odd | st.sampled_from(["none", "1Gi", SELECTOR, *UNREADABLE]),
    lambda below: st.dictionaries(field_names, below, max_size=4) | st.lists(below, max_size=2),
    max_leaves=20,
)
any_config = st.builds(
    lambda cluster, entries, one: json.dumps(
        {"clusterStrategy": cluster, "nodeStrategies": [*entries, {**one, "nodeSelector": SELECTOR}]}
        | (cluster if isinstance(cluster, dict) else {})
        | {"nodeConfigs": [*entries, {**one, "nodeSelector": SELECTOR}]}
    ),
    any_value,
    st.lists(any_value, max_size=2),
    st.dictionaries(field_names, any_value, max_size=4),
)
ON: dict[str, Any] = {FIELD: {"enable": True, "memoryEvictThresholdPercent": 60}}


def is_on(spec: Any) -> bool:
    return bool(spec[FIELD].get("enable"))


@given(
    st.lists(any_threshold, max_size=3),
    off_threshold,
    st.lists(wrong_threshold, max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_a_controller_turns_no_node_on(
    before: list[str], off: str, after: list[str], restarts: bool, was_on: bool
) -> None:
    last: Settings | None = None
    current = NodeSLO(NodeSLOMeta("n1"), ON) if was_on else None
    for text in before:
        last = settings_of({THRESHOLD_KEY: text}, last)
        current = desired_nodeslo(NODE, current, last)
    for text in (off, *after):
        last = settings_of({THRESHOLD_KEY: text}, None if restarts else last)
        current = desired_nodeslo(NODE, current, last)
        assert not is_on(current.spec)
        assert not is_on(desired_nodeslo(NODE, None, last).spec)


@given(st.lists(any_threshold, max_size=3), off_threshold, st.lists(wrong_threshold, max_size=3))
def test_an_agent_turns_no_node_on(before: list[str], off: str, after: list[str]) -> None:
    running, node = EffectiveSpec(), Node(metadata=ObjectMeta(name="n1", labels=LABELS))
    for text in before:
        running.learn(ClusterState(1, 1, node=node, slo_controller_config={THRESHOLD_KEY: text}), keeps_deleted=False)
    for text in (off, *after):
        state = ClusterState(1, 1, node=node, slo_controller_config={THRESHOLD_KEY: text})
        started = EffectiveSpec()
        for each in (running, started):
            each.learn(state, keeps_deleted=False)
            assert each.spec is not None
            assert not each.spec.resourceUsedThresholdWithBE.enable


@given(threshold(entry(threshold_fields.map(lambda fields: {**fields, **WRONG}), [SELECTOR], "")), st.booleans())
def test_an_entry_that_is_wrong_and_no_longer_says_on_is_off_where_the_cluster_is(text: str, is_renamed: bool) -> None:
    of_cluster_off = text.replace('"clusterStrategy": {"enable": true', '"clusterStrategy": {"enable": false')
    on = {"name": "off", "nodeSelector": {"matchLabels": {"pool": "x"}} if is_renamed else SELECTOR, "enable": True}
    last = settings_of({THRESHOLD_KEY: json.dumps({"nodeStrategies": [on]})}, None)
    current = desired_nodeslo(NODE, None, last)
    assert is_on(current.spec) is not is_renamed
    last = settings_of({THRESHOLD_KEY: of_cluster_off}, last)
    assert not is_on(desired_nodeslo(NODE, current, last).spec)
    assert not is_on(desired_nodeslo(NODE, None, last).spec)


@given(st.sampled_from(sorted(SPEC_FIELDS)), st.lists(any_config, min_size=1, max_size=3))
def test_no_text_stops_a_reader(key: str, texts: list[str]) -> None:
    last, current, spec, colocations = None, None, None, None
    for text in texts:
        last = settings_of({key: text}, last, {"n1": LABELS})
        current = desired_nodeslo(NODE, current, last)
        spec, problems, _ = spec_of_configmap({key: text}, LABELS, None, spec)
        assert not [problem for problem in problems if "cannot be used" in problem.rule]
        colocations = effective_colocation(text, colocations)
        node_colocation(colocations, LABELS)


@given(off_threshold, st.booleans())
def test_render_and_plan_turn_no_node_on_and_render_says_what_a_controller_writes(off: str, was_on: bool) -> None:
    data = {THRESHOLD_KEY: off}
    node = Node(metadata=ObjectMeta(name="n1", labels=LABELS))
    of = msgspec.structs.replace(frame([]), node=node, sloControllerConfig=data, nodeSLO=msgspec.UNSET)
    of = msgspec.structs.replace(of, strategyInForce=msgspec.UNSET)
    with contextlib.suppress(ConfigError):
        strategy = strategy_of_frame(of)
        assert strategy is not None
        assert not strategy.enable
    has = ON if was_on else None
    with contextlib.suppress(ConfigError):
        rendered = render_spec(data, LABELS, has=has)
        assert not is_on(rendered)
        current = NodeSLO(NodeSLOMeta("n1"), has) if has else None
        written = desired_nodeslo(NODE, current, settings_of(data, None)).spec
        assert json.loads(msgspec.json.encode(rendered)) == written


@given(st.lists(any_colocation, max_size=3), off_colocation, st.lists(wrong_colocation, max_size=3), st.booleans())
def test_colocation_is_off_where_its_entry_says_so(
    before: list[str], off: str, after: list[str], restarts: bool
) -> None:
    last: EffectiveKey | None = None
    for text in before:
        last = effective_colocation(text, last)
    last = effective_colocation(off, None if restarts else last)
    found = node_colocation(last, LABELS)
    assert not found.strategy.enable
    assert not found.is_held
    for text in after:
        last = effective_colocation(text, None if restarts else last)
        assert not node_colocation(last, LABELS).strategy.enable


@given(st.sampled_from([True, False]), colocation_fields)
def test_colocation_is_off_where_the_nodes_annotation_says_so(is_on: bool, fields: dict[str, Any]) -> None:
    config = effective_colocation(json.dumps({"enable": is_on}))
    annotation = json.dumps({**fields, "enable": False})
    found = node_colocation(config, LABELS, {"node.koordinator.sh/colocation-strategy": annotation})
    assert not found.strategy.enable
