"""Names out of a round's JSON: what is replaced, by what, and what stays."""

from __future__ import annotations

import re
from typing import Any

import pytest

from koordebpf.tools.recorder.redact import Names

KEY = bytes(32)
UID = "12345678-9abc-def0-1234-56789abcdef0"
CONTAINER = "0123456789abcdef" * 4


def names() -> Names:
    return Names(KEY)


def hashed(name: str) -> str:
    found = names().redacted({"name": name})["name"]
    assert re.fullmatch("n[0-9a-f]{10}", found)
    return str(found)


@pytest.mark.parametrize(
    "kept",
    [
        *({"name": ""}, {"name": "*"}, {"name": "v1"}, {"name": "Pod"}, {"uid": None}, {"namespace": 7}),
        {"path": "/sys/fs/cgroup/memory/kubepods.slice/kubepods-besteffort.slice/memory.max"},
        {"priorityClassName": "system-node-critical"},
        {"priorityClassName": "koord-batch"},
        {"labels": {"koordinator.sh/qosClass": "BE", "kubernetes.io/arch": "amd64"}},
        {"annotations": {"kubernetes.io/config.source": "api", "node.koordinator.sh/reservation": "7"}},
        {"annotations": {"koordinator.sh/cpuBurst": '{"policy":"auto","cpuBurstPercent":200}'}},
        {
            "requests": {"memory": "1.5Gi", "kubernetes.io/batch-cpu": "500m"},
            "creationTimestamp": "2027-01-15T08:00:00Z",
        },
        {"phase": "Running", "usage_bytes": 7, "is_ready": True, "refused": [1, None], "states": {"0": "3-7,9"}},
        {"kernel": "6.18.0"},
        {"new": "8:0 rbps=100 wbps=max"},
    ],
)
def test_what_policy_reads_stays(kept: dict[str, Any]) -> None:
    assert names().redacted(kept) == kept


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"name": "web-1"}, {"name": "WEB"}),
        ({"key": "team/web-1"}, {"key": "TEAM/WEB"}),
        ({"path": "/kubepods/web-1/x.slice"}, {"path": "/kubepods/WEB/X"}),
        ({"priorityClassName": "web-1"}, {"priorityClassName": "WEB"}),
        ({"priorityClassName": "koord-batch-web"}, {"priorityClassName": "KOORD"}),
        ({"killed": ["web-1"], "values": ["team"]}, {"killed": ["WEB"], "values": ["TEAM"]}),
        ({"pods": [{"name": "team"}]}, {"pods": [{"name": "TEAM"}]}),
        ({"labels": {"team": "web-1"}}, {"labels": {"TEAM": "WEB"}}),
        ({"labels": {"team": 7}}, {"labels": {"TEAM": 7}}),
        # A selector names them as labels do.
        (
            {"matchExpressions": [{"key": "team", "operator": "In", "values": ["web-1"]}]},
            {"matchExpressions": [{"key": "TEAM", "operator": "In", "values": ["WEB"]}]},
        ),
        (
            {"matchExpressions": [{"key": "koordinator.sh/qosClass", "operator": "In", "values": ["BE", "web-1"]}]},
            {"matchExpressions": [{"key": "koordinator.sh/qosClass", "operator": "In", "values": ["BE", "WEB"]}]},
        ),
        ({"labels": {"team/web-1": "x.slice"}}, {"labels": {"TEAM/WEB": "X"}}),
        ({"annotations": {"koordinator.sh/cpuBurst": "web-1"}}, {"annotations": {"koordinator.sh/cpuBurst": "WEB"}}),
        (
            {"sloControllerConfig": {"system-config": '{"name":"web-1"}'}},
            {"sloControllerConfig": {"system-config": '{"name":"WEB"}'}},
        ),
        ({"sloControllerConfig": {"system-config": "web-1"}}, {"sloControllerConfig": {"system-config": "WEB"}}),
        ({"states": {"team/web-1": "web-1"}}, {"states": {"TEAM/WEB": "WEB"}}),
        ({"new": "8:0 rbps=100 team=8"}, {"new": "8:0 rbps=100 TEAM=8"}),
        ({"kernel": "6.18.0-team"}, {"kernel": "6.18.0"}),
        ({"name": "memory", "comm": "running"}, {"name": "memory", "comm": "RUNNING"}),
        ({"reason": "evicting web-1, priority 5"}, {"reason": "redacted"}),
    ],
)
def test_a_name_is_replaced_by_the_same_hash_wherever_it_is(value: dict[str, Any], expected: dict[str, Any]) -> None:
    short = {"running": "RUNNING", "web-1": "WEB", "team": "TEAM", "x.slice": "X", "koord-batch-web": "KOORD"}
    text = str(expected)
    for name, word in short.items():
        text = text.replace(word, hashed(name))
    assert str(names().redacted(value)) == text


def test_another_key_gives_other_hashes() -> None:
    assert Names(bytes(31) + b"1").redacted({"name": "web"}) != names().redacted({"name": "web"})


def test_a_uid_keeps_its_form_in_names_and_in_cgroups() -> None:
    made = names()
    found = made.redacted({"uid": UID})["uid"]
    assert re.fullmatch("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", found) and found != UID
    slice_name = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
    expected = f"/kubepods.slice/kubepods-pod{found.replace('-', '_')}.slice"
    assert made.redacted({"path": slice_name}) == names().redacted({"path": slice_name}) == {"path": expected}
    assert made.redacted({"states": {UID: found}}) == {"states": {found: found}}


@pytest.mark.parametrize("container", [CONTAINER, CONTAINER[:32]])
def test_the_id_of_a_container_keeps_its_length(container: str) -> None:
    made = names()
    found = made.redacted({"containerID": f"containerd://{container}"})["containerID"].removeprefix("containerd://")
    assert re.fullmatch(f"[0-9a-f]{{{len(container)}}}", found) and found != container
    scope = f"/kubepods/cri-containerd-{container}.scope/cpu.max"
    assert made.redacted({"path": scope}) == {"path": f"/kubepods/cri-containerd-{found}.scope/cpu.max"}


def test_what_is_redacted_already_stays() -> None:
    made = names()
    once = made.redacted({"name": "web-front", "uid": UID, "path": "/kubepods/web-front"})
    assert made.redacted(once) == once
