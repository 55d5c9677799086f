"""Whatever lists and watches say of PodDisruptionBudgets, the table is bounded, and holds what they said last."""

from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.kube.sources.pdbs import MAX_ALL, MAX_ONE, PdbTable

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ADDED", "MODIFIED", "DELETED", "LIST"]),
        st.sampled_from(["a", "b", "far"]),
        st.integers(0, 30),
        st.sampled_from([0, 100, MAX_ONE - 300, MAX_ONE * 2]),
    ),
    max_size=60,
)


def pdb(namespace: str, number: int, version: int, size: int) -> msgspec.Raw:
    meta = {"name": f"b{number}", "namespace": namespace, "uid": f"{namespace}-{number}"}
    selector = {"matchLabels": {"version": str(version), "pad": "x" * size}}
    return msgspec.Raw(
        json.dumps({"metadata": meta | {"resourceVersion": str(version)}, "spec": {"selector": selector}}).encode()
    )


@given(STEPS)
def test_kept_is_bounded_and_never_older_than_what_was_reported(steps: list[tuple[str, str, int, int]]) -> None:
    table, reported = PdbTable(), dict[str, tuple[int, bool]]()  # UID → the last version of it, and whether it is there
    version = 100
    for kind, namespace, number, size in steps:
        version += 1
        uid = f"{namespace}-{number}"
        if kind == "LIST":
            table.begin(namespace)
            table.add_page([pdb(namespace, number, version, size)])
            table.end(namespace, str(version), is_whole=True)
            for other in reported:
                if other.startswith(f"{namespace}-"):
                    reported[other] = (version, False)
            reported[uid] = (version, True)
        else:
            table.apply(kind, pdb(namespace, number, version, size))
            reported[uid] = (version, kind != "DELETED")
    sizes = [len(msgspec.json.encode(each.spec.selector)) for each in table.objects]
    assert sum(sizes) <= MAX_ALL
    assert max(sizes, default=0) <= MAX_ONE
    for each in table.objects:
        last, is_there = reported[each.metadata.uid]
        assert is_there
        assert each.metadata.namespace in table.namespaces
        assert (each.spec.selector or {})["matchLabels"]["version"] == str(last)
    if set(table.namespaces) - {namespace for kind, namespace, _, _ in steps if kind == "LIST"}:
        raise AssertionError("a namespace that was not listed")
