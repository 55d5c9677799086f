"""Scan rows summed by pod and for the node."""

from koordebpf.events.layout import NOT_KNOWN
from koordebpf.state.measured import MemoryParts
from koordebpf.state.stalls.sums import LimitedCgroup, ScanSums, cgroup_used_bytes, packed

NOT_SUMMED = (0, NOT_KNOWN, 9, 9, 9, 9)  # no swap, slab that was not looked for, and the four events
ROWS = [
    (1, 0, 100, 1000, *NOT_SUMMED, 1, 2, 3, 4, 5),  # the node
    (2, 1, 60, 1 << 51, *NOT_SUMMED, 10, 0, 0, 0, 0),  # pod a
    (3, 2, 50, 1 << 51, *NOT_SUMMED, 20, 1, 7, 0, 2),  # its container
    (4, 1, 9, 1 << 51, *NOT_SUMMED, 0, 0, 0, 8, 0),  # of no pod
]
POD_OF = {2: "a", 3: "a"}.get


def test_a_pod_is_its_subtree() -> None:
    sums = ScanSums(packed(ROWS), POD_OF, 10)
    assert sums.pod("a", 2) == MemoryParts(600, 300, 10, 70, 0, 20, kernel_bytes=200)
    assert sums.pod("b", 4) is None
    assert sums.pod("a", 99) is None


def test_what_is_on_no_list_is_the_kernels_but_for_reclaimable_slab() -> None:
    def pod(usage: int, slab: int) -> MemoryParts | None:
        rows = packed([(2, 1, usage, 1 << 51, 0, slab, 0, 0, 0, 0, 10, 0, 5, 0, 0)])
        return ScanSums(rows, {2: "a"}.get, 10).pod("a", 2)

    assert pod(60, 120) == MemoryParts(600, 100, 0, 50, 0, 0, slab_reclaimable_bytes=120, kernel_bytes=330)
    assert pod(60, 0) == MemoryParts(600, 100, 0, 50, 0, 0, slab_reclaimable_bytes=0, kernel_bytes=450)
    assert pod(14, 0) == MemoryParts(140, 100, 0, 50, 0, 0, slab_reclaimable_bytes=0, kernel_bytes=0)  # it grew


def test_the_node_is_everything_under_its_root() -> None:
    node = ScanSums(packed(ROWS), POD_OF, 10).all(1)
    assert node == MemoryParts(1000, 310, 30, 100, 120, 70)
    assert cgroup_used_bytes(node) == 1000 - 220


def test_a_node_that_is_gone_is_none() -> None:
    assert ScanSums(b"", POD_OF, 10).all(1) is None


def test_reclaimable_slab_counts_as_free_where_it_is_known() -> None:
    assert cgroup_used_bytes(MemoryParts(100, 0, 0, 30, 0, 0, slab_reclaimable_bytes=20)) == 50
    assert cgroup_used_bytes(MemoryParts(10, 0, 0, 30, 0, 0)) == 0


def test_who_holds_memory_outside_all_pods() -> None:
    rows = [*ROWS, (5, 4, 2, 1 << 51, *NOT_SUMMED, 0, 0, 0, 0, 0)]
    assert ScanSums(packed(ROWS), POD_OF, 10).outside() == {4: 90}
    assert ScanSums(packed(rows), POD_OF, 10).outside() == {5: 20}


def test_what_is_in_swap_is_held_still() -> None:
    swapped = (70, NOT_KNOWN, 9, 9, 9, 9)
    rows = [(1, 0, 9, 1 << 51, *swapped, 0, 0, 0, 0, 0), (2, 0, 5, 1 << 51, *swapped, 1, 0, 0, 0, 0)]
    sums = ScanSums(packed(rows), {2: "a"}.get, 10)
    assert sums.outside() == {1: 790}
    assert (sums.swap_bytes(2), sums.swap_bytes(99)) == (700, 0)
    assert sums.pod("a", 2) == MemoryParts(50, 10, 0, 0, 0, 0, kernel_bytes=40, swap_bytes=700)


def test_swap_is_that_of_the_pods_own_level_which_has_its_containers_in_it() -> None:
    def swapped(pod: int, container: int) -> list[tuple[int, ...]]:
        return [
            (*ROWS[0][:4], 9, *ROWS[0][5:]),
            (*ROWS[1][:4], pod, *ROWS[1][5:]),
            (*ROWS[2][:4], container, *ROWS[2][5:]),
        ]

    before = ScanSums(packed(swapped(3, 2)), POD_OF, 10, version=1)
    first, node = before.pod("a", 2), before.all(1)
    assert first is not None and node is not None
    assert (first.swap_bytes, node.swap_bytes) == (30, 90)
    # Nothing but the swap is another.
    now = ScanSums(packed(swapped(4, 2)), POD_OF, 10, before, version=1).pod("a", 2)
    assert now == MemoryParts(600, 300, 10, 70, 0, 20, kernel_bytes=200, swap_bytes=40)


