"""Whether a Koordinator manager runs, by a Lease that is renewed or is not."""

from __future__ import annotations

from typing import cast

import pytest

from koordebpf.controller.batch.start import KoordManager
from koordebpf.errors import KubeDenied, KubeError, KubeGone
from koordebpf.kube.clients.lease import Lease, LeaseClient, LeaseMeta, LeaseSpec
from koordebpf.units import NS_PER_S

GONE = KubeGone("404", 404)


def lease(version: int, *, holder: str | None = "koord", lasts_s: int | None = 20) -> Lease:
    return Lease(LeaseMeta("n", "ns", resourceVersion=str(version)), LeaseSpec(holder, lasts_s))


class Rig:
    def __init__(self) -> None:
        self.now_ns, self.reads = 1000 * NS_PER_S, 0
        self.answer: Lease | KubeError = GONE
        self.manager = KoordManager(cast("LeaseClient", self))

    def read(self, *, timeout_s: float) -> Lease:
        self.reads += 1
        if isinstance(self.answer, KubeError):
            raise self.answer
        return self.answer

    def said(self, after_s: float, answer: Lease | KubeError) -> str:
        self.now_ns += int(after_s * NS_PER_S)
        self.answer = answer
        return self.manager.sentence(self.now_ns)

    def runs(self, after_s: float, answer: Lease | KubeError) -> bool:
        return self.said(after_s, answer).startswith("a Koordinator manager runs (koord holds lease ")


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_it_runs_for_as_long_as_its_lease_lasts_after_it_changed(rig: Rig) -> None:
    assert [rig.runs(after_s, lease(1)) for after_s in (0, 5, 15, 5)] == [True, True, True, False]
    assert rig.runs(5, lease(2))


def test_a_lease_that_says_no_duration_lasts_15_s(rig: Rig) -> None:
    assert [rig.runs(after_s, lease(1, lasts_s=None)) for after_s in (0, 15, 5)] == [True, True, False]


@pytest.mark.parametrize("none", [GONE, lease(1, holder=""), lease(1, holder=None)], ids=["gone", "empty", "released"])
def test_without_a_holder_none_runs(none: Lease | KubeError, rig: Rig) -> None:
    assert rig.said(0, none) == ""
    assert rig.runs(5, lease(2))


def test_a_lease_that_was_deleted_and_made_again_is_a_new_one(rig: Rig) -> None:
    assert rig.runs(0, lease(1))
    assert not rig.runs(100, GONE)
    assert rig.runs(5, lease(1))


def test_it_is_read_once_in_five_seconds(rig: Rig) -> None:
    assert [rig.runs(after_s, lease(1)) for after_s in (0, 4.9)] == [True, True]
    assert rig.reads == 1
    assert rig.said(0.1, GONE) == ""
    assert rig.reads == 2


def test_until_it_was_read_once_it_is_not_known_and_then_an_error_changes_nothing(rig: Rig) -> None:
    slow, denied = KubeError("503"), KubeDenied("403", "get", "leases")
    assert rig.said(0, slow) == "whether a Koordinator manager runs is not known yet: 503"
    assert rig.said(5, GONE) == ""
    assert rig.said(5, slow) == ""
    assert rig.runs(5, lease(1))
    assert rig.runs(100, slow)
    assert rig.said(5, denied) == "whether a Koordinator manager runs is not known, so no Node is written: 403"


def test_a_lease_that_was_read_first_is_known(rig: Rig) -> None:
    assert rig.runs(0, lease(1))
    assert rig.runs(5, KubeError("503"))
