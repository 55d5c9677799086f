from __future__ import annotations

from decimal import Decimal

import pytest

from koordebpf.slo.pods.eviction import allows_eviction
from koordebpf.slo.pods.qos import (
    QOS_LABEL,
    koord_priority,
    koord_qos,
    koord_qos_or_default,
    kube_qos_of,
    priority_or_default,
)


@pytest.mark.parametrize("name", ["LSE", "LSR", "LS", "BE", "SYSTEM"])
def test_the_label_names_the_class(name):
    assert koord_qos({QOS_LABEL: name}) == koord_qos_or_default({QOS_LABEL: name}, "BestEffort") == name


@pytest.mark.parametrize(
    "labels", [None, {}, {QOS_LABEL: "be"}, {QOS_LABEL: "BE "}, {QOS_LABEL: ""}, {"qosClass": "BE"}]
)
def test_anything_else_names_none(labels):
    assert koord_qos(labels) == ""
    assert [koord_qos_or_default(labels, kube) for kube in ("Guaranteed", "Burstable", "BestEffort", "")] == [
        "LSR",
        "LS",
        "BE",
        "",
    ]


def _amounts(**quantities: str) -> dict[str, Decimal]:
    return {name: Decimal(written) for name, written in quantities.items()}


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([], "BestEffort"),
        ([({}, {})], "BestEffort"),
        ([(_amounts(cpu="0"), {})], "BestEffort"),
        ([({"nvidia.com/gpu": Decimal(1)}, {"nvidia.com/gpu": Decimal(1)})], "BestEffort"),
        ([(_amounts(cpu="1"), {})], "Burstable"),
        ([(_amounts(cpu="1", memory="1"), _amounts(cpu="1", memory="1"))], "Guaranteed"),
        ([({}, _amounts(cpu="1", memory="1"))], "Guaranteed"),  # the API server writes requests from limits
        ([(_amounts(cpu="1", memory="1"), _amounts(cpu="2", memory="1"))], "Burstable"),
        ([({}, _amounts(memory="1"))], "Burstable"),
        ([({}, _amounts(cpu="1", memory="1")), ({}, {})], "Burstable"),
        ([({}, _amounts(cpu="1", memory="1")), ({}, _amounts(cpu="3", memory="3"))], "Guaranteed"),
    ],
)
def test_the_kubernetes_class_from_the_spec(containers, expected):
    assert kube_qos_of(containers) == expected


@pytest.mark.parametrize(
    ("priority", "band"),
    [
        (2999, ""), (3000, "koord-free"), (3999, "koord-free"), (4000, ""), (5000, "koord-batch"),
        (5999, "koord-batch"), (6000, ""), (7000, "koord-mid"),
        (7999, "koord-mid"), (8999, ""), (9000, "koord-prod"), (9999, "koord-prod"),
        (10000, ""), (0, ""), (None, ""), (-1, ""),
    ],
)  # fmt: skip
def test_bands_end_where_they_should(priority, band):
    assert koord_priority(None, priority) == band


def test_the_label_precedes_the_value_and_an_unknown_one_is_none():
    assert koord_priority({"koordinator.sh/priority-class": "koord-mid"}, 5000) == "koord-mid"
    assert koord_priority({"koordinator.sh/priority-class": "gold"}, 5000) == ""


def test_the_default_follows_the_qos_class():
    assert [koord_priority(None, None, qos) for qos in ("BE", "LS", "LSR", "SYSTEM")] == ["koord-batch"] + [
        "koord-prod"
    ] * 3
    assert priority_or_default(None, 0, "LS") == 9500  # Koordinator reads 0 as unset
    assert priority_or_default(None, None, "BE") == 5500
    assert priority_or_default(None, 5001, "BE") == 5001
    assert priority_or_default({"koordinator.sh/priority-class": "gold"}, None, "") == 0


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        (None, True), ('["BEMemoryEvict"]', True), ('["A", "BEMemoryEvict"]', True), ("[]", False), ("", False),
        ('["bememoryevict"]', False), ('"BEMemoryEvict"', False), ("BEMemoryEvict", False),
        ('["BEMemoryEvict", 1]', False),        ("[" * 100_000, False), ("null", False),
    ],
)  # fmt: skip
def test_the_policy_annotation(policy, allowed):
    assert allows_eviction(policy, "BEMemoryEvict") is allowed
