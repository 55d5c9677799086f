"""A scan that continues the one before gives the same sums as a fresh one."""

from hypothesis import given
from hypothesis import strategies as st

from koordebpf.events.layout import NO_LIMIT_PAGES, NOT_KNOWN
from koordebpf.state.stalls.sums import Row, ScanSums, packed

_UIDS = ("a", "b", None)
_sizes = st.integers(0, 3)


@st.composite
def _trees(draw: st.DrawFn) -> list[tuple[int, int]]:
    # Cgroup and parent, parents first, not always with a pod's subtree in one piece.
    parents = [0] + [draw(st.integers(1, here)) for here in range(1, draw(st.integers(1, 9)))]
    return [(here, parent) for here, parent in enumerate(parents, start=1)]


@st.composite
def _rows(draw: st.DrawFn, tree: list[tuple[int, int]]) -> list[Row]:
    return [
        (
            cgroup_id,
            parent_id,
            draw(_sizes),
            draw(st.sampled_from((2, NO_LIMIT_PAGES))),
            draw(_sizes),
            draw(st.sampled_from((1, NOT_KNOWN))),
            *(0, 0, 0, 0),
            *(draw(_sizes) for _ in range(5)),
        )
        for cgroup_id, parent_id in tree
        if cgroup_id == 1 or draw(st.integers(0, 9))
    ]


@given(st.data(), _trees())
def test_scans_one_after_the_other_come_to_what_each_comes_to_alone(
    data: st.DataObject, tree: list[tuple[int, int]]
) -> None:
    owners: dict[int, str | None] = {}
    version, before = 0, None
    roots: set[int] = set()
    for _ in range(4):
        if not owners or data.draw(st.booleans()):
            owners = {cgroup_id: data.draw(st.sampled_from(_UIDS)) for cgroup_id, _ in tree}
            roots = data.draw(st.sets(st.sampled_from([cgroup_id for cgroup_id, _ in tree])))
            version += 1
        rows = packed(data.draw(_rows(tree)))
        now = ScanSums(rows, owners.get, 10, before, version, roots)
        alone = ScanSums(rows, owners.get, 10, roots=roots)
        for uid in ("a", "b"):
            for cgroup_id, owner in owners.items():
                if owner == uid:
                    assert now.pod(uid, cgroup_id) == alone.pod(uid, cgroup_id)
        assert now.all(1) == alone.all(1)
        assert now.subtrees() == alone.subtrees()
        assert (now.outside(), now.limited({2, 3})) == (alone.outside(), alone.limited({2, 3}))
        before = now
