"""Block IO as metrics."""

from __future__ import annotations

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.reconcile import CgroupWrite
from koordebpf.policy.strategy import Empty
from koordebpf.strategies.block_io.decide import BlockIODecision
from koordebpf.strategies.block_io.run import BlockIOMetrics


def test_cgroups_with_limits_are_counted() -> None:
    metrics = BlockIOMetrics()
    files = (("a", CgroupFile.IO_READ_BPS), ("a", CgroupFile.IO_WRITE_BPS), ("b", CgroupFile.IO_READ_BPS))
    writes = tuple(CgroupWrite(path, file, None) for path, file in files)
    for wanted, count in ((writes, 2), ((), 0)):
        metrics.record(BlockIODecision(state=Empty(), reason="", writes=wanted))
        (family,) = metrics.families()
        assert [(each.name, each.value) for each in family.samples] == [("koordebpf_block_io_cgroups", count)]
