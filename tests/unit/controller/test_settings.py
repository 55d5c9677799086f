"""What of a ConfigMap is in force, after good edits and bad ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordebpf.controller.settings import Settings, settings_of
from koordebpf.slo.manager.effective import effective_spec
from koordebpf.slo.manager.render import SPEC_FIELDS
from koordebpf.slo.spec import NodeSLOSpec

THRESHOLD = "resource-threshold-config"
BURST = "cpu-burst-config"
GOOD = json.dumps({"clusterStrategy": {"memoryEvictThresholdPercent": 70}})
BETTER = json.dumps({"clusterStrategy": {"memoryEvictThresholdPercent": 60}})


def config(**cluster: Any) -> str:
    return json.dumps({"clusterStrategy": cluster})


def test_good_keys_are_in_force() -> None:
    settings = settings_of({THRESHOLD: GOOD, BURST: config(policy="auto")}, None)
    assert settings.data == {THRESHOLD: GOOD, BURST: config(policy="auto")}
    assert settings.stale == settings.held == frozenset()


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
        assert settings_of({THRESHOLD: BETTER}, third) == settings_of({THRESHOLD: BETTER}, None)

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


def percent(settings: Settings, pool: str, has: Any = None) -> Any:
    field = "resourceUsedThresholdWithBE"
    part = effective_spec(settings.keys, {"pool": pool}, has={field: has} if has else None)[field]
    return part["enable"], part["memoryEvictThresholdPercent"]


def for_pool(pool: str, percent: Any) -> dict[str, Any]:
    return {"name": pool, "nodeSelector": {"matchLabels": {"pool": pool}}, "memoryEvictThresholdPercent": percent}


@pytest.mark.parametrize("bad", [180, "80", -1])
class TestUnusableEntry:
    def test_with_nothing_earlier_its_nodes_keep_what_they_have_and_the_others_apply(self, bad: Any) -> None:
        settings = settings_of(entries(for_pool("a", bad), for_pool("b", 90)), None)
        assert settings.held == settings.stale == frozenset()
        assert [problem.path for problem in settings.problems] == [
            f"{THRESHOLD}.nodeStrategies[0].memoryEvictThresholdPercent"
        ]
        assert percent(settings, "a") == (False, 70)
        assert percent(settings, "a", {"enable": True, "memoryEvictThresholdPercent": 60}) == (True, 60)
        assert percent(settings, "b") == (True, 90)
        assert settings.messages == {
            THRESHOLD: (
                f"{THRESHOLD}.nodeStrategies[0] (a) is unusable: its nodes keep what they have, and new ones are off",
            )
        }

    def test_it_stays_as_the_last_good_text_has_it(self, bad: Any) -> None:
        last = settings_of(entries(for_pool("a", 80), for_pool("b", 85)), None)
        settings = settings_of(entries(for_pool("b", 90), for_pool("a", bad)), last)
        assert percent(settings, "a") == (True, 80)
        assert percent(settings, "b") == (True, 90)
        again = settings_of(entries(for_pool("a", bad), for_pool("b", 95)), settings)
        assert percent(again, "a") == (True, 80)
        assert percent(again, "b") == (True, 95)
        assert again.messages == {
            THRESHOLD: (f"{THRESHOLD}.nodeStrategies[0] (a) is unusable: its last good value stays in force",)
        }

    def test_it_has_the_last_good_values_on_the_nodes_that_it_selects_now(self, bad: Any) -> None:
        last = settings_of(entries(for_pool("a", 80)), None)
        moved = {**for_pool("a", bad), "nodeSelector": {"matchLabels": {"pool": "c"}}}
        settings = settings_of(entries(moved), last)
        assert percent(settings, "a") == (True, 70)
        assert percent(settings, "c") == (True, 80)


def test_a_lower_mark_that_an_entry_inherits_leaves_it_in_force() -> None:
    cluster = {"enable": True, "memoryEvictLowerPercent": 60}
    text = json.dumps({"clusterStrategy": cluster, "nodeStrategies": [{**for_pool("a", 50), "enable": False}]})
    settings = settings_of({THRESHOLD: text}, None)
    assert percent(settings, "a") == (False, 50)
    assert settings.data == {THRESHOLD: text}
    (fate,) = settings.messages[THRESHOLD]
    assert fate == (
        f"{THRESHOLD}.nodeStrategies[0] (a): memoryEvictThresholdPercent must be greater than memoryEvictLowerPercent"
        " (60), of which it inherits one: it is in force, and agents skip what the two are for"
    )


def test_a_selector_that_cannot_be_read_turns_no_node_on() -> None:
    odd = {"name": "gpu", "nodeSelector": {"matchLabels": {"gpu": True}}, "enable": False}
    settings = settings_of(entries(odd), None)
    for labels, enable in (({"gpu": "true"}, False), ({"pool": "a"}, True)):
        assert effective_spec(settings.keys, labels)["resourceUsedThresholdWithBE"]["enable"] is enable
    on = {"resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 60}}
    part = effective_spec(settings.keys, {"gpu": "true"}, has=on)["resourceUsedThresholdWithBE"]
    assert part == {"enable": False, "memoryEvictThresholdPercent": 60}


def test_a_selector_that_cannot_be_read_any_more_switches_off_though_its_last_good_one_stays() -> None:
    odd = {"name": "gpu", "nodeSelector": {"matchLabels": {"gpu": 1}}, "enable": False}
    last = settings_of(entries({**odd, "nodeSelector": {"matchLabels": {"gpu": "2"}}}), None)
    settings = settings_of(entries(odd), last)
    for labels, enable in (({"gpu": "1"}, False), ({"gpu": "2"}, False), ({"pool": "a"}, True)):
        assert effective_spec(settings.keys, labels)["resourceUsedThresholdWithBE"]["enable"] is enable
    (fate,) = settings.messages[THRESHOLD]
    assert fate.endswith("its last good value stays in force, but enable is off")


def test_off_counts_also_where_the_object_has_something_odd() -> None:
    text = json.dumps({"clusterStrategy": {"enable": False, "memoryEvictThresholdPercent": 700}})
    for odd in (5, "on", [{"enable": True}]):
        part = effective_spec(settings_of({THRESHOLD: text}, None).keys, {}, has={"resourceUsedThresholdWithBE": odd})
        assert part["resourceUsedThresholdWithBE"]["enable"] is False


def test_switches_of_texts_do_not_pile_up() -> None:
    settings = settings_of({THRESHOLD: config(enable=True)}, None)
    for percent in range(700, 800):
        settings = settings_of(
            {THRESHOLD: config(enable=bool(percent % 2), memoryEvictThresholdPercent=percent)}, settings
        )
    assert len(settings.keys[THRESHOLD].switches) == 3


def test_what_an_unusable_text_switched_off_stays_off_while_nothing_can_be_parsed() -> None:
    """The last good text has it on; the newest that is JSON says off, and is unusable as a whole."""
    on = settings_of(entries({**for_pool("a", 50), "enable": True}), None)
    strategies = {"nodeStrategies": [{**for_pool("a", 50), "enable": False}]}
    text = json.dumps({"clusterStrategy": {"memoryEvictThresholdPercent": 700}, **strategies})
    off = settings_of({THRESHOLD: text}, on)
    assert percent(on, "a") == (True, 50)
    assert percent(off, "a") == percent(settings_of({THRESHOLD: "{"}, off), "a") == (False, 50)
    assert percent(settings_of(entries({**for_pool("a", 50), "enable": True}), off), "a") == (True, 50)


def test_what_nothing_reads_does_not_get_into_an_object() -> None:
    entry = {**for_pool("a", "50"), "enable": False, "later": {"enable": False}}
    part = effective_spec(settings_of(entries(entry), None).keys, {"pool": "a"})["resourceUsedThresholdWithBE"]
    assert part["enable"] is False
    assert "later" not in part


def test_a_selector_that_is_none_is_its_entrys_problem_alone() -> None:
    settings = settings_of(entries({"nodeSelector": "all", "memoryEvictThresholdPercent": 60}, for_pool("b", 90)), None)
    assert settings.held == frozenset()
    assert [problem.path for problem in settings.problems] == [f"{THRESHOLD}.nodeStrategies[0].nodeSelector"]
    assert percent(settings, "b") == (True, 90)
