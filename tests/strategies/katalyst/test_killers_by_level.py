"""Which killer a pod of a QoS level gets, and with which grace period."""

from __future__ import annotations

import pytest

from koordebpf.slo.katalyst import QosLevel
from koordebpf.state.pods.requests import PodTerms
from koordebpf.state.view import KillerName, PodView
from koordebpf.strategies.katalyst.plugin import KatalystPod
from koordebpf.strategies.katalyst.requests import Wanted
from koordebpf.strategies.katalyst.settings import LONGEST_STOP_S, KillerSettings, grace_s

SOME = KillerSettings("eviction-api-killer", "deletion-api-killer", "container-killer", "cgroup-killer")


def kpod(level: QosLevel | None = "shared_cores", own_s: int = 30) -> KatalystPod:
    view = PodView("u", "ns", "p", "Running", False, "Burstable", "", 0, None, False, terms=PodTerms(grace_s=own_s))
    return KatalystPod(view, level)


@pytest.mark.parametrize(
    ("level", "killer"),
    [
        ("shared_cores", "delete"),
        ("reclaimed_cores", "cri"),
        ("dedicated_cores", "cgroup"),
        ("system_cores", "api"),
        (None, "api"),
    ],
)
def test_a_level_has_its_killer_and_what_has_none_the_default(level: QosLevel | None, killer: KillerName) -> None:
    assert SOME.of(kpod(level)) == killer


def test_where_no_killer_is_named_the_agents_own_executor_evicts() -> None:
    assert KillerSettings().of(kpod()) is None
    assert KillerSettings(reclaimed="container-killer").of(kpod()) is None


@pytest.mark.parametrize("by", ["api", "delete"])
def test_the_api_server_gives_a_pod_its_own_grace_period(by: KillerName) -> None:
    assert grace_s(Wanted("u", "p", "force", "r"), kpod(), by) is None
    assert grace_s(Wanted("u", "p", "force", "r", 0), kpod(), by) == 0
    assert grace_s(Wanted("u", "p", "force", "r", 90), kpod(), by) == 90


def test_the_runtime_is_given_a_pods_own_grace_period_and_never_more_than_a_minute() -> None:
    assert grace_s(Wanted("u", "p", "force", "r"), kpod(), "cri") == 30
    assert grace_s(Wanted("u", "p", "force", "r", 0), kpod(), "cri") == 0
    assert grace_s(Wanted("u", "p", "force", "r"), kpod(own_s=86400), "cri") == LONGEST_STOP_S
    assert grace_s(Wanted("u", "p", "force", "r", 86400), kpod(), "cri") == LONGEST_STOP_S
