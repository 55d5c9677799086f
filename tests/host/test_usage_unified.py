"""The pass over a cgroup v2 hierarchy without controllers, which a kernel has also where memory and cpu are on v1."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.errors import SupportError
from koordebpf.jobs.usage_series.cpu import ScannedCpu
from koordebpf.jobs.usage_series.groups import UsageGroup
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, cgroup_id
from tests.conftest import OTHER_MACHINE
from tests.support.hierarchies import remove_when_empty

LEAVES = ("pod/c1", "pod/c2", "other")
TREE = ("", "pod", *LEAVES)


def stat_ns(path: Path) -> int:
    """Return usage_usec of cpu.stat, which adds up first what each CPU counted."""
    rows = dict(line.split() for line in (path / "cpu.stat").read_text().splitlines())
    return int(rows["usage_usec"]) * 1000


@pytest.fixture
def unified(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a hierarchy and makes cgroups")
    if subprocess.run(["mount", "-t", "cgroup2", "none", tmp_path], check=False, capture_output=True).returncode:
        pytest.skip(f"{OTHER_MACHINE}it mounts no cgroup v2")
    top = tmp_path / f"koord-test-usage-{os.getpid()}"
    try:
        for name in TREE:
            (top / name).mkdir()
        yield top
    finally:
        for name in reversed(TREE):
            remove_when_empty(top / name)
        subprocess.run(["umount", tmp_path], check=True)


@contextlib.contextmanager
def scanned(top: Path) -> Iterator[ScannedCpu]:
    try:
        pass_ = ScannedCpu([ControllerMount(2, top.parent)], top.name)
    except SupportError as error:
        pytest.skip(f"{OTHER_MACHINE}its kernel has no such pass: {error}")
    try:
        paths = {cgroup_id(top / name): f"{top.name}/{name}".rstrip("/") for name in TREE}
        pass_.watch({group: UsageGroup(group, path, "pod") for group, path in paths.items()})
        yield pass_
    finally:
        pass_.close()


@contextlib.contextmanager
def burning(top: Path) -> Iterator[None]:
    processes = []
    try:
        for name in LEAVES:
            processes.append(subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]))
            (top / name / "cgroup.procs").write_text(str(processes[-1].pid))
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_one_pass_over_v2_equals_cpu_stat(unified: Path) -> None:
    paths = {cgroup_id(unified / name): unified / name for name in TREE}
    with scanned(unified) as pass_:
        with burning(unified):
            for _ in range(42):
                time.sleep(0.03)
                before = {group: stat_ns(path) for group, path in paths.items()}
                seen = pass_.read().usage_ns
                for group, path in paths.items():
                    assert before[group] <= seen[group] < stat_ns(path) + 1000, path
        time.sleep(0.1)
        seen = pass_.read().usage_ns
        assert {group: used // 1000 * 1000 for group, used in seen.items()} == {
            group: stat_ns(path) for group, path in paths.items()
        }


@pytest.mark.slow
def test_counters_that_are_added_up_meanwhile_hardly_ever_run_backwards(unified: Path) -> None:
    files = " ".join(str(unified / name / "cpu.stat") for name in TREE)
    with scanned(unified) as pass_, burning(unified):
        reader = subprocess.Popen(["sh", "-c", f"while :; do cat {files} > /dev/null; done"])
        try:
            last, compared, back = pass_.read().usage_ns, 0, 0
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                now = pass_.read().usage_ns
                compared += len(now)
                back += sum(now[group] < last[group] for group in now)
                last = now
        finally:
            reader.kill()
            reader.wait()
    assert compared > 100
    assert back <= compared / 1000, f"{back} of {compared}"
