"""What Katalyst's two plugins for the image filesystem judge, and whom they choose."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.policy.strategy import Empty
from koordebpf.slo.katalyst import QOS_LEVEL
from koordebpf.state.build import view_of_frame
from koordebpf.strategies.katalyst.plugin import Seen, katalyst_pods
from koordebpf.strategies.katalyst.plugins.rootfs import (
    MAX_AGE_NS,
    ROOTFS_OVERUSE,
    ROOTFS_PRESSURE,
    SCOPE,
    RootfsOveruseSettings,
    RootfsPressureSettings,
    RootfsPressureState,
    amount_of,
    is_short,
    limit_of,
    part_of,
)
from koordebpf.strategies.katalyst.values import (
    Condition,
    EvictAsked,
    ImageFs,
    KatalystMeasured,
    RootfsMeasured,
    RootfsUse,
)
from koordebpf.units import GIB, MIB, NS_PER_S
from tests.support.values.builders import NOW_NS, PodAndMeasure, frame, pod

CAPACITY, INODES = 100 * GIB, 1_000_000
PRESSURE = RootfsPressureSettings(is_on=True, min_free="10%")


def kpod(name: str, level: str = "reclaimed_cores", namespace: str = "default") -> PodAndMeasure:
    made = pod(name, qos=None, kube_qos="Burstable", namespace=namespace, uid=name, shmem=0)
    return replace(made, pod=replace(made.pod, metadata=replace(made.pod.metadata, annotations={QOS_LEVEL: level})))


def image_fs(free_gib: float = 50, inodes_free: int | None = INODES, *, at_s: float = 0) -> ImageFs:
    at_ns = NOW_NS + int(at_s * NS_PER_S)
    return ImageFs("/var/lib/containerd", CAPACITY, int(free_gib * GIB), at_ns, INODES, inodes_free)


def seen(
    *pods: PodAndMeasure,
    fs: ImageFs | None,
    used: dict[str, float] | None = None,
    inodes: dict[str, int] | None = None,
    at_s: float = 0,
    began_s: float = 0,
) -> Seen:
    """`used` in GiB by pod, looked at from `began_s` to a second after it."""
    uids = {*(used or {}), *(inodes or {})}
    uses = {uid: RootfsUse(int((used or {}).get(uid, 0) * GIB), (inodes or {}).get(uid, 10)) for uid in uids}
    began_ns = NOW_NS + int(began_s * NS_PER_S)
    rootfs = RootfsMeasured(began_ns, began_ns + NS_PER_S, uses) if uids else None
    view = replace(view_of_frame(frame(pods)), now_ns=NOW_NS + int(at_s * NS_PER_S))
    active = katalyst_pods(view.pods, {})
    return Seen(view, KatalystMeasured(image_fs=fs, rootfs=rootfs), active, active)


def evicted(here: Seen, settings: RootfsPressureSettings = PRESSURE, top_n: int = 1) -> tuple[str, ...]:
    state = ROOTFS_PRESSURE.judge(here, RootfsPressureState(), settings).state
    return ROOTFS_PRESSURE.top_pods(here, state, settings, top_n)[0].uids


class TestThreshold:
    @pytest.mark.parametrize(
        ("text", "part", "amount"),
        [
            ("15%", 0.15, None),
            ("0.5%", 0.005, None),
            ("10Gi", None, 10 * GIB),
            ("1.5", None, 2),
            ("1e3", None, 1000),
            ("0%", None, None),
            ("100%", None, None),
            ("100.0%", None, None),
            (None, None, None),
        ],
    )
    def test_it_is_a_part_an_amount_or_not_set(self, text: str | None, part: float | None, amount: int | None) -> None:
        assert (part_of(text), amount_of(text)) == (part, amount)

    def test_a_part_is_of_the_capacity(self) -> None:
        assert limit_of("25%", 400) == 100
        assert limit_of("5", 400) == 5
        assert limit_of("100%", 400) is None


class TestPressure:
    @pytest.mark.parametrize(
        ("settings", "fs", "limit"),
        [
            ({"min_free": "10%"}, image_fs(9.9), 10 * GIB),
            ({"min_free": "10%"}, image_fs(10), None),
            ({"min_free": "12Gi"}, image_fs(11), 12 * GIB),
            ({"min_free": "12Gi"}, image_fs(12), None),
            ({"min_free": "0%"}, image_fs(0), None),
            ({"min_free": "100%"}, image_fs(0), None),
            ({}, image_fs(0, 0), None),
            ({"min_inodes_free": "5%"}, image_fs(50, 49_999), 50_000),
            ({"min_inodes_free": "5%"}, image_fs(50, 50_000), None),
            ({"min_inodes_free": "1000"}, image_fs(50, 999), 1000),
        ],
    )
    def test_less_free_than_the_minimum_is_a_shortage(self, settings, fs: ImageFs, limit: float | None) -> None:
        found = ROOTFS_PRESSURE.judge(
            seen(kpod("a"), fs=fs, used={"a": 1}),
            RootfsPressureState(),
            RootfsPressureSettings(is_on=True, **settings),
        )
        assert (found.threshold.value if found.threshold else None) == limit
        assert is_short(fs, RootfsPressureSettings(is_on=True, **settings)) is (limit is not None)

    def test_it_is_a_hard_threshold_with_a_condition_and_both_numbers(self) -> None:
        found = ROOTFS_PRESSURE.judge(seen(fs=image_fs(4), used={"a": 1}), RootfsPressureState(), PRESSURE).threshold
        assert found is not None
        assert (found.met, found.scope, found.grace_s) == ("hard", SCOPE, 0)
        assert (found.value, found.observed, found.operator) == (10 * GIB, 4 * GIB, "less_than")
        assert found.condition == Condition("SystemRootfs", "node", ("NoSchedule",))

    def test_it_is_off_unless_it_is_switched_on(self) -> None:
        here = seen(kpod("a"), fs=image_fs(0), used={"a": 1})
        found = ROOTFS_PRESSURE.judge(here, RootfsPressureState(), RootfsPressureSettings(min_free="10%"))
        assert (found.threshold, found.lacks) == (None, None)
        assert not is_short(image_fs(0), RootfsPressureSettings(min_free="10%"))

    def test_a_small_filesystem_is_not_judged_by_its_bytes_but_by_its_inodes(self) -> None:
        small = replace(image_fs(0, 10), capacity_bytes=9 * GIB)
        both = replace(PRESSURE, min_inodes_free="100")
        assert not is_short(small, PRESSURE)
        assert is_short(small, replace(PRESSURE, min_capacity_bytes=0))
        found = ROOTFS_PRESSURE.judge(seen(fs=small, used={"a": 1}), RootfsPressureState(), both).threshold
        assert found is not None
        assert (found.value, found.observed) == (100, 10)

    def test_a_filesystem_without_inodes_is_not_short_of_them(self) -> None:
        assert not is_short(replace(image_fs(), inodes=None, inodes_free=None), RootfsPressureSettings(is_on=True))
        btrfs = replace(image_fs(), inodes=None, inodes_free=None)
        assert not is_short(btrfs, RootfsPressureSettings(is_on=True, min_inodes_free="100"))

    def test_bytes_come_before_inodes(self) -> None:
        pods = (kpod("bytes"), kpod("inodes"))
        settings = replace(PRESSURE, min_inodes_free="5%")
        uses = {"used": {"bytes": 9, "inodes": 1}, "inodes": {"bytes": 5, "inodes": 90_000}}
        assert evicted(seen(*pods, fs=image_fs(1, 0), **uses), settings) == ("bytes",)
        assert evicted(seen(*pods, fs=image_fs(50, 0), **uses), settings) == ("inodes",)

    def test_the_largest_pod_is_evicted_whatever_its_level(self) -> None:
        pods = (kpod("batch"), kpod("online", "shared_cores"))
        assert evicted(seen(*pods, fs=image_fs(1), used={"batch": 3, "online": 4})) == ("online",)

    def test_reclaimed_pods_above_their_threshold_come_first(self) -> None:
        pods = (kpod("batch"), kpod("small"), kpod("online", "shared_cores"))
        here = seen(*pods, fs=image_fs(1), used={"batch": 3.1, "small": 3, "online": 9})
        for priority in ("3Gi", "3%"):
            settings = replace(PRESSURE, priority_used=priority)
            assert evicted(here, settings, top_n=0) == ("batch", "online", "small")

    def test_pods_below_the_minimum_are_protected_unless_they_have_priority(self) -> None:
        pods = (kpod("batch"), kpod("edge", "shared_cores"), kpod("online", "shared_cores"))
        here = seen(*pods, fs=image_fs(1), used={"batch": 3, "edge": 5, "online": 4.9})
        for least in ("5Gi", "5%"):
            assert evicted(here, replace(PRESSURE, pod_min_used=least), top_n=0) == ("edge",)
            both = replace(PRESSURE, pod_min_used=least, priority_used="2Gi")
            assert evicted(here, both, top_n=0) == ("batch", "edge")

    def test_the_same_rules_hold_for_inodes(self) -> None:
        pods = (kpod("batch"), kpod("edge", "shared_cores"), kpod("online", "shared_cores"))
        inodes = {"batch": 30_000, "edge": 50_000, "online": 49_999}
        settings = RootfsPressureSettings(
            is_on=True, min_inodes_free="5%", pod_min_inodes_used="5%", priority_inodes_used="20k"
        )
        assert evicted(seen(*pods, fs=image_fs(50, 100), inodes=inodes), settings, top_n=0) == ("batch", "edge")

    def test_a_pod_that_was_not_measured_is_not_evicted(self) -> None:
        pods = (kpod("unknown"), kpod("known"))
        assert evicted(seen(*pods, fs=image_fs(1), used={"known": 1}), top_n=0) == ("known",)

    def test_name_and_uid_settle_ties(self) -> None:
        pods = (kpod("b"), kpod("a"))
        assert evicted(seen(*pods, fs=image_fs(1), used={"a": 3, "b": 3})) == ("a",)

    def test_no_pod_is_chosen_by_what_was_measured_before_the_shortage(self) -> None:
        early = seen(kpod("a"), fs=image_fs(1, at_s=10), used={"a": 1}, began_s=9, at_s=11)
        found = ROOTFS_PRESSURE.judge(early, RootfsPressureState(), PRESSURE)
        assert found.threshold is not None
        top, state = ROOTFS_PRESSURE.top_pods(early, found.state, PRESSURE, 1)
        assert top.uids == ()
        later = seen(kpod("a"), fs=image_fs(1, at_s=15), used={"a": 1}, began_s=11, at_s=16)
        state = ROOTFS_PRESSURE.judge(later, state, PRESSURE).state
        assert ROOTFS_PRESSURE.top_pods(later, state, PRESSURE, 1)[0].uids == ("a",)

    def test_a_filesystem_that_recovers_counts_from_its_next_shortage(self) -> None:
        state = ROOTFS_PRESSURE.judge(seen(fs=image_fs(1), used={"a": 1}), RootfsPressureState(), PRESSURE).state
        assert state.short_ns == NOW_NS
        state = ROOTFS_PRESSURE.judge(seen(fs=image_fs(50, at_s=5), used={"a": 1}, at_s=5), state, PRESSURE).state
        assert state.short_ns is None

    def test_the_disk_is_given_time_to_become_free(self) -> None:
        pods = (kpod("a"), kpod("b"))
        state, at = RootfsPressureState(), []
        for at_s in range(0, 90, 5):
            here = seen(*pods, fs=image_fs(1, at_s=at_s), used={"a": 3, "b": 2}, began_s=at_s, at_s=at_s + 2)
            state = ROOTFS_PRESSURE.judge(here, state, PRESSURE).state
            top, state = ROOTFS_PRESSURE.top_pods(here, state, PRESSURE, 1)
            at += [at_s] if top.uids else []
        assert at == [0, 35, 70]

    def test_the_grace_period_is_the_one_that_is_set(self) -> None:
        here = seen(kpod("a"), fs=image_fs(1), used={"a": 1})
        for grace_s in (None, 0, 7):
            settings = replace(PRESSURE, grace_seconds=grace_s)
            state = ROOTFS_PRESSURE.judge(here, RootfsPressureState(), settings).state
            assert ROOTFS_PRESSURE.top_pods(here, state, settings, 1)[0].grace_s == grace_s

    @pytest.mark.parametrize(
        ("here", "lacks"),
        [
            (seen(fs=None), "the image filesystem is not known"),
            (seen(fs=image_fs(1)), "the writable layers of pods were not measured yet"),
            (
                seen(fs=image_fs(1, at_s=400), used={"a": 1}, at_s=400),
                "the writable layers of pods were last measured 399 s ago",
            ),
            (seen(fs=image_fs(50), used={"a": 1}, at_s=301), "the image filesystem has not answered for 301 s"),
        ],
    )
    def test_what_is_not_known_is_said(self, here: Seen, lacks: str) -> None:
        assert ROOTFS_PRESSURE.judge(here, RootfsPressureState(), PRESSURE).lacks == lacks
        assert ROOTFS_OVERUSE.judge(here, Empty(), RootfsOveruseSettings(is_on=True)).lacks == lacks
        assert MAX_AGE_NS == 300 * NS_PER_S

    def test_while_nothing_is_short_layers_need_not_be_known(self) -> None:
        found = ROOTFS_PRESSURE.judge(seen(fs=image_fs(50)), RootfsPressureState(), PRESSURE)
        assert (found.threshold, found.lacks) == (None, None)

    def test_a_filesystem_that_does_not_answer_is_not_short(self) -> None:
        found = ROOTFS_PRESSURE.judge(seen(fs=image_fs(1), used={"a": 1}, at_s=301), RootfsPressureState(), PRESSURE)
        assert found.threshold is None

    def test_a_shortage_taints_the_node_before_pods_are_measured(self) -> None:
        found = ROOTFS_PRESSURE.judge(seen(kpod("a"), fs=image_fs(1)), RootfsPressureState(), PRESSURE)
        assert found.threshold is not None
        assert found.lacks == "the writable layers of pods were not measured yet"
        assert evicted(seen(kpod("a"), fs=image_fs(1))) == ()


class TestOveruse:
    ON = RootfsOveruseSettings(is_on=True, shared="30Gi", reclaimed="30Gi", count=10)
    EVERY = replace(ON, levels=("shared_cores", "reclaimed_cores"), namespaces=())

    def asked(self, *pods: PodAndMeasure, used: dict[str, float], settings: RootfsOveruseSettings) -> list[str]:
        found = ROOTFS_OVERUSE.judge(seen(*pods, fs=image_fs(), used=used), Empty(), settings)
        assert found.threshold is None
        assert not any(each.is_forced for each in found.evict)
        return [each.uid for each in found.evict]

    def test_pods_above_their_threshold_are_asked_for_the_largest_first(self) -> None:
        pods = [kpod(name, "shared_cores") for name in ("a", "b", "c", "d")]
        used = {"a": 31, "b": 40, "c": 30, "d": 1}
        assert self.asked(*pods, used=used, settings=self.ON) == ["b", "a"]
        assert self.asked(*pods, used=used, settings=replace(self.ON, count=1)) == ["b"]
        assert RootfsOveruseSettings().count == 1

    def test_it_is_off_unless_it_is_switched_on(self) -> None:
        assert self.asked(kpod("a", "shared_cores"), used={"a": 99}, settings=replace(self.ON, is_on=False)) == []

    def test_each_level_has_its_own_threshold(self) -> None:
        pods = (kpod("batch"), kpod("online", "shared_cores"))
        used = {"batch": 35, "online": 35}
        assert self.asked(*pods, used=used, settings=replace(self.EVERY, reclaimed="40Gi")) == ["online"]
        assert self.asked(*pods, used=used, settings=replace(self.EVERY, shared="40Gi")) == ["batch"]
        assert self.asked(*pods, used=used, settings=replace(self.EVERY, shared=None, reclaimed=None)) == []

    def test_other_levels_than_those_two_have_none(self) -> None:
        settings = replace(self.EVERY, levels=("shared_cores", "dedicated_cores", "system_cores", "reclaimed_cores"))
        pods = (kpod("dedicated", "dedicated_cores"), kpod("system", "system_cores"), kpod("odd", "no_such_level"))
        assert self.asked(*pods, used={"dedicated": 99, "system": 99, "odd": 99}, settings=settings) == []

    def test_shared_pods_alone_are_judged_and_in_their_namespaces(self) -> None:
        pods = (kpod("batch"), kpod("here", "shared_cores"), kpod("there", "shared_cores", "other"))
        used = {"batch": 99, "here": 99, "there": 99}
        assert self.asked(*pods, used=used, settings=self.ON) == ["here"]
        assert self.asked(*pods, used=used, settings=replace(self.ON, namespaces=())) == ["here", "there"]
        levels = replace(self.ON, levels=("reclaimed_cores",), namespaces=("nowhere",))
        assert self.asked(*pods, used=used, settings=levels) == ["batch"]

    @pytest.mark.parametrize(
        ("threshold", "limit"), [("1Gi", 20), ("25Gi", 25), ("1%", 10), ("40%", 40), ("0%", None), ("100%", None)]
    )
    def test_a_threshold_is_never_below_20_gib_or_a_tenth(self, threshold: str, limit: float | None) -> None:
        settings = replace(self.ON, shared=threshold)
        online = kpod("a", "shared_cores")
        if limit is None:
            assert self.asked(online, used={"a": 99}, settings=settings) == []
        else:
            assert self.asked(online, used={"a": limit}, settings=settings) == []
            assert self.asked(online, used={"a": limit + 0.01}, settings=settings) == ["a"]

    def test_a_pod_that_was_not_measured_is_not_asked_for(self) -> None:
        assert self.asked(kpod("a", "shared_cores"), used={"b": 99}, settings=self.ON) == []

    def test_the_reason_has_both_numbers(self) -> None:
        here = seen(kpod("a", "shared_cores"), fs=image_fs(), used={"a": 31})
        found = ROOTFS_OVERUSE.judge(here, Empty(), replace(self.ON, grace_seconds=5))
        reason = "its containers have 31.0 GiB in their root filesystems, more than 30.0 GiB"
        assert found.evict == (EvictAsked("a", reason, grace_s=5),)

    def test_what_is_seen_of_a_pod_that_was_cut_off_counts(self) -> None:
        here = seen(kpod("a", "shared_cores"), kpod("b", "shared_cores"), fs=image_fs(), used={"a": 1})
        uses = {"a": RootfsUse(31 * GIB, 9, is_cut=True), "b": RootfsUse(29 * GIB, 9, is_cut=True)}
        here = replace(here, measured=replace(here.measured, rootfs=RootfsMeasured(NOW_NS, NOW_NS + MIB, uses)))
        assert [each.uid for each in ROOTFS_OVERUSE.judge(here, Empty(), self.ON).evict] == ["a"]
