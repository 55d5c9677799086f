"""What of a ConfigMap is in force, after good edits and bad ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordebpf.controller.settings import Settings, settings_of
from koordebpf.slo.manager.render import SPEC_FIELDS, render_spec
from koordebpf.slo.spec import NodeSLOSpec

THRESHOLD = "resource-threshold-config"
BURST = "cpu-burst-config"
GOOD = json.dumps({"clusterStrategy": {"memoryEvictThresholdPercent": 70}})
BETTER = json.dumps({"clusterStrategy": {"memoryEvictThresholdPercent": 60}})


def config(**cluster: Any) -> str:
    return json.dumps({"clusterStrategy": cluster})


def test_good_keys_are_in_force() -> None:
    settings = settings_of({THRESHOLD: GOOD, BURST: config(policy="auto")}, None)
    assert settings == Settings({THRESHOLD: GOOD, BURST: config(policy="auto")})


def test_each_field_is_one_of_the_spec() -> None:
    assert set(SPEC_FIELDS.values()) <= set(NodeSLOSpec.__struct_fields__)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "ParseConfigFail"),
        ("[]", "ConfigParamInvalid"),
        (config(memoryEvictThresholdPercent=700), "ConfigParamInvalid"),
        (config(memoryEvictThresholdPercent="70"), "ConfigParamInvalid"),
        (config(memoryEvictThresholdPercent=60, memoryEvictLowerPercent=65), "ConfigParamInvalid"),
        (config(cpuSuppressPolicy="half"), "ConfigParamInvalid"),
        (json.dumps({"nodeStrategies": {"nodeSelector": {}}}), "ConfigParamInvalid"),
    ],
)
class TestUnusable:
    def test_the_last_good_text_stays(self, text: str, reason: str) -> None:
        last = settings_of({THRESHOLD: GOOD, BURST: config(policy="auto")}, None)
        settings = settings_of({THRESHOLD: text, BURST: config(policy="none")}, last)
        assert settings.data == {THRESHOLD: GOOD, BURST: config(policy="none")}
        assert settings.stale == {THRESHOLD}
        assert settings.held == frozenset()
        assert [problem.reason for problem in settings.problems] == [reason]

    def test_it_survives_further_bad_edits_and_is_corrected(self, text: str, reason: str) -> None:
        first = settings_of({THRESHOLD: GOOD}, None)
        second = settings_of({THRESHOLD: text}, first)
        third = settings_of({THRESHOLD: text, BURST: "{}"}, second)
        assert third.data[THRESHOLD] == GOOD
        assert settings_of({THRESHOLD: BETTER}, third) == Settings({THRESHOLD: BETTER})

    def test_without_a_good_one_it_is_held(self, text: str, reason: str) -> None:
        settings = settings_of({THRESHOLD: text}, None)
        assert settings.data == {}
        assert settings.held == settings.stale == {THRESHOLD}
        assert settings_of({THRESHOLD: text}, settings).held == {THRESHOLD}


def test_a_key_that_is_gone_is_the_default_again() -> None:
    last = settings_of({THRESHOLD: GOOD}, None)
    assert settings_of({}, last) == Settings()
    assert settings_of({}, settings_of({THRESHOLD: "{"}, last)) == Settings()


def test_selectors_that_overlap_are_reported_and_in_force() -> None:
    entry = {"nodeSelector": {"matchLabels": {"pool": "a"}}, "memoryEvictThresholdPercent": 50}
    text = json.dumps({"nodeStrategies": [entry | {"name": "one"}, entry | {"name": "two"}]})
    settings = settings_of({THRESHOLD: text}, None, {"n1": {"pool": "a"}})
    assert settings.data == {THRESHOLD: text}
    assert [problem.reason for problem in settings.problems] == ["NodeStrategiesOverlap", "ExistNodeConfict"]


def test_an_empty_selector_is_reported_and_in_force() -> None:
    text = json.dumps({"nodeStrategies": [{"name": "all", "nodeSelector": {}, "memoryEvictThresholdPercent": 50}]})
    settings = settings_of({THRESHOLD: text}, None)
    assert settings.data == {THRESHOLD: text}
    assert [problem.path for problem in settings.problems] == [f"{THRESHOLD}.nodeStrategies[0].nodeSelector"]


def test_keys_of_the_manager_alone_are_checked_and_not_kept() -> None:
    settings = settings_of({"colocation-config": "{", "what-is-this": "{}"}, None)
    assert settings.data == {}
    assert settings.stale == frozenset()
    assert [problem.path for problem in settings.problems] == ["colocation-config", "what-is-this"]


def entries(*entries: Any) -> dict[str, str]:
    return {THRESHOLD: json.dumps({"clusterStrategy": {"enable": True}, "nodeStrategies": list(entries)})}


def percent(settings: Settings, pool: str) -> Any:
    part = render_spec(settings.data, {"pool": pool})["resourceUsedThresholdWithBE"]
    return part["enable"], part["memoryEvictThresholdPercent"]


def for_pool(pool: str, percent: Any) -> dict[str, Any]:
    return {"name": pool, "nodeSelector": {"matchLabels": {"pool": pool}}, "memoryEvictThresholdPercent": percent}


@pytest.mark.parametrize("bad", [180, "80", -1])
class TestUnusableEntry:
    def test_with_nothing_earlier_it_is_left_out_and_the_others_apply(self, bad: Any) -> None:
        settings = settings_of(entries(for_pool("a", bad), for_pool("b", 90)), None)
        assert settings.held == settings.stale == frozenset()
        assert [problem.path for problem in settings.problems] == [
            f"{THRESHOLD}.nodeStrategies[0].memoryEvictThresholdPercent"
        ]
        assert percent(settings, "a") == (True, 70)
        assert percent(settings, "b") == (True, 90)

    def test_it_stays_as_the_last_good_text_has_it(self, bad: Any) -> None:
        last = settings_of(entries(for_pool("a", 80), for_pool("b", 85)), None)
        settings = settings_of(entries(for_pool("b", 90), for_pool("a", bad)), last)
        assert percent(settings, "a") == (True, 80)
        assert percent(settings, "b") == (True, 90)
        again = settings_of(entries(for_pool("a", bad), for_pool("b", 95)), settings)
        assert percent(again, "a") == (True, 80)
        assert percent(again, "b") == (True, 95)


def test_a_selector_that_is_none_is_its_entrys_problem_alone() -> None:
    settings = settings_of(entries({"nodeSelector": "all", "memoryEvictThresholdPercent": 60}, for_pool("b", 90)), None)
    assert settings.held == frozenset()
    assert [problem.path for problem in settings.problems] == [f"{THRESHOLD}.nodeStrategies[0].nodeSelector"]
    assert percent(settings, "b") == (True, 90)
