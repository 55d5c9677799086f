from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.kube.cache import store as tables
from koordebpf.kube.cache.objects import ObjectMeta, Pod
from koordebpf.kube.cache.store import Table, decode_list, decode_pod, decode_pod_event, is_older


def raw(name: str, version: int | str, uid: str | None = None, **more: Any) -> msgspec.Raw:
    meta = {"name": name, "namespace": "be", "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    meta["labels"] = {"content": str(version)}
    return msgspec.Raw(msgspec.json.encode({"metadata": meta, **more}))


def table(*names: str, version: int = 100) -> Table[Any]:
    new = Table("pods", decode_pod)
    new.replace([raw(name, 10) for name in names], str(version))
    return new


def held(of: Table[Any]) -> list[tuple[str, str]]:
    return sorted((p.metadata.name, p.metadata.labels["content"]) for p in of.objects)


def test_null_items_are_an_empty_list() -> None:
    assert decode_list(b'{"metadata":{"resourceVersion":"3"},"items":null}').items is None


def test_versions_compare_as_numbers_or_not_at_all() -> None:
    assert is_older("9", "10")
    assert not is_older("10", "9")
    assert not is_older("10", "10")
    assert not is_older("abc", "abd")
    assert not is_older("", "1")


def test_opaque_versions_are_taken_in_order_of_arrival() -> None:
    of = table(version=0)
    of.replace([raw("a", "x1")], "x9")
    assert of.apply("MODIFIED", raw("a", "x0"))
    assert of.apply("ADDED", raw("b", "x0"))
    assert held(of) == [("a", "x0"), ("b", "x0")]
    assert not of.apply("ADDED", raw("b", "x0"))


def test_event_that_the_list_contains_is_no_news() -> None:
    of = table("a", version=100)
    assert not of.apply("ADDED", raw("a", 10))
    assert not of.apply("DELETED", raw("a", 9))
    assert not of.apply("ADDED", raw("ghost", 100))
    assert held(of) == [("a", "10")]


def test_a_heartbeat_is_no_news() -> None:
    of = table("a", version=100)
    for version in range(101, 124):
        beat = msgspec.json.decode(raw("a", 10))
        beat["metadata"]["resourceVersion"] = str(version)
        beat["status"] = {"conditions": [{"lastProbeTime": f"2026-01-01T00:00:{version % 60:02d}Z"}]}
        is_first = version == 101  # there were no conditions before
        assert of.apply("MODIFIED", msgspec.Raw(msgspec.json.encode(beat))) is is_first
    assert of.version == "123"


def test_bookmark_never_moves_back() -> None:
    of = table(version=100)
    of.move_on("150")
    of.move_on("120")
    of.move_on("")
    assert of.version == "150"


def test_late_event_does_not_bring_back_the_dead() -> None:
    of = table("a")
    assert of.apply("DELETED", raw("a", 130))
    assert not of.apply("MODIFIED", raw("a", 120))
    assert not of.apply("DELETED", raw("a", 130))
    assert held(of) == []


def test_memory_of_the_dead_is_bounded() -> None:
    of = table()
    for i in range(tables.MAX_DELETED + 50):
        of.apply("ADDED", raw(f"p{i}", 1000 + 2 * i))
        of.apply("DELETED", raw(f"p{i}", 1001 + 2 * i))
    assert len(of._deleted) == tables.MAX_DELETED
    assert held(of) == []
    of.replace([], "99999")
    assert len(of._deleted) == 0


def test_unreadable_object_in_a_new_list_stays_as_it_was() -> None:
    of = table("a", "b")
    assert of.replace([raw("a", 110, spec=[]), raw("b", 111), raw("c", 112, status=1)], "120")
    assert held(of) == [("a", "10"), ("b", "111")]
    assert len(of.problems) == 2
    assert of.replace([raw("b", 111)], "130")
    assert held(of) == [("b", "111")]
    assert of.problems == {}


def test_deleting_an_unreadable_object_ends_the_complaint() -> None:
    of = table()
    assert of.apply("ADDED", raw("a", 110, spec=[]))
    assert of.problems
    assert of.apply("DELETED", raw("a", 120, spec=[]))
    assert of.problems == {}


def test_a_line_decoded_in_one_go_is_the_same_pod() -> None:
    meta = {
        "name": "a", "namespace": "be", "uid": "uid-a", "generation": 3, "labels": {"x": "1"},
        "annotations": {"y": "2"}, "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "controller": True}],
        "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:00:30Z",
        "deletionGracePeriodSeconds": 30,
    }  # fmt: skip
    assert set(meta) == set(ObjectMeta.__struct_fields__)
    pod = {
        "metadata": meta | {"resourceVersion": "7", "managedFields": []}, "spec": {"priority": 5000},
        "status": {"phase": "Running"}, "apiVersion": "v2", "kind": "Other",
    }  # fmt: skip
    assert set(pod) | {"notKept"} == set(Pod.__struct_fields__)
    reported = decode_pod_event(msgspec.json.encode({"type": "MODIFIED", "object": pod}))
    assert reported is not None
    kind, who, decoded = reported
    assert (kind, str(who), who.uid, who.resourceVersion) == ("MODIFIED", "be/a", "uid-a", "7")
    assert type(decoded) is Pod
    assert decoded == decode_pod(msgspec.Raw(msgspec.json.encode(pod)))
    assert decoded.metadata.deletionGracePeriodSeconds == 30


LINES = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]),
            "object": st.fixed_dictionaries(
                {"metadata": st.fixed_dictionaries(
                    {"resourceVersion": st.integers(90, 110).map(str) | st.sampled_from(["", "x"]) | st.just(105)},
                    optional={
                        "uid": st.sampled_from(["uid-a", "uid-b", "", None]), "name": st.sampled_from(["a", "b", 1]),
                        "labels": st.sampled_from([{"content": "1"}, {"content": "2"}, [], None]),
                    },
                )},
                optional={
                    "spec": st.sampled_from([{}, [], {"priority": "high"}]),
                    "status": st.just({"phase": "Failed"}),
                },
            ) | st.sampled_from([None, {}, {"code": 410}]),
        }
    ),
    max_size=8,
)  # fmt: skip


