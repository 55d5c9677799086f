"""`koordebpf plugin serve` on a node that thrashes though much of it counts as free: stalls that BPF times."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.strategies.katalyst.values import Condition, TopAsk, TopPods
from tests.conftest import OTHER_MACHINE
from tests.host.test_plugin_serve import NAME, Served, outside
from tests.host.test_stall_net import LITTLE_PERCENT, NODE_MIB, SECONDS, Thrashing
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience
from tests.support.plugin_pods import plugin_pod

CONFIG = {
    "apiVersion": "koordebpf.io/v1alpha1",
    "kind": "AgentConfiguration",
    "eviction": {"stall": {"fullPercent": LITTLE_PERCENT, "seconds": SECONDS}},
}


@pytest.fixture
def thrashing(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> Iterator[Thrashing]:
    with NodeCgroup(memory_cgroup, hierarchy.version, NODE_MIB * MIB) as node, ExitStack() as stack:
        yield Thrashing(node, stack)


@pytest.mark.slow
def test_a_pod_that_stands_still_for_memory_meets_a_threshold_and_the_reclaimed_pod_is_chosen(
    thrashing: Thrashing, tmp_path: Path
) -> None:
    uids = {each["metadata"]["name"]: each["metadata"]["uid"] for each in thrashing.node.pods}
    levels = {"base": "shared_cores", "web": "shared_cores", "reader": "reclaimed_cores", "idle": "shared_cores"}
    pods = {uids[name]: plugin_pod(uids[name], level) for name, level in levels.items()}
    with Served(thrashing.node, tmp_path, config=json.dumps(CONFIG)) as served, outside(served) as agent:
        if "signals: timed" not in served.log:
            pytest.skip(f"{OTHER_MACHINE}no program times stalls here")
        agent.has(NAME)
        assert agent.thresholds(pods)[NAME].threshold is None
        thrashing.both_read()
        began_s = time.monotonic()
        threshold = None
        while threshold is None and time.monotonic() - began_s < patience(60):
            time.sleep(0.5)
            threshold = agent.thresholds(pods)[NAME].threshold
        assert threshold is not None, served.log
        assert (threshold.met, threshold.scope, threshold.operator) == ("hard", "MemoryStall", "greater_than")
        assert threshold.observed > threshold.value == LITTLE_PERCENT
        assert threshold.condition == Condition("MemoryPressure", "node", ("NoSchedule",))
        assert time.monotonic() - began_s >= SECONDS
        top = agent.top(TopAsk(NAME, "MemoryStall", 1, tuple(pods)), pods)
        assert top.top == TopPods((uids["reader"],), 1)
        # AND the window starts again: what that brings is seen first
        assert agent.thresholds(pods)[NAME].threshold is None
