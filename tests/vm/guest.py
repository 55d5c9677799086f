"""Runs inside a guest: the host tests, and around them what no test can see. Writes what it found as the last thing.

`results/plan.json` in; `junit.xml`, `pytest.txt`, `dmesg.txt` and `found.json` out. Of benchmarks: `bench.txt`.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.kernel.proc.psi import NODE_MEMORY_PRESSURE
from tests.support import bpf_ids
from tests.vm import kills, programs, strategies

# The kernel frees a program or map after a grace period, later when its CPU is emulated and shared.
_FREED_WITHIN_S = 60
_SMT = Path("/sys/devices/system/cpu/smt/active")


class Kind(msgspec.Struct, frozen=True):
    """What may be different about a machine, as it shows inside."""

    cgroup_version: int
    numa_nodes: int
    has_psi: bool
    has_swap: bool
    has_smt: bool = False  # two threads a core


class Plan(msgspec.Struct, frozen=True):
    """What a guest has to do, and has to be."""

    pytest: tuple[str, ...]
    environment: dict[str, str]
    kind: Kind
    bench: tuple[str, ...] = ()  # arguments of tests.bench, which is run in place of the tests


class Found(msgspec.Struct, frozen=True):
    """What a guest saw beside its tests."""

    release: str
    pytest_exit: int
    pytest_s: float
    programs: dict[str, str]  # each program by itself: tests/vm/programs.py
    left: dict[str, list[int]]  # BPF ids of what the tests did not take away with them
    cgroups_left: list[str]
    strategies: dict[str, str] = {}  # each part of a strategy and of kills: tests/vm/strategies.py, kills.py


def main(results: Path) -> None:
    """Run the tests as the plan says."""
    plan = msgspec.json.decode((results / "plan.json").read_bytes(), type=Plan)
    if kind_here() != plan.kind:
        sys.exit(f"this is {kind_here()}, and was to be {plan.kind}")
    environment = os.environ | plan.environment
    if plan.bench:
        command = [sys.executable, "-m", "tests.bench", *plan.bench, "--json", str(results / "bench.json")]
        with (results / "bench.txt").open("wb") as out:
            done = subprocess.run(command, env=environment, stdout=out, stderr=subprocess.STDOUT, check=False)
        sys.exit(done.returncode)
    with (results / "dmesg.txt").open("wb") as log:
        follower = subprocess.Popen(["dmesg", "--follow"], stdout=log, stderr=subprocess.STDOUT)
    cgroups = _cgroups()
    before = bpf_ids.existing()
    tried, files = programs.try_all(), strategies.try_all() | kills.try_all()
    started_s = time.monotonic()
    with (results / "pytest.txt").open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", f"--junitxml={results}/junit.xml", *plan.pytest],
            env=environment, stdout=out, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    seconds = time.monotonic() - started_s

    left = bpf_ids.wait_for_none(lambda: bpf_ids.existing().without(before), _FREED_WITHIN_S)
    remains = {kind: sorted(ids) for kind, ids in msgspec.structs.asdict(left).items() if ids}
    follower.terminate()
    follower.wait()
    # All of it once more: the follower, who is there for a guest that dies, may be some lines behind.
    with (results / "dmesg.txt").open("wb") as log:
        subprocess.run(["dmesg"], stdout=log, check=True)
    found = Found(
        release=platform.release(),
        pytest_exit=done.returncode,
        pytest_s=round(seconds, 1),
        programs=tried,
        strategies=files,
        left=remains,
        cgroups_left=sorted(_cgroups() - cgroups),
    )
    (results / "found.json").write_bytes(msgspec.json.encode(found))


def kind_here() -> Kind:
    """Return what the running machine is."""
    return Kind(
        cgroup_version=find_memory_hierarchy().version,
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1,  # without CONFIG_NUMA
        has_psi=NODE_MEMORY_PRESSURE.exists(),
        has_swap=len(Path("/proc/swaps").read_text().splitlines()) > 1,
        has_smt=_SMT.read_text().strip() == "1",
    )


def _cgroups() -> set[str]:
    return {str(path) for path in Path("/sys/fs/cgroup").rglob("*") if path.is_dir()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
