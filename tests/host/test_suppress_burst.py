"""What others have set of the best-effort directory's CPU time beside its quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.files import CgroupFile
from tests.conftest import OTHER_MACHINE
from tests.host.rigs.cgroups import BE_ROOT, cpu_node
from tests.host.suppression_loop import BY_QUOTA, SuppressionLoop

BURST, QUOTA = CgroupFile.CPU_BURST, CgroupFile.CPU_QUOTA
LEAST_US = "1000"  # within any quota that suppression writes: the kernel takes no smaller one


def test_the_burst_is_left_alone(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes cgroups")
    try:
        with cpu_node() as node:
            if not node.file(BE_ROOT, BURST).exists():
                pytest.skip(f"{OTHER_MACHINE}its kernel has no bursts (since 5.14)")
            node.put(BE_ROOT, BURST, LEAST_US)
            quota, burst = node.text(BE_ROOT, QUOTA), node.text(BE_ROOT, BURST)
            assert burst.strip() == LEAST_US
            suppression = SuppressionLoop(node, tmp_path / "journal")
            try:
                suppression.until(BY_QUOTA, lambda plan: plan.quota_us is not None)
                assert node.text(BE_ROOT, QUOTA) != quota
                assert node.text(BE_ROOT, BURST) == burst
            finally:
                suppression.close()
            assert (node.text(BE_ROOT, QUOTA), node.text(BE_ROOT, BURST)) == (quota, burst)
    except (SupportError, KeyError) as error:
        pytest.skip(f"{OTHER_MACHINE}it has no cpu and cpuset hierarchies that can be written: {error}")
