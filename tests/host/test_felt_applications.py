"""One cell of `make felt` beside a hog, without an agent and with it: the harness works, and leaves nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import OTHER_MACHINE
from tests.felt.load.paced import run
from tests.felt.matrix import Matrix, Plan
from tests.felt.ways import DEFAULT, KUBELET, NOTHING

needs_applications = pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("redis-server") and shutil.which("stress-ng") and shutil.which("losetup")),
    reason=f"{OTHER_MACHINE}needs root, and what .ci/setup felt installs",
)


@pytest.mark.slow
@needs_applications
def test_a_cell_of_redis_beside_an_anonymous_hog():
    said: list[str] = []
    with Matrix("redis", 3.0, said.append) as matrix:
        cells = list(matrix.run(Plan("redis", ["anon"], [NOTHING, KUBELET, DEFAULT]), 1))
        top = matrix.node.cgroup.path
        folder = matrix.app.folder
    assert [(each.hog, each.way) for each in cells] == [
        ("none", "nothing"), ("anon", "nothing"), ("anon", "kubelet"), ("none", "default"), ("anon", "default"),
    ]  # fmt: skip
    assert all(each.n == 3000 and 0 < each.p50 <= each.p99 <= each.p999 <= each.worst for each in cells)
    assert len(said) == 5
    undisturbed, alone, _, _, protected = cells
    assert undisturbed.be_cpu < 0.01
    assert alone.be_cpu > 0.05
    assert alone.evictions == 0
    # 2 GiB in a node of 2 GiB: the agent evicts it.
    assert protected.evictions == 1
    assert not folder.exists()
    assert list(Path("/sys/fs/cgroup").glob(f"*/{top.name}")) == []


def test_a_request_that_is_late_makes_those_after_it_late(monkeypatch):
    """Nothing is omitted: a stall of 0.2 s at 100 requests a second is in the latency of twenty of them."""
    import time

    calls = iter(range(1000))

    def request() -> None:
        if next(calls) == 10:
            time.sleep(0.2)

    took = run(request, rate=100, seconds=0.5)
    assert len(took) == 50
    assert took[10] >= 200
    assert sum(each > 50 for each in took) >= 14
