"""PodDisruptionBudgets in bounded form, whatever is written."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from koordebpf.kube.sources.pdbs import MAX_ALL, MAX_ONE, PdbTable


def pdb(name: str, version: int = 1, namespace: str = "a", values: int = 0, length: int = 10) -> msgspec.Raw:
    selector: dict[str, Any] = {"matchLabels": {"app": name}}
    if values:
        wanted = [f"{n:0{length}}" for n in range(values)]
        selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": wanted}]}
    made = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"{namespace}-{name}",
            "resourceVersion": str(version),
            "generation": 3,
            "annotations": {"note": "x" * 1000},
        },
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": 1},
    }
    return msgspec.Raw(json.dumps(made, separators=(",", ":")).encode())


def listed(*items: msgspec.Raw, namespace: str = "a", version: str = "100") -> PdbTable:
    table = PdbTable()
    table.begin(namespace)
    table.add_page(items)
    table.end(namespace, version, is_whole=True)
    table.version = version
    return table


def names(table: PdbTable) -> list[str]:
    return [each.key for each in table.objects]


def test_what_an_eviction_is_judged_by_is_kept_and_nothing_else() -> None:
    (kept,) = listed(pdb("web")).objects
    assert (kept.metadata.uid, kept.metadata.generation, kept.status.disruptionsAllowed) == ("a-web", 3, 1)
    assert kept.spec.selector == {"matchLabels": {"app": "web"}}
    assert kept.metadata.annotations is None


@pytest.mark.parametrize("length", [1, 2, 60])
def test_five_thousand_of_96_kib_take_less_than_3_mib(length: int) -> None:
    # As long as is allowed, or as many small ones as fit: whatever a tenant writes.
    for values in ((96 << 10) // (length + 3), (MAX_ONE - 400) // (length + 3), 1):
        text = pdb("x", values=values, length=length)
        tracemalloc.start()
        table = PdbTable()
        table.begin("a")
        for number in range(5000 if values == 1 else 500):
            item = bytes(text).replace(b'"a-x"', b'"a-%d"' % number)
            table.add_page([msgspec.Raw(item)])
        table.end("a", "100", is_whole=True)
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert kept < 3 << 20
        assert "not all of namespace a are kept" in table.problems[""]


def test_one_that_grows_too_large_is_dropped_and_comes_back_when_it_shrinks() -> None:
    table = listed(pdb("web"), pdb("db"))
    assert table.apply("MODIFIED", pdb("web", 101, values=MAX_ONE))
    assert names(table) == ["a/db"]
    assert table.problems
    assert table.apply("MODIFIED", pdb("web", 102))
    assert sorted(names(table)) == ["a/db", "a/web"]


def test_a_complete_list_clears_the_problem() -> None:
    table = listed(pdb("web", values=MAX_ONE))
    assert "up to 16 KiB, 256 KiB in all" in table.problems[""]
    table.begin("a")
    table.add_page([pdb("web")])
    table.end("a", "200", is_whole=True)
    assert (names(table), table.problems) == (["a/web"], {})


def test_a_namespace_that_was_not_listed_is_passed_over_and_moves_the_watch_on() -> None:
    table = listed(pdb("web"))
    assert not table.apply("ADDED", pdb("far", 150, namespace="b"))
    assert (names(table), table.version) == (["a/web"], "150")


def test_events_that_a_namespaces_list_has_reported_are_passed_over() -> None:
    table = listed(pdb("web"))
    table.begin("b")
    table.add_page([pdb("db", 190, namespace="b")])
    table.end("b", "200", is_whole=True)
    assert not table.apply("DELETED", pdb("db", 180, namespace="b"))
    assert table.apply("DELETED", pdb("web", 185))
    assert names(table) == ["b/db"]


def test_a_list_drops_what_is_no_longer_in_it_and_leaves_other_namespaces_alone() -> None:
    table = listed(pdb("web"), pdb("old"))
    table.begin("b")
    table.add_page([pdb("db", namespace="b")])
    table.end("b", "100", is_whole=True)
    table.begin("a")
    table.add_page([pdb("web")])
    table.end("a", "200", is_whole=True)
    assert sorted(names(table)) == ["a/web", "b/db"]
    table.forget(frozenset({"a"}))
    assert (names(table), table.namespaces) == (["b/db"], {"b"})


def test_names_count_too() -> None:
    each = 250
    table = listed(*(pdb(f"{number:0{each}}") for number in range(MAX_ALL // 400)))
    assert 0 < len(table.objects) * 2 * each <= MAX_ALL  # in the selector, too
    assert table.problems


def test_room_is_free_again_when_one_is_deleted() -> None:
    half = pdb("x", values=(MAX_ONE - 400) // 13)
    table = PdbTable()
    table.begin("a")
    count = MAX_ALL // len(bytes(half)) + 5
    for number in range(count):
        table.add_page([msgspec.Raw(bytes(half).replace(b'"a-x"', b'"a-%d"' % number))])
    table.end("a", "100", is_whole=True)
    before = len(table.objects)
    assert before < count
    gone = msgspec.Raw(
        bytes(half).replace(b'"a-x"', b'"a-0"').replace(b'"resourceVersion":"1"', b'"resourceVersion":"101"')
    )
    assert table.apply("DELETED", gone)
    assert table.apply("ADDED", pdb("new", 102))
    assert len(table.objects) == before