def test_what_has_a_limit_and_how_much_of_it_cannot_be_reclaimed() -> None:
    rows = [
        (1, 0, 100, 1000, *NOT_SUMMED, 0, 0, 0, 0, 0),  # the node's limit is no pod's
        (2, 1, 60, 90, *NOT_SUMMED, 10, 0, 1, 0, 0),
        (3, 2, 50, 70, *NOT_SUMMED, 20, 1, 7, 4, 2),
        (4, 2, 5, 1 << 51, *NOT_SUMMED, 5, 0, 0, 0, 0),
    ]
    found = ScanSums(packed(rows), {2: "a", 3: "a", 4: "a"}.get, 10).limited({2})
    assert found == [LimitedCgroup(2, "a", (60 - 12) * 10, 900), LimitedCgroup(3, "a", (50 - 11) * 10, 700)]


def test_limits_that_read_the_same_are_not_worked_out_again_and_others_are() -> None:
    rows = [
        (2, 1, 60, 90, *NOT_SUMMED, 10, 0, 1, 0, 0),
        (3, 2, 50, 70, *NOT_SUMMED, 20, 1, 7, 4, 2),
    ]
    pod_of = {2: "a", 3: "a"}.get
    first = ScanSums(packed(rows), pod_of, 10, version=1)
    found = first.limited({2})
    between = ScanSums(packed([rows[0], (3, 2, 51, *rows[1][3:])]), pod_of, 10, first, 1)  # it was not asked for limits
    again = ScanSums(packed(rows), pod_of, 10, between, 1).limited({2})
    assert again == found
    assert all(now is before for now, before in zip(again, found, strict=True))
    for changed in ((3, 2, 50, 71, *rows[1][4:]), (3, 2, 49, 70, *rows[1][4:]), (*rows[1][:12], 8, *rows[1][13:])):
        scanned = packed([rows[0], changed])
        now = ScanSums(scanned, pod_of, 10, between, 1).limited({2})
        assert now == ScanSums(scanned, pod_of, 10).limited({2}) != found
    assert ScanSums(packed(rows), pod_of, 10, first, 1).limited(()) == ScanSums(packed(rows), pod_of, 10).limited(())


def test_what_is_beyond_the_known_cgroups_of_a_pod_is_the_pods() -> None:
    deep = [(each, each - 1, 40, 500, *NOT_SUMMED, 100, 0, 0, 0, 0) for each in (50, 51, 52)]
    rows = [*ROWS, (50, 3, *deep[0][2:]), *deep[1:]]
    sums = ScanSums(packed(rows), POD_OF, 1)
    memory = sums.pod("a", 2)
    assert memory is not None and memory.inactive_anon_bytes == 30 + 300
    assert sums.outside() == {4: 9}
    assert sums.limited({2}) == []


def test_the_next_scan_is_summed_as_if_there_had_been_none_before() -> None:
    before = ScanSums(packed(ROWS), POD_OF, 10, version=1)
    assert before.pod("a", 2) is not None
    grown = [*ROWS[:2], (3, 2, 50, 1 << 51, *NOT_SUMMED, 25, 1, 7, 0, 2), ROWS[3]]
    risen = [ROWS[0], (2, 1, 70, 1 << 51, *NOT_SUMMED, 10, 0, 0, 0, 0), *ROWS[2:]]
    for rows in (ROWS, grown, risen, ROWS[:3], [*ROWS, (5, 2, 7, 80, *NOT_SUMMED, 1, 1, 1, 1, 1)]):
        now, fresh = ScanSums(packed(rows), POD_OF, 10, before, version=1), ScanSums(packed(rows), POD_OF, 10)
        assert now.pod("a", 2) == fresh.pod("a", 2)
        assert (now.all(1), now.outside(), now.limited({2})) == (fresh.all(1), fresh.outside(), fresh.limited({2}))


def test_a_cgroup_that_is_another_pods_now_is_summed_for_that_one() -> None:
    before = ScanSums(packed(ROWS), POD_OF, 10, version=1)
    assert before.pod("a", 2) is not None
    after = ScanSums(packed(ROWS), {2: "b", 3: "b"}.get, 10, before, version=2)
    assert after.pod("a", 2) is None
    assert after.pod("b", 2) == before.pod("a", 2)


