"""Cold memory by kidled's files, which only some vendors' kernels have: trees as these print them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordebpf.errors import CgroupGone, KernelFileError, SupportError
from koordebpf.jobs.hardware.cold_memory import ColdMemoryCollector, Scanned
from koordebpf.kernel.cgroup.idle_pages import FILE, cold_bytes, require_kidled
from koordebpf.state.series.kinds import KINDS
from koordebpf.state.series.store import node_series
from koordebpf.units import NS_PER_S
from tests.contract.apiserver import until

Make = Callable[[Any], Path]
ROWS = ("csei", "dsei", "cfei", "dfei", "csui", "dsui", "cfui", "dfui")
ROWS += ("csea", "dsea", "cfea", "dfea", "csua", "dsua", "cfua", "dfua", "slab")
STAT = "".join(
    f"total_{name} {value}\n"
    for name, value in (
        ("inactive_anon", 1000),
        ("active_anon", 2000),
        ("inactive_file", 4000),
        ("active_file", 8000),
        ("unevictable", 16000),
        ("shmem", 0),
    )
)
MEMINFO = "MemTotal: 100 kB\nMemFree: 40 kB\nMemAvailable: 60 kB\n"


def idle(**cold: int) -> str:
    """Return a file in which each row has 1 byte in each warm bucket and `cold` in the last one; others 7."""
    head = "# version: 1.0\n# page_scans: 24\n# slab_scans: 0\n# scan_period_in_seconds: 5\n# use_hierarchy: 1\n"
    head += "# buckets: 1,2,5,15,30,60,120,240\n#\n" + "#   _-----=> clean/dirty\n" * 7
    rows = [f"{name}  1 1 1 1 1 0 0 {cold.get(name, 7)}\n" for name in ROWS]
    return head + "".join(rows)


def test_file_pages_from_the_sixth_bucket_on_are_cold(tree: Make) -> None:
    root = tree({FILE: idle(cfei=10, dfei=20, cfui=40, dfui=80, csei=1 << 40, cfea=1 << 40)})
    assert len((root / FILE).read_text().splitlines()) == 31
    assert cold_bytes(root) == 150


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("cfei  1 1", "cfei  1", "a name and 8 numbers"),
        ("dfui  1", "dfui  -1", "a name and 8 numbers"),
        ("dfei", "none", "must have a row dfei"),
    ],
)
def test_garbage_is_named(tree: Make, before: str, after: str, rule: str) -> None:
    root = tree({FILE: idle().replace(before, after)})
    with pytest.raises(KernelFileError, match=rule) as caught:
        cold_bytes(root)
    assert caught.value.path == str(root / FILE)


def test_a_cgroup_that_is_gone_is_none(tmp_path: Path) -> None:
    with pytest.raises(CgroupGone):
        cold_bytes(tmp_path)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "Use a kernel with kidled"),
        ({"scan_period_in_seconds": "0\n", "use_hierarchy": "1\n"}, r"echo 5 > .*scan_period_in_seconds"),
        ({"scan_period_in_seconds": "5\n", "use_hierarchy": "0\n"}, r"echo 1 > .*use_hierarchy"),
        ({"scan_period_in_seconds": "many\n"}, "'many'"),
    ],
)
def test_without_kidled_it_says_what_to_do(tree: Make, files: dict[str, str], said: str) -> None:
    with pytest.raises(SupportError, match=said):
        require_kidled(tree(files))


def test_with_kidled_nothing_is_written(tree: Make) -> None:
    root = tree({"scan_period_in_seconds": "120\n", "use_hierarchy": "1\n"})
    require_kidled(root)
    assert (root / "scan_period_in_seconds").read_text() == "120\n"


def test_node_pods_and_containers_have_their_cold_memory_and_what_they_use_without_it(tree: Make) -> None:
    each = {"memory.stat": STAT, "memory.usage_in_bytes": "99\n"}
    root = tree(
        {
            FILE: idle(cfei=1024, dfei=0, cfui=0, dfui=0),
            "meminfo": MEMINFO,
            "pod": {FILE: idle(cfei=100, dfei=0, cfui=0, dfui=0), **each},
            "pod/c": {FILE: idle(cfei=1 << 20, dfei=0, cfui=0, dfui=0), **each},
        }
    )
    keys = [(f"{kind}_memory_cold_page_size", f"{kind}_memory_with_hot_page_usage") for kind in ("pod", "container")]
    scanned = [Scanned((cold, "x"), (hot, "x"), path) for (cold, hot), path in zip(keys, ("pod", "pod/c"), strict=True)]
    scanned.append(Scanned(("pod_memory_cold_page_size", "y"), ("pod_memory_with_hot_page_usage", "y"), "gone"))
    series = node_series()
    collector = ColdMemoryCollector(lambda: scanned, root, root / "meminfo")

    def latest(*key: str) -> float | None:
        assert key[0] in KINDS
        return series.query(key, time.monotonic_ns(), 60 * NS_PER_S, "latest")

    def measured() -> bool:
        collector.collect(time.monotonic_ns(), series)
        return latest("node_memory_cold_page_size") is not None

    until(measured, "a sample")
    collector.close()
    assert latest("node_memory_cold_page_size") == 1024
    assert latest("node_memory_with_hot_page_usage") == (60 << 10) - 1024
    assert (latest("pod_memory_cold_page_size", "x"), latest("pod_memory_with_hot_page_usage", "x")) == (100, 30900)
    # What is read a moment later may be less: never below nothing.
    assert latest("container_memory_with_hot_page_usage", "x") == 0
    assert latest("pod_memory_cold_page_size", "y") is None


def test_a_node_that_has_more_cold_pages_than_it_used_a_moment_before_uses_none_of_them(tree: Make) -> None:
    root = tree({FILE: idle(cfei=1 << 20, dfei=0, cfui=0, dfui=0), "meminfo": MEMINFO})
    found = ColdMemoryCollector(list, root, root / "meminfo").measure(())
    assert found == {("node_memory_cold_page_size",): 1 << 20, ("node_memory_with_hot_page_usage",): 0}
