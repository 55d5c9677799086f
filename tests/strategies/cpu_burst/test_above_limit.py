"""Of which CPU limits a kubelet may have written the quota: the doctor compares the files with the largest."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koordebpf.kube.cache.objects import Pod
from koordebpf.strategies.cpu_burst.values import is_above_limit, written_limits

IN_PROGRESS = {"type": "PodResizeInProgress", "status": "True"}


def cpu(limit: str | float | None) -> dict[str, Any]:
    return {} if limit is None else {"limits": {"cpu": limit}}


def known(asked: object, *, pod: object = None, meta: object = None, **container: object) -> list[int]:
    """Return the limits that are known of a pod with one container."""
    status = {"name": "c", "containerID": "containerd://" + "a" * 64, **container}
    made = {
        "metadata": {"name": "p", "namespace": "d", "uid": "u", **(meta or {})},  # type: ignore[dict-item]
        "spec": {"containers": [{"name": "c", "resources": asked}]},
        "status": {"phase": "Running", "containerStatuses": [status], **(pod or {})},  # type: ignore[dict-item]
    }
    return [each.millicpu for each in written_limits(msgspec.convert(made, Pod))]


@pytest.mark.parametrize(("asked", "actual"), [("2", "1"), ("1", "2")])
def test_while_a_resize_is_in_progress_the_larger_limit_counts(asked: str, actual: str) -> None:
    assert known(cpu(asked), resources=cpu(actual), pod={"conditions": [IN_PROGRESS]}) == [2000]
    assert known(cpu(asked), resources=cpu(actual)) == [2000]
    assert not is_above_limit(200_000, 100_000, 2000)


@pytest.mark.parametrize(
    "pod",
    [
        {"conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]},
        {"resize": "Infeasible"},
    ],
)
def test_of_a_resize_that_was_refused_the_actual_limit_counts(pod: object) -> None:
    assert known(cpu("8"), resources=cpu("2"), pod=pod) == [2000]


@pytest.mark.parametrize(("asked", "actual"), [(None, "2"), ("2", None)])
def test_a_limit_that_is_added_or_removed_is_not_known_meanwhile(asked: str | None, actual: str | None) -> None:
    assert known(cpu(asked), resources=cpu(actual)) == []


def test_without_actual_resources_the_limit_of_an_unedited_pod_counts() -> None:
    assert known(cpu("1")) == known(cpu("1"), meta={"generation": 1}) == [1000]


@pytest.mark.parametrize("edited", [{"meta": {"generation": 2}}, {"pod": {"resize": "Proposed"}}])
def test_without_actual_resources_nothing_is_known_of_an_edited_pod(edited: dict[str, Any]) -> None:
    assert known(cpu("1"), **edited) == []
    assert known(cpu("1"), resources=cpu("1"), **edited) == [1000]


def test_what_has_no_limit_or_is_not_there_is_left_out() -> None:
    assert known(cpu(None)) == known(cpu("1"), containerID="") == known(cpu("1"), name="other") == []
    assert known({"limits": {"kubernetes.io/batch-cpu": "500"}}) == []


def test_a_quantity_that_is_none_is_left_out() -> None:
    assert known(cpu("x")) == known(cpu(-1)) == []


@pytest.mark.parametrize(
    ("quota_us", "is_above"), [(12_300, False), (13_000, False), (13_001, True)], ids=["exact", "rounded up", "above"]
)
def test_a_quota_is_rounded_up_to_a_whole_percent_of_a_cpu(quota_us: int, is_above: bool) -> None:
    assert is_above_limit(quota_us, 100_000, 123) is is_above
    assert is_above_limit(2 * quota_us, 200_000, 123) is is_above