@given(lines=LINES)
def test_decoded_in_one_go_or_bit_by_bit_the_table_is_the_same(lines: list[dict[str, Any]]) -> None:
    one_go, bit_by_bit = table("a"), table("a")
    for event in lines:
        line = msgspec.json.encode(event)
        if event["type"] not in tables.CHANGES:
            assert decode_pod_event(line) is None
            continue
        obj = msgspec.Raw(msgspec.json.encode(event["object"]))
        is_news = bit_by_bit.apply(event["type"], obj)
        reported = decode_pod_event(line)
        assert (one_go.apply_decoded(*reported) if reported else one_go.apply(event["type"], obj)) is is_news
    assert one_go.objects == bit_by_bit.objects
    assert (one_go.problems, one_go.version) == (bit_by_bit.problems, bit_by_bit.version)


@given(st.binary(max_size=80))
def test_any_bytes_are_no_event_of_a_pod(rubbish: bytes) -> None:
    assert decode_pod_event(rubbish) is None


EVENTS = st.lists(
    st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), st.sampled_from("abc")), min_size=1, max_size=12
)


@given(events=EVENTS, data=st.data())
def test_duplicates_and_any_order_of_arrival_end_the_same(events: list[tuple[str, str]], data: st.DataObject) -> None:
    reported = [(kind, raw(name, 200 + i)) for i, (kind, name) in enumerate(events)]
    straight, shuffled = table("a"), table("a")
    for kind, obj in reported:
        straight.apply(kind, obj)
    repeats = data.draw(st.lists(st.sampled_from(reported), max_size=12))
    for kind, obj in data.draw(st.permutations([*reported, *repeats])):
        shuffled.apply(kind, obj)
    assert held(shuffled) == held(straight)
    assert shuffled.version == straight.version


@given(st.binary(max_size=80), st.sampled_from(["ADDED", "MODIFIED", "DELETED"]))
def test_any_bytes_leave_the_known_as_they_are(rubbish: bytes, kind: str) -> None:
    of = table("a")
    of.apply(kind, msgspec.Raw(rubbish))
    assert held(of) == [("a", "10")]


def nested(depth: int, innermost: object = None) -> list[object]:
    made: list[object] = [innermost]
    for _ in range(depth):
        made = [made]
    return made


def test_what_is_nested_too_deep_does_not_cost_the_others() -> None:
    deep = msgspec.Raw(b'{"metadata":{"uid":"uid-b"},"spec":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    of = table("a", "b")
    assert of.replace([raw("a", 110), deep], "110")
    assert held(of) == [("a", "110")]
    assert of.apply("ADDED", raw("c", 111))
    assert not of.apply("MODIFIED", deep)
    assert held(of) == [("a", "110"), ("c", "111")]
    assert list(of.problems.values()) == ["pods: an object without a name has no UID and is left out"]


def test_what_is_nested_too_deep_to_be_compared_stays_as_it_was() -> None:
    of: Table[Any] = Table("pods", lambda raw: nested(100_000, bytes(raw)))
    of.replace([raw("a", 10), raw("b", 10)], "100")
    (before, _) = of.objects
    assert of.apply("MODIFIED", raw("a", 101))
    assert of.objects[0] is before
    assert of.problems == {"uid-a": "pods: be/a cannot be read and stays as it was: it is nested too deep"}
