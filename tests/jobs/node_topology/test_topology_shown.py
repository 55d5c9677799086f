"""What is said of the NodeResourceTopology, and which metrics it has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from koordebpf.jobs.node_topology.run import PAGE, TopologyShown
from koordebpf.report.job_pages import JobPages
from koordebpf.slo.pods.cpu_placement import SharePools
from koordebpf.state.pods.requests import BATCH_CPU
from koordebpf.units import NS_PER_S
from tests.support.ticked_node import StillClock


class Rig:
    def __init__(self, **reporter: Any) -> None:
        usual = {"writes": 3, "newest": None, "problem": None, "left_to": ""}
        node = SimpleNamespace(status=SimpleNamespace(allocatable={BATCH_CPU: "4"}))
        self.known: Any = SimpleNamespace(node=node)
        self.clock = StillClock()
        made: Any = SimpleNamespace(**{**usual, **reporter})
        self.shown = TopologyShown(made, self.known, self.clock, is_sent=True)


def report(*problems: str) -> Any:
    return SimpleNamespace(problems=problems, pools=SharePools())


def test_every_reason_why_it_is_not_as_it_is_to_be_is_said() -> None:
    rig = Rig(problem="403", left_to="koordlet", newest=report("a pod", "another"))
    check = rig.shown.check()
    assert check.failure(rig.clock.now_ns()) == "403; koordlet; a pod; another"
    page = rig.shown.page()
    assert (page.is_sent, page.writes, page.problems) == (True, 3, ("403", "koordlet", "a pod", "another"))


def test_it_is_well_for_an_hour_though_nothing_changes() -> None:
    rig = Rig()
    check = rig.shown.check()
    assert check.failure(rig.clock.now_ns() + 3600 * NS_PER_S) is None
    assert check.failure(rig.clock.now_ns() + 3601 * NS_PER_S) is not None


@pytest.mark.parametrize(
    ("koordlet_node", "has_report", "has_node", "count"),
    [(None, True, True, 0), ("n", False, False, 0), ("n", True, False, 2), ("n", False, True, 1), ("n", True, True, 3)],
)
def test_koordlets_metrics_need_the_nodes_name_and_what_is_known(
    koordlet_node: str | None, has_report: bool, has_node: bool, count: int
) -> None:
    rig = Rig(newest=report() if has_report else None)
    if not has_node:
        rig.known.node = None
    beside = JobPages()
    rig.shown.show(beside, koordlet_node)
    families = list(beside.families[PAGE]())
    assert families[0].name == "koordebpf_node_topology_writes"
    assert len({each.name for each in families if each.name.startswith("koordlet_")}) == count
