"""The configuration file: every setting can be set, every mistake is reported, text and schema agree with it."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import jsonschema
import msgspec
import pytest
import yaml

from koordebpf.act.eviction_hook_settings import WebhookHook
from koordebpf.configuration.checked import agent_config, check_config, differences
from koordebpf.configuration.file import (
    API_VERSION,
    KIND,
    ConfigProblems,
    config_schema,
    config_text,
    file_value,
    places,
    read_config,
)
from koordebpf.configuration.schema import Setting, settings
from koordebpf.configuration.settings import FEATURE_GATES, AgentConfig, ShadowConfiguration
from koordebpf.errors import ConfigError
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.guards import EmergencySettings, GuardLimits
from koordebpf.slo.convert import laid_over
from koordebpf.state.pods.namespaces import LabelExpression, NamespaceSelector, asked_labels
from koordebpf.units import NS_PER_MS, NS_PER_S

HEAD = {"apiVersion": API_VERSION, "kind": KIND}
NEITHER_MAY_BE_SET = {("enforce",), ("eviction", "strict_compat")}


@functools.cache
def schema() -> jsonschema.Draft202012Validator:
    """Compiled once: for each of 300 settings it would take minutes."""
    return jsonschema.Draft202012Validator(config_schema())


def text(body: Mapping[str, Any]) -> bytes:
    return yaml.safe_dump({**HEAD, **body}).encode()


def at(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def config_of(body: Mapping[str, Any]) -> AgentConfig:
    return agent_config(read_config("f.yaml", text(body)))


# Each has line and column, which depend on how the text is laid out: tests/unit/cli/test_error_lines.py.
def problems_of(body: Mapping[str, Any]) -> list[str]:
    with pytest.raises(ConfigProblems) as caught:
        check_config("f.yaml", text(body))
    return [re.sub(r"^f\.yaml:\d+:\d+: ", "f.yaml: ", str(problem)) for problem in caught.value.problems]


def leaves(of: msgspec.Struct, field: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in of.__struct_fields__:
        value, here = getattr(of, name), (*field, name)
        if isinstance(value, msgspec.Struct):
            yield from leaves(value, here)
        elif name == "feature_gates":
            yield from ((*here, gate) for gate in FEATURE_GATES)
        else:
            yield here


def value_of(config: AgentConfig, field: tuple[str, ...]) -> Any:
    value: Any = config
    for name in field:
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value


_PER_S = {"ns": NS_PER_S, "s": 1}


def ranges(setting: Setting) -> list[msgspec.Meta]:
    """Return what its type says of the least and the most."""
    return [each for each in getattr(setting.type, "__metadata__", ()) if isinstance(each, msgspec.Meta)]


def another(setting: Setting, now: Any) -> Any:
    """Return a value of the file that is not the one in force, and that the range allows."""
    if setting.form == "duration":
        is_long = any((each.ge or 0) > 3 * _PER_S[setting.field[-1].rpartition("_")[2]] for each in ranges(setting))
        return next(each for each in (("1m30s", "3m") if is_long else ("3s", "2s")) if each != file_value(setting, now))
    if setting.form == "quantity":
        return "3Mi"
    of = get_args(setting.type)[0] if hasattr(setting.type, "__metadata__") else setting.type
    if get_origin(of) in (tuple, frozenset):
        item = get_args(of)[0]
        if get_origin(item) is Literal:
            return [next(word for word in get_args(item) if word not in now)]
        if item is ShadowConfiguration:
            return [{"name": "eager", "settings": {"memoryEvictThresholdPercent": 70}}]
        if item is WebhookHook:
            return [msgspec.json.decode(msgspec.json.encode(WebhookHook(name="chat", url="https://chat.example/")))]
        text = (
            "prod-*" if "exemptions" in setting.field else "some=thing" if "katalystEviction" in setting.field else "/a"
        )
        return [next(iter(item)).value if isinstance(item, enum.EnumMeta) else text]
    if of is bool:
        return not now
    if of in (int, float):
        least = max((each.ge or 0 for each in ranges(setting)), default=0)
        return next(each for each in (max(1, least), max(0, least + 1), 0) if each != now)
    if of in (str, Path):
        patterns = [each.pattern for each in getattr(setting.type, "__metadata__", ()) if each.pattern]
        return next(
            each for each in ("/some/thing", "15%", "07") if all(re.search(pattern, each) for pattern in patterns)
        )
    return next(word for word in get_args(of) if word != now)


def test_every_field_of_every_setting_has_a_place_of_its_own() -> None:
    in_file = [setting.field for setting in settings()]
    assert set(in_file) == set(leaves(AgentConfig())) - NEITHER_MAY_BE_SET
    assert len({setting.path for setting in settings()}) == len(in_file)
    for struct, name in ((EvictSettings, "eviction"), (GuardLimits, "guards"), (EmergencySettings, "emergency")):
        reached = {field[1] for field in in_file if field[0] == name}
        assert reached == set(struct.__struct_fields__) - {"strict_compat"}


@pytest.mark.parametrize("setting", settings(), ids=lambda setting: setting.path)
class TestSetting:
    def test_the_file_sets_it(self, setting: Setting) -> None:
        # What contradicts a single setting is what it depends on.
        around: dict[str, Any] = {
            "emergency.action": {"source": {"type": "api"}},
            "nodeMark.type": {"source": {"type": "api"}},
            "sampling.floor": {"sampling": {"cap": "5s"}},
        }.get(setting.path, {})
        base = config_of(around)
        written = another(setting, value_of(base, setting.field))
        given = read_config("f.yaml", text(laid_over(around, at(setting.path, written))))
        config = agent_config(given)
        assert file_value(setting, value_of(config, setting.field)) == written
        assert value_of(config, setting.field) != value_of(base, setting.field)
        assert setting.path in places(given)
        assert setting.path in differences(given)

    def test_another_type_and_null_are_refused_by_the_file_and_by_its_schema(self, setting: Setting) -> None:
        body = at(setting.path, {"no": "such"})
        (problem,) = problems_of(body)
        assert problem.startswith(f"f.yaml: {setting.path}: ")
        with pytest.raises(jsonschema.ValidationError):
            schema().validate({**HEAD, **body})
        # Of null where there is always a value.
        body = at(setting.path, None)
        if setting.is_nullable:
            config_of(body)
            schema().validate({**HEAD, **body})
        else:
            assert len(problems_of(body)) == 1
            with pytest.raises(jsonschema.ValidationError):
                schema().validate({**HEAD, **body})


def test_an_empty_file_is_the_defaults() -> None:
    assert config_of({}) == agent_config({}) == AgentConfig()
    nothing: dict[str, Any] = {"source": None, "guards": {}, "eviction": {"ladder": None}}
    assert config_of(nothing) == AgentConfig()
    schema().validate({**HEAD, **nothing})
    with pytest.raises(jsonschema.ValidationError):
        schema().validate(None)
    assert differences(read_config("f.yaml", text({}))) == {}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"source": "api", "compat": "strict"},
        {
            "source": "kubelet",
            "guards": {"useless_after": None, "pods_max_age_ns": 1500 * NS_PER_MS},
            "files": (Path("a b: c.yaml"), Path("#")),
            "node_name": "no",
            "listen": "",
        },
    ],
)
def test_the_text_of_a_configuration_says_the_same(given: dict[str, Any]) -> None:
    config = agent_config(given)
    shown = config_text(config)
    assert agent_config(read_config("shown.yaml", shown.encode())) == config
    schema().validate(yaml.safe_load(shown))
    assert max(map(len, shown.splitlines())) <= 110


def test_the_schema_is_one_and_has_every_default() -> None:
    schema().check_schema(schema().schema)
    for setting in settings():
        of = schema().schema
        for name in setting.path.split("."):
            of = of["properties"][name]
        assert of["default"] == file_value(setting, setting.default)
        assert of["description"] == setting.why
        jsonschema.validate(of["default"], of)


def test_everything_that_is_wrong_is_reported_at_once() -> None:
    assert problems_of(
        {
            "apiVersion": "v1",
            "enforce": True,
            "guard": {},
            "sampling": 3,
            "source": {"type": "etcd", "kubelet": {"uri": "x"}},
            "guards": {"evictionsPerMinute": -1, "podsMaxAge": 30, "lostMaxRatio": 2, "clockJumpMax": "-1s"},
            "eviction": {"coolTime": "4 s", "ladder": {"rungs": ["evict", "jump"]}},
        }
    ) == [
        "f.yaml: apiVersion: 'v1': must be koordebpf.io/v1alpha1",
        "f.yaml: enforce: True: must not be in a file: type koordebpf run --enforce",
        "f.yaml: eviction.coolTime: '4 s': must be a duration such as 500ms, 4s or 1h30m",
        "f.yaml: eviction.ladder.rungs[1]: 'jump': must be one of brake, evict, freeze, kill, reclaim",
        "f.yaml: guard: {}: no such field; did you mean guards?",
        "f.yaml: guards.clockJumpMax: '-1s': must be a duration such as 500ms, 4s or 1h30m",
        "f.yaml: guards.evictionsPerMinute: -1: must be an integer >= 0",
        "f.yaml: guards.lostMaxRatio: 2: must be a number <= 1.0",
        "f.yaml: guards.podsMaxAge: 30: must be a duration such as 500ms, 4s or 1h30m",
        "f.yaml: sampling: 3: must be an object",
        "f.yaml: source.kubelet.uri: 'x': no such field; known are url, tokenFile, caFile, insecure",
        "f.yaml: source.type: 'etcd': must be one of api, file, kubelet",
    ]


@pytest.mark.parametrize("enforce", [True, False, None])
def test_no_file_says_whether_to_enforce(enforce: bool | None) -> None:
    (problem,) = problems_of({"enforce": enforce})
    assert "type koordebpf run --enforce" in problem


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            {"sampling": {"floor": "100ms", "cap": "50ms"}},
            "sampling.cap: '50 ms': must be sampling.floor (100 ms) or more",
        ),
        ({"sampling": {"floor": "10us"}}, "sampling.floor: '10us': must be 1ms or more"),
        ({"sampling": {"cap": "11s"}}, "sampling.cap: '11s': must be 1ms or more and 10s or less"),
        ({"sampling": {"cap": "100000h"}}, "sampling.cap: '100000h': must be 10 years or less"),
        ({"sampling": {"cap": f"{10**17}h"}}, f"sampling.cap: '{10**17}h': must be 10 years or less"),
        (
            {"compat": "strict", "eviction": {"spreadOwners": True}},
            "eviction.spreadOwners: True: must be false with compat: strict, which is another order",
        ),
        (
            {"nodeMark": {"type": "taint"}},
            "nodeMark.type: 'taint': needs source api or kubelet: files have no Node",
        ),
        (
            {"emergency": {"action": "kill-be"}},
            "emergency.action: 'kill-be': needs source api; with another one executor.killAfter serves",
        ),
        (
            {"source": {"type": "api"}, "emergency": {"action": "kill-be", "after": "1m"}},
            "emergency.after: '60 s': must be guards.podsMaxAge (90 s) or more: "
            "until then the list of pods counts as fresh",
        ),
        (
            {"source": {"type": "api"}, "emergency": {"action": "kill-be", "maxAge": "2m"}},
            "emergency.maxAge: '120 s': must be more than emergency.after (120 s)",
        ),
        (
            {"eviction": {"exemptions": {"qosLabels": ["Team A"]}}},
            "eviction.exemptions.qosLabels: 'Team A': must be a namespace, a pattern of one with * and ?,"
            " or a selector of labels",
        ),
        (
            {"eviction": {"exemptions": {"qosLabels": [{"matchExpressions": [{"key": "a", "operator": "In"}]}]}}},
            "eviction.exemptions.qosLabels.matchExpressions: 'a': must have values with operator In",
        ),
        (
            {"eviction": {"exemptions": {"qosLabels": [{"matchLabels": {"a b": "c"}}]}}},
            "eviction.exemptions.qosLabels: 'a b': must be the key of a label",
        ),
        (
            {"source": {"type": "api"}, "eviction": {"exemptions": {"budgets": ["prod-*"]}}},
            "eviction.exemptions.budgets: ['prod-*']: needs executor.killAfter with executor.type api:"
            " the API server honours every PodDisruptionBudget",
        ),
    ],
)
def test_ranges_and_contradictions(body: dict[str, Any], sentence: str) -> None:
    assert problems_of(body) == [f"f.yaml: {sentence}"]


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (b"", "must hold one AgentConfiguration"),
        (b"- 1", "must hold one AgentConfiguration"),
        (b"a: 1\n---\na: 1", "must hold one AgentConfiguration"),
        (b"a: [", "must be whole YAML"),
        (b"{", "must be whole JSON"),
        (b"\xff", "must be whole YAML"),
        (b"sampling: {}\nsampling: {}", "the key 'sampling' is there twice"),
    ],
)
def test_what_is_no_file_at_all(written: bytes, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config("f.yaml", written)
    assert not isinstance(caught.value, ConfigProblems)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("f.yaml:")


@pytest.mark.parametrize(
    ("written", "ns"),
    [("0", 0), ("1500us", 1_500_000), ("1.5s", 1_500_000_000), ("1m30s", 90 * NS_PER_S), ("2h", 7200 * NS_PER_S)],
)
def test_durations_in_kubernetes_form(written: str, ns: int) -> None:
    assert config_of({"eviction": {"minAge": written}}).eviction.min_age_ns == ns


@pytest.mark.parametrize("written", ["4", "4d", "s", "", "1e3s", "+1s", " 4s", 4, 4.5, True, ["4s"]])
def test_what_is_no_duration(written: object) -> None:
    assert len(problems_of({"eviction": {"minAge": written}})) == 1
    with pytest.raises(jsonschema.ValidationError):
        schema().validate({**HEAD, "eviction": {"minAge": written}})


def test_what_depends_on_the_source_and_on_compat() -> None:
    api = config_of({"source": {"type": "api"}})
    assert (api.executor, api.guards.pods_max_age_ns) == ("api", 90 * NS_PER_S)
    assert AgentConfig().executor == "cgroup"
    written = {"source": {"type": "api"}, "executor": {"type": "cgroup"}, "guards": {"podsMaxAge": "5s"}}
    assert config_of(written).executor == "cgroup"
    assert config_of(written).guards.pods_max_age_ns == 5 * NS_PER_S

    strict = config_of({"compat": "strict"})
    assert strict.eviction.strict_compat
    assert {name for name, is_on in strict.feature_gates.items() if is_on} == {"BECPUSuppress"}  # as in koordlet
    assert (strict.eviction.prefer_aggressor, strict.eviction.spread_owners) == (False, False)
    chosen = config_of({"compat": "strict", "featureGates": {"MemoryEvict": True}})
    assert chosen.feature_gates == {**strict.feature_gates, "MemoryEvict": True}


def test_differences_are_those_from_the_defaults_of_the_same_source() -> None:
    given = read_config("f", text({"source": {"type": "api"}, "executor": {"type": "api"}, "sampling": {"cap": "2s"}}))
    assert differences(given) == {"source.type": ("file", "api"), "sampling.cap": ("1s", "2s")}


def test_namespaces_are_selected_by_name_and_by_label() -> None:
    written = ["infra", "prod-*", {"matchExpressions": [{"key": "x/a", "operator": "NotIn", "values": ["b"]}]}]
    written.append({"matchLabels": {"tier": "gold"}})
    body = {"eviction": {"exemptions": {"policies": written}}}
    config = config_of(body)
    selector = NamespaceSelector({}, (LabelExpression("x/a", "NotIn", ("b",)),))
    wanted = frozenset({"infra", "prod-*", selector, NamespaceSelector({"tier": "gold"})})
    assert config.eviction.exemptions.policies == wanted
    assert asked_labels(config.eviction.exemptions) == {"x/a", "tier"}
    assert asked_labels(config_of({"eviction": {"exemptions": {"policies": ["infra"]}}}).eviction.exemptions) is None
    # What is shown says the same, and the schema takes it.
    assert read_config("f.yaml", config_text(config).encode())["eviction"]["exemptions"]["policies"] == wanted
    schema().validate({**HEAD, **body})
    for wrong in (
        {"matchLabel": {}},
        {"matchExpressions": [{"key": "a", "operator": "Is"}]},
        {"matchLabels": {"a": 1}},
    ):
        wrong_body = {"eviction": {"exemptions": {"policies": [wrong]}}}
        assert len(problems_of(wrong_body)) == 1
        with pytest.raises(jsonschema.ValidationError):
            schema().validate({**HEAD, **wrong_body})


@pytest.mark.parametrize("written", [1.5, "5m", "+5", "-1", ".5Gi", "2GiB", True, "9" * 30])
def test_what_is_no_number_of_bytes_is_refused(written: object) -> None:
    path = "eviction.katalyst.inner.systemMemory.freeMinimum"
    (problem,) = problems_of(at(path, written))
    assert problem.startswith(f"f.yaml: {path}: ")


def test_more_bytes_than_64_bits_hold_are_refused() -> None:
    (problem,) = problems_of(at("strategies.proactiveReclaim.floor", "20E"))
    assert problem == f"f.yaml: strategies.proactiveReclaim.floor: '20E': must be {2**63 - 1} or less"


@pytest.mark.parametrize(("written", "number"), [("10Ki", 10 << 10), ("1.5Gi", 3 << 29), ("2k", 2000), (7, 7)])
def test_bytes_may_be_written_as_quantities(written: object, number: int) -> None:
    config = config_of(at("eviction.katalyst.inner.systemMemory.freeMinimum", written))
    assert config.strategies.katalystEviction.inner.systemMemory.free_minimum_bytes == number


@pytest.mark.parametrize(
    "written", ["150%", "100.1%", "-5%", "-1", "0", "0.0Gi", "5 %", "%", "", "10GiB", "1e", "٣%", "5%\n", 5, "1" * 40]
)
def test_what_is_no_threshold_of_a_filesystem_is_refused_with_its_rule(written: object) -> None:
    path = "eviction.katalyst.inner.rootfsPressure.minFree"
    (problem,) = problems_of(at(path, written))
    assert problem.startswith(f"f.yaml: {path}: {written!r}: must be a percentage up to 100% or a positive quantity")
    with pytest.raises(jsonschema.ValidationError):
        schema().validate({**HEAD, **at(path, written)})


@pytest.mark.parametrize("written", ["0%", "100%", "15%", "7.5%", "10Gi", "0.5", "1e9", "200000"])
def test_a_threshold_of_a_filesystem_is_a_percentage_or_a_quantity(written: str) -> None:
    config = config_of(at("eviction.katalyst.inner.rootfsOveruse.shared", written))
    assert config.strategies.katalystEviction.inner.rootfsOveruse.shared == written
