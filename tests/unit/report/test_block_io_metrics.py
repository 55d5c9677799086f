"""Block IO as metrics."""

from __future__ import annotations

from koordebpf.policy.block_io.strategy import BlockIODecision
from koordebpf.policy.strategy import Empty
from koordebpf.report.prom.qos.block_io import BlockIOMetrics
from tests.unit.report.test_block_io_settings import DECISION


def test_cgroups_with_limits_are_counted() -> None:
    metrics = BlockIOMetrics()
    writes = tuple(each.write for each in DECISION.sources)
    assert len(writes) == 3
    for made, count in ((BlockIODecision(state=Empty(), reason="", writes=writes), 3), (DECISION, 0)):
        metrics.take(made)
        (family,) = metrics.families()
        assert [(each.name, each.value) for each in family.samples] == [("koordebpf_block_io_cgroups", count)]
