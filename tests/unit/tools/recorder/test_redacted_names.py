"""Names out of a round's JSON: what is replaced, by what, and what stays."""

from __future__ import annotations

import re
from typing import Any

import pytest

from koordebpf.tools.recorder.names import Names

KEY = bytes(32)
UID = "12345678-9abc-def0-1234-56789abcdef0"
CONTAINER = "0123456789abcdef" * 4


def names(*learned: Any) -> Names:
    made = Names(KEY)
    for each in learned:
        made.learn(each)
    return made


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
        {"phase": "Running", "bytes": 7, "on": True, "refused": [1, None]},
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
        # The keys of these domains say what, their values may be a tenant's.
        ({"labels": {"app.kubernetes.io/name": "web-1"}}, {"labels": {"app.kubernetes.io/name": "WEB"}}),
        ({"labels": {"x.k8s.io/y": "web-1"}}, {"labels": {"x.k8s.io/y": "WEB"}}),
        ({"sloControllerConfig": {"a": '{"name":"web-1"}'}}, {"sloControllerConfig": {"a": '{"name":"WEB"}'}}),
        ({"sloControllerConfig": {"a": "web-1", "b": 7}}, {"sloControllerConfig": {"a": "WEB", "b": 7}}),
    ],
)
def test_a_name_is_replaced_by_the_same_hash_wherever_it_is(value: dict[str, Any], expected: dict[str, Any]) -> None:
    short = {"web-1": "WEB", "team": "TEAM", "x.slice": "X", "koord-batch-web": "KOORD"}
    text = str(expected)
    for name, word in short.items():
        text = text.replace(word, hashed(name))
    assert str(names().redacted(value)) == text


def test_another_key_gives_other_hashes() -> None:
    assert Names(bytes(31) + b"1").redacted({"name": "web"}) != names().redacted({"name": "web"})


def test_a_uid_keeps_its_form_in_names_in_sentences_and_in_cgroups() -> None:
    made = names()
    found = made.redacted({"uid": UID})["uid"]
    assert re.fullmatch("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", found) and found != UID
    assert made.text(f"pod {UID}: gone") == f"pod {found}: gone"
    slice_name = f"kubepods-pod{UID.replace('-', '_')}.slice"
    assert made.redacted({"path": slice_name}) == {"path": f"kubepods-pod{found.replace('-', '_')}.slice"}
    assert names().text(UID.replace("-", "_")) == found.replace("-", "_")  # also where it is seen first
    assert made.text(found) == found


@pytest.mark.parametrize("container", [CONTAINER, CONTAINER[:32]])
def test_the_id_of_a_container_keeps_its_length(container: str) -> None:
    made = names()
    found = made.redacted({"containerID": f"containerd://{container}"})["containerID"].rpartition("/")[2]
    assert re.fullmatch(f"[0-9a-f]{{{len(container)}}}", found) and found != container
    assert made.text(f"cri-containerd-{container}.scope") == f"cri-containerd-{found}.scope"


@pytest.mark.parametrize(
    ("name", "is_found"),
    [
        ("web-10", True),  # six characters, and one that no word has
        ("web123", True),
        ("web-1", False),  # too short: a word may be so
        ("memory", False),  # a word
    ],
)
def test_in_sentences_names_are_found_that_cannot_be_words(name: str, is_found: bool) -> None:
    made = names({"name": name})
    expected = hashed(name) if is_found else name
    assert made.text(f"evicting {name}, priority 5") == f"evicting {expected}, priority 5"
    assert made.redacted({"reason": f"for {name}"}) == {"reason": f"for {expected}"}
    assert made.text(f"x{name}") == f"x{name}"
    assert made.text(f"{name}0") == f"{name}0"


def test_of_two_names_in_one_place_the_longer_one_is_taken() -> None:
    made = names({"pods": [{"name": "web-front"}, {"name": "web-front-end"}]})
    assert made.text("web-front-end is full") == f"{hashed('web-front-end')} is full"


def test_a_sentence_is_looked_at_again_when_another_name_is_known() -> None:
    made = names()
    assert made.text("pod web-front is full") == "pod web-front is full"
    made.learn({"name": "web-front"})
    assert made.text("pod web-front is full") == f"pod {hashed('web-front')} is full"
    made.redacted({"name": "web-back"})
    assert made.text("pod web-back is full") == f"pod {hashed('web-back')} is full"


def test_what_is_redacted_already_stays() -> None:
    made = names()
    once = made.redacted({"name": "web-front", "uid": UID, "path": "/kubepods/web-front"})
    assert made.redacted(once) == once
