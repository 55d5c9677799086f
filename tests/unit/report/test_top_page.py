"""Rows and page of `koordebpf top`."""

from __future__ import annotations

import io

from rich.console import Console

from koordebpf.report.top import top_page, top_rows
from koordebpf.state.view import Measured, MemoryParts, NodeMeasure, PodView, StallParts, StrayMeasure

MIB = 1 << 20
S = 1_000_000_000
NODE = NodeMeasure("cgroup", 1024 * MIB, 512 * MIB, stall=StallParts(10 * S, 250_000_000, 0, 3))


def pod(name: str, anon_mib: int | None, growth: float | None = None, stall: StallParts | None = None) -> PodView:
    memory = None if anon_mib is None else MemoryParts(anon_mib * MIB, anon_mib * MIB, 0, 5 * MIB, 0, 0)
    return PodView(
        name, "shop", name, "Running", False, "BestEffort", "BE", 5000, None, False,
        memory=memory, growth_bytes_per_s=growth, stall=stall,
    )  # fmt: skip


PODS = (
    pod("small", 10, growth=2e6),
    pod("big", 300, growth=-1e6),
    pod("unmeasured", None),
    pod("slow", 20, stall=StallParts(10 * S, 120_000_000, 3_000, 1, 1)),
)
MEASURED = Measured(
    2, 1, NODE, strays=(StrayMeasure(9, "kubepods/pod-gone", MemoryParts(40 * MIB, 40 * MIB, 0, 0, 0, 0)),)
)


def names(sort: str) -> list[str]:
    return [row.pod for row in top_rows(PODS, MEASURED, sort)]


def test_sorts() -> None:
    assert names("used") == ["shop/big", "? pod-gone", "shop/slow", "shop/small", "shop/unmeasured"]
    assert names("growth")[0] == "shop/small"
    assert names("stall")[0] == "shop/slow"


def test_the_page_fits_80_columns_and_absent_is_a_dash() -> None:
    console = Console(width=80, record=True, force_terminal=False, file=io.StringIO())
    console.print(top_page(NODE, 1024 * MIB, 800 * MIB, top_rows(PODS, MEASURED, "used")))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert lines[0] == "node 512 MiB of 1.0 GiB (50 %) · threshold 800 MiB · stalled 250 ms in 10 s"
    assert lines[1].split() == ["POD", "QOS", "USED", "CACHE", "GROWTH/s", "STALL", "LIMIT"]
    assert lines[2].split() == ["shop/big", "BE", "300", "MiB", "5.0", "MiB", "-977", "KiB", "·", "·"]
    assert lines[4].split()[-2:] == ["120ms", "3µs"]
    assert lines[6].split() == ["shop/unmeasured", "BE", "-", "-", "-", "·", "·"]
    assert max(map(len, lines)) <= 80
