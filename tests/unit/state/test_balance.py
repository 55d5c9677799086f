"""Where memory in use is: the parts sum to it, whatever was measured."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koordebpf.state.balance import memory_balance, memory_parts, pods_with_swap
from koordebpf.state.measured import (
    Measured,
    MemoryParts,
    NodeMeasure,
    OutsideMeasure,
    PodMeasure,
    StrayMeasure,
    UnchargedMemory,
)
from koordebpf.units import GIB, MIB

SIZES = st.integers(min_value=0, max_value=1 << 50)
UNCHARGED = st.builds(UnchargedMemory, *[SIZES] * 7)
PARTS = st.builds(MemoryParts, *[SIZES] * 6, kernel_bytes=st.none() | SIZES, swap_bytes=SIZES, elsewhere_bytes=SIZES)


def parts(anon: int = 0, **more: int) -> MemoryParts:
    return MemoryParts(anon, 0, anon, 0, 0, 0, **more)


def measured(
    *pods: MemoryParts | None,
    used: int | None = 12 * GIB,
    uncharged: UnchargedMemory | None = None,
    outside: tuple[OutsideMeasure, ...] | None = (),
    strays: tuple[StrayMeasure, ...] = (),
) -> Measured:
    node = NodeMeasure("machine", 16 * GIB, used, uncharged=uncharged)
    found = tuple(PodMeasure(f"u{number}", number, memory) for number, memory in enumerate(pods))
    return Measured(2, 1, node, found, strays, outside=outside)


@given(
    st.lists(st.none() | PARTS, max_size=4),
    st.none() | UNCHARGED,
    st.none() | st.lists(SIZES, max_size=3),
    st.lists(PARTS, max_size=2),
    SIZES,
)
def test_the_parts_sum_to_what_is_in_use_to_the_byte(
    pods: list[MemoryParts | None],
    uncharged: UnchargedMemory | None,
    outside: list[int] | None,
    strays: list[MemoryParts],
    used: int,
) -> None:
    around = None if outside is None else tuple(OutsideMeasure(f"s{size}", size, size // 2) for size in outside)
    others = tuple(StrayMeasure(number, f"k/{number}", each) for number, each in enumerate(strays))
    balance = memory_balance(measured(*pods, used=used, uncharged=uncharged, outside=around, strays=others), used)
    assert (balance is not None) is (outside is not None)
    if balance is not None:
        assert sum(balance.parts().values()) == balance.used_bytes == used
        assert all(held > 0 for held in balance.named.values())


def test_of_a_usage_that_is_not_known_there_are_no_parts() -> None:
    assert memory_balance(measured(parts(GIB), used=None), None) is None


def test_cgroups_outside_that_were_not_measured_are_not_called_unexplained() -> None:
    assert memory_parts(measured(parts(GIB), outside=None), 12 * GIB) is None


def test_a_pods_swap_counts_as_what_zram_holds_for_it() -> None:
    # 6 GiB of swap, 4 of them in zram, which takes 1.5 GiB for these: a quarter of a byte for each.
    uncharged = UnchargedMemory(zram_bytes=3 * GIB // 2, zram_stored_bytes=4 * GIB, swapped_bytes=6 * GIB)
    seen = measured(parts(GIB, swap_bytes=4 * GIB), parts(GIB), uncharged=uncharged)
    hog, other = pods_with_swap(seen)
    assert hog.memory is not None
    assert other.memory is not None
    assert (hog.memory.held_bytes, other.memory.held_bytes) == (2 * GIB, GIB)
    balance = memory_balance(seen, 12 * GIB)
    assert balance is not None
    assert (balance.pods_bytes, balance.swapped_bytes) == (3 * GIB, GIB)
    assert balance.named == {"zram": GIB // 2}


def test_swap_on_a_disk_holds_no_memory() -> None:
    seen = measured(parts(GIB, swap_bytes=4 * GIB), uncharged=UnchargedMemory(swapped_bytes=6 * GIB))
    assert pods_with_swap(seen) == seen.pods


def test_the_kernels_memory_of_cgroups_is_not_counted_twice() -> None:
    outside = (OutsideMeasure("system.slice", 500 * MIB, 100 * MIB),)
    uncharged = UnchargedMemory(kernel_bytes=GIB)
    found = memory_parts(measured(parts(GIB, kernel_bytes=24 * MIB), uncharged=uncharged, outside=outside), 4 * GIB)
    assert found == {
        "pods": GIB + 24 * MIB,
        "outside": 500 * MIB,
        "kernel": 900 * MIB,
        "unexplained": 1648 * MIB,
    }


def test_a_virtual_machine_in_its_sandboxs_cgroup_is_its_pods() -> None:
    found = memory_parts(measured(parts(0, elsewhere_bytes=6 * GIB)), 8 * GIB)
    assert found == {"pods": 6 * GIB, "outside": 0, "unexplained": 2 * GIB}
