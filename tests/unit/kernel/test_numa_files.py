"""/proc/zoneinfo and memory.numa_stat, as kernels print them."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.errors import KernelFileError
from koordebpf.kernel.cgroup.tables import numa_held
from koordebpf.kernel.proc.vmstat import Zoneinfo, ZoneValues
from koordebpf.units import PAGE_BYTES

ZONE = """Node {node}, zone   {name}
  pages free     {free}
        boost    0
        min      100
        low      200
        high     300
        promo    400
        spanned  5000
      nr_free_pages {free}
      nr_zone_inactive_anon 7
      nr_zone_inactive_file {cache}
      nr_zone_active_file 5
  pagesets
    cpu: 0
              count:    12
              high:     13
              high_min: 14
"""


def zones(*each: str) -> str:
    return "".join(each)


def test_each_numa_node_has_the_values_of_its_zone_normal(tmp_path: Path) -> None:
    path = tmp_path / "zoneinfo"
    path.write_text(
        zones(
            ZONE.format(node=0, name="DMA32", free=1, cache=2),
            ZONE.format(node=0, name=" Normal", free=11, cache=12),
            ZONE.format(node=1, name=" Normal", free=21, cache=22),
            ZONE.format(node=1, name="Movable", free=3, cache=4),
        )
    )
    with Zoneinfo(path) as zoneinfo:
        assert zoneinfo.read() == (ZoneValues(0, 11, 100, 200, 300, 12, 5), ZoneValues(1, 21, 100, 200, 300, 22, 5))


def test_a_zone_without_memory_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "zoneinfo"
    full, _, empty = ZONE.format(node=0, name=" Normal", free=0, cache=0).partition("      nr_free_pages")
    assert empty
    path.write_text(
        zones(f"{full}        present  0\n        managed  0\n", ZONE.format(node=1, name=" Normal", free=1, cache=2))
    )
    with Zoneinfo(path) as zoneinfo:
        assert [each.node for each in zoneinfo.read()] == [1]


def test_a_zone_without_a_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "zoneinfo"
    path.write_text(ZONE.format(node=0, name=" Normal", free=1, cache=2).replace("        low      200\n", ""))
    with Zoneinfo(path) as zoneinfo, pytest.raises(KernelFileError, match="must have free, min, low"):
        zoneinfo.read()


def test_this_kernels_file_is_read() -> None:
    with Zoneinfo() as zoneinfo:
        first = zoneinfo.read()[0]
    assert first.min_pages < first.low_pages < first.high_pages
    assert first.free_pages > 0


def test_a_cgroup_holds_what_is_no_page_cache(tmp_path: Path) -> None:
    (tmp_path / "memory.numa_stat").write_text(
        "anon N0=4096 N1=8192\nfile N0=500000 N1=0\nshmem N0=0 N1=4096\nfile_mapped N0=9 N1=9\n"
    )
    assert numa_held(tmp_path, 2) == {0: 4096, 1: 12288}
    (tmp_path / "memory.numa_stat").write_text(
        "total=9 N0=9 N1=0\nanon=1 N0=1 N1=0\nhierarchical_total=99 N0=50 N1=49\n"
        "hierarchical_file=60 N0=30 N1=30\nhierarchical_anon=9 N0=5 N1=4\nhierarchical_unevictable=3 N0=0 N1=3\n"
    )
    assert numa_held(tmp_path, 1) == {0: 5 * PAGE_BYTES, 1: 7 * PAGE_BYTES}


def test_a_kernel_without_the_file_says_nothing(tmp_path: Path) -> None:
    assert numa_held(tmp_path, 2) == {}
