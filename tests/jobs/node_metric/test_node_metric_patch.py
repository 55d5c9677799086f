"""A patch makes of what the server has what it should have, whatever both are; and nothing sent is far off."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koordebpf.jobs.node_metric.sending import Limits, dropped_fields, settled, status_patch, without
from koordebpf.quantity import cpu_text, memory_text, quantity_bytes, quantity_millicpu
from tests.support.json_patch import applied

NAMES = st.sampled_from(["a", "b", "c", "d/e", "f~g", "h"])
MILLICPU, BYTES = st.integers(0, 64_000), st.integers(0, 1 << 38)
USAGE = st.builds(
    lambda cpu, memory: {"resources": {"cpu": cpu_text(cpu), "memory": memory_text(memory)}}, MILLICPU, BYTES
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab/~0", max_size=3),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text("ab/~", min_size=1, max_size=2), below, max_size=3)
    ),
    max_leaves=12,
)


def _sorted_pods(pods: dict[tuple[str, str], tuple[Any, str]]) -> list[dict[str, Any]]:
    return [
        {"namespace": namespace, "name": name, "podUsage": usage, "priority": priority}
        for (namespace, name), (usage, priority) in sorted(pods.items())
    ]


PRIORITIES = st.sampled_from(["koord-prod", "koord-batch"])
PODS = st.dictionaries(st.tuples(NAMES, NAMES), st.tuples(USAGE, PRIORITIES), max_size=12).map(_sorted_pods)
AGGREGATED = st.lists(
    st.builds(
        lambda duration, usage: {"duration": duration, "usage": usage},
        st.sampled_from(["5m0s", "10m0s", "30m0s"]),
        st.dictionaries(st.sampled_from(["avg", "p50", "p99"]), USAGE | st.just({}), max_size=3),
    ),
    unique_by=lambda each: str(each["duration"]),
    max_size=3,
)
STATUS = st.fixed_dictionaries(
    {"updateTime": st.sampled_from(["1", "2"]), "nodeMetric": st.fixed_dictionaries({"nodeUsage": USAGE})},
    optional={"podsMetric": PODS, "prodPeakMetric": st.fixed_dictionaries({"resource": USAGE})},
)
WITHIN = Limits(ratio=0.05, total_ratio=0.02, millicpu=16, memory_bytes=64 << 20)


def _patched(base: Any, target: Any) -> Any:
    there = {"metadata": {"resourceVersion": "7"}} | ({} if base is None else {"status": base})
    after = applied(there, status_patch("7", base, target))
    assert after["metadata"] == {"resourceVersion": "7"}
    return after["status"]


@given(STATUS, STATUS)
def test_a_patch_of_one_status_makes_the_other(base: dict[str, Any], target: dict[str, Any]) -> None:
    assert _patched(base, target) == target


@given(STATUS, AGGREGATED, AGGREGATED)
def test_entries_of_durations_may_come_in_any_order(base: dict[str, Any], before: Any, after: Any) -> None:
    base["nodeMetric"]["aggregatedNodeUsages"] = before
    target = base | {"nodeMetric": base["nodeMetric"] | {"aggregatedNodeUsages": after}}
    assert _patched(base, target) == target


@given(JSON, STATUS)
def test_whatever_another_wrote_is_replaced(base: Any, target: dict[str, Any]) -> None:
    assert _patched(base, target) == target
    assert settled(base if isinstance(base, dict) else {}, target, WITHIN) == target


@given(st.dictionaries(st.sampled_from(["podsMetric", "nodeMetric", "a"]), JSON), STATUS)
def test_parts_that_another_wrote_are_replaced(base: dict[str, Any], target: dict[str, Any]) -> None:
    assert _patched(base, settled(base, target, WITHIN)) == settled(base, target, WITHIN)


@given(STATUS, STATUS)
def test_a_patch_is_never_longer_than_the_whole_status(base: dict[str, Any], target: dict[str, Any]) -> None:
    assert len(status_patch("7", base, target)) <= len(status_patch("7", None, target))


@given(STATUS, STATUS)
def test_what_is_sent_is_within_its_limits(base: dict[str, Any], new: dict[str, Any]) -> None:
    made = settled(base, new, WITHIN)
    assert [_who(pod) for pod in made.get("podsMetric", ())] == [_who(pod) for pod in new.get("podsMetric", ())]
    for mine, exact in zip(made.get("podsMetric", ()), new.get("podsMetric", ()), strict=True):
        for off, true, least in _errors(mine["podUsage"], exact["podUsage"]):
            # 0.05 of the old value, which is at most 1/0.95 of the new one.
            assert off <= max(least, 0.05 * true / 0.95 + 1)
    for off, true, least in _errors(made["nodeMetric"]["nodeUsage"], new["nodeMetric"]["nodeUsage"]):
        assert off <= max(least, 0.02 * true / 0.98 + 1)


@given(STATUS, STATUS)
def test_sums_by_priority_are_within_two_percent(base: dict[str, Any], new: dict[str, Any]) -> None:
    made = settled(base, new, WITHIN)
    for priority in ("koord-prod", "koord-batch"):
        for name, number in (("cpu", quantity_millicpu), ("memory", quantity_bytes)):
            mine, exact = (
                sum(
                    number(pod["podUsage"]["resources"][name])
                    for pod in of.get("podsMetric", ())
                    if pod["priority"] == priority
                )
                for of in (made, new)
            )
            assert abs(mine - exact) <= 0.02 * exact


@given(STATUS)
def test_nothing_of_what_did_not_move_is_sent(status: dict[str, Any]) -> None:
    assert settled(status, status, WITHIN) == status
    assert status_patch("7", status, status) == b'[{"op":"replace","path":"/metadata/resourceVersion","value":"7"}]'


@given(STATUS, st.sets(st.sampled_from(["priority", "nodeMetric", "podsMetric", "prodPeakMetric", "podUsage"])))
def test_fields_that_a_definition_lacks_are_found_and_left_out(status: dict[str, Any], lacking: set[str]) -> None:
    def kept(value: Any) -> Any:
        if isinstance(value, list):
            return [kept(each) for each in value]
        if isinstance(value, dict):
            return {name: kept(each) for name, each in value.items() if name not in lacking}
        return value

    found = kept(status)
    fields = dropped_fields(status, found)
    assert without(status, fields) == found
    assert not dropped_fields(without(status, fields), found)


def _who(pod: Any) -> tuple[str, str]:
    return pod["namespace"], pod["name"]


def _errors(mine: Any, exact: Any) -> list[tuple[float, float, float]]:
    there, true = mine["resources"], exact["resources"]
    cpu = quantity_millicpu(true["cpu"])
    memory = quantity_bytes(true["memory"])
    return [
        (abs(quantity_millicpu(there["cpu"]) - cpu), cpu, WITHIN.millicpu),
        (abs(quantity_bytes(there["memory"]) - memory), memory, WITHIN.memory_bytes),
    ]