def test_what_reads_the_same_is_not_summed_again() -> None:
    before = ScanSums(packed(ROWS), POD_OF, 10, version=1)
    memory = before.pod("a", 2)
    assert ScanSums(packed(ROWS), POD_OF, 10, before, version=1).pod("a", 2) is memory


# Of no pod: system (6) with a service (7) and a kubelet's directory (8), which has the pod.
OUTSIDE = [
    (1, 0, 200, 1 << 51, *NOT_SUMMED, 1, 2, 3, 4, 5),
    (6, 1, 150, 1 << 51, 7, 20, 0, 0, 0, 0, 1, 0, 9, 0, 0),
    (7, 6, 40, 1 << 51, *NOT_SUMMED, 10, 1, 9, 0, 2),
    (8, 6, 70, 1 << 51, 5, 20, 0, 0, 0, 0, 0, 0, 1, 0, 0),
    (2, 8, 60, 1 << 51, 4, 10, 0, 0, 0, 0, 10, 0, 0, 0, 0),
    (3, 2, 50, 1 << 51, *NOT_SUMMED, 20, 1, 7, 0, 2),
    (9, 1, 20, 1 << 51, *NOT_SUMMED, 4, 0, 0, 0, 0),
]


def test_what_is_outside_of_pods_is_by_the_roots_children_and_by_what_is_apart() -> None:
    found = ScanSums(packed(OUTSIDE), POD_OF, 10, roots={8}).subtrees()
    assert [(each.top, each.excluded) for each in found] == [(1, (6, 9)), (6, (8,)), (8, (2,)), (9, ())]
    root, system, kubepods, other = (each.memory for each in found)
    assert root == MemoryParts(300, 10, 20, 30, 40, 50, kernel_bytes=150)
    # Without the kubelet's directory: usage 150 - 70 pages, swap 7 - 5, slab of 20 - 20 bytes.
    assert system == MemoryParts(800, 110, 10, 180, 0, 20, None, 0, 800 - 320, swap_bytes=20)
    assert kubepods == MemoryParts(100, 0, 0, 10, 0, 0, None, 10, 80, swap_bytes=10)
    assert other == MemoryParts(200, 40, 0, 0, 0, 0, kernel_bytes=160)
    together = ScanSums(packed(OUTSIDE), POD_OF, 10).subtrees()
    assert [(each.top, each.excluded) for each in together] == [(1, (6, 9)), (6, (2,)), (9, ())]


def test_what_is_outside_of_pods_and_reads_the_same_is_not_summed_again() -> None:
    before = ScanSums(packed(OUTSIDE), POD_OF, 10, version=1, roots={8})
    first = before.subtrees()
    grown = [*OUTSIDE[:-1], (9, 1, 21, *OUTSIDE[-1][3:])]
    now = ScanSums(packed(grown), POD_OF, 10, before, 1, {8}).subtrees()
    assert [one.memory is other.memory for one, other in zip(first, now, strict=True)] == [False, True, True, False]
    # The pod has grown by what the kubelet's directory had left, as one that has just been made.
    moved = [*OUTSIDE[:4], (2, 8, 69, *OUTSIDE[4][3:]), *OUTSIDE[5:]]
    kubepods = ScanSums(packed(moved), POD_OF, 10, before, 1, {8}).subtrees()[2].memory
    assert (kubepods.usage_bytes, kubepods.kernel_bytes) == (10, 0)


def test_the_rows_of_a_cgroup_are_its_own_and_those_below_it() -> None:
    sums = ScanSums(packed([*ROWS, (5, 4, 2, 1 << 51, *NOT_SUMMED, 7, 0, 0, 0, 0)]), POD_OF, 10)
    assert [sums.rows_of(each) for each in (1, 2, 3, 4, 5, 99)] == [
        range(5),
        range(1, 3),
        range(2, 3),
        range(3, 5),
        range(4, 5),
        None,
    ]


def test_what_each_row_holds_itself_with_and_without_page_cache() -> None:
    sums = ScanSums(packed(ROWS), POD_OF, 10)
    assert sums.held_bytes() == [80, 100, 230, 0]
    assert sums.held_bytes(page_cache=True) == [150, 100, 300, 80]
    assert (sums.usage_bytes(3), sums.usage_bytes(99)) == (500, None)


def test_the_layout_stays_while_the_same_cgroups_are_scanned() -> None:
    before = ScanSums(packed(ROWS), POD_OF, 10, None, 7)
    grown = [(*row[:10], row[10] + 1, *row[11:]) for row in ROWS]
    assert ScanSums(packed(grown), POD_OF, 10, before, 7).layout is before.layout
    assert ScanSums(packed(ROWS[:3]), POD_OF, 10, before, 7).layout is not before.layout
