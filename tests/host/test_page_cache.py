"""BEPageCacheSuppress in a running agent: what a latency-sensitive pod feels, and what becomes of the limits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.paging_probe import refaults
from tests.host.rigs.page_cache_node import NODE_BYTES, PageCacheNode, ended
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

pytestmark = pytest.mark.slow
LIMITED = "koordebpf_page_cache_limited_pods"
FEWER = 5  # times


@pytest.fixture
def flooded(memory_cgroup: Path, hierarchy: MemoryHierarchy, tmp_path: Path) -> Iterator[PageCacheNode]:
    with NodeCgroup(memory_cgroup, hierarchy.version, NODE_BYTES) as node:
        yield PageCacheNode(node, tmp_path)


def is_flooded(node: PageCacheNode) -> bool:
    """Tell whether what is read costs the latency-sensitive pod pages by now."""
    return refaults(node.ls_pod) > 0


def test_a_latency_sensitive_pod_keeps_its_file_and_all_is_restored(flooded: PageCacheNode, tmp_path: Path) -> None:
    """A request refaults a part of what it does without; the limit follows, and ends with the agent."""
    without = flooded.felt(patience(4), patience(30), lambda _: is_flooded(flooded))
    with LiveAgent(tmp_path, *flooded.arguments(), "--enforce") as agent:
        agent.becomes_ready()
        limited = flooded.felt(patience(4), patience(12))
        felt = f"{limited.refaults} of {len(limited.took_ms)}, {without.refaults} of {len(without.took_ms)} without"
        assert without.refaults > 300, felt  # a busy disk reads no more
        # Of each, not of a second: a machine that others use has time for fewer.
        each, each_without = (one.refaults / len(one.took_ms) for one in (limited, without))
        assert each * FEWER <= each_without, f"{felt}\n{agent.log}"
        assert agent.metric(LIMITED) == 1
        assert flooded.limit() is not None
        assert "page cache: latency-sensitive pod" in agent.log
        assert agent.stop() == 0
    assert flooded.limit() is None
    assert flooded.node.oom_kills() == 0


def test_in_a_dry_run_nothing_is_limited(flooded: PageCacheNode, tmp_path: Path) -> None:
    with LiveAgent(tmp_path, *flooded.arguments(), "--dry-run") as agent:
        agent.becomes_ready()
        assert flooded.felt(patience(3), patience(30), lambda _: is_flooded(flooded)).refaults > 200
        assert agent.metric(LIMITED) == 1
        assert flooded.limit() is None
        assert agent.stop() == 0


def test_limits_that_do_not_help_are_lifted(flooded: PageCacheNode, tmp_path: Path) -> None:
    """A pod that refaults at its own limit refaults as much when others have less."""
    file = "memory.max" if flooded.node.version == 2 else "memory.limit_in_bytes"
    (flooded.ls_pod / file).write_text(str(48 * MIB))
    reader = f'while :; do cat "{flooded.set}" >/dev/null; done'
    looping = flooded.start(flooded.ls, "sh", "-c", reader)
    cached = flooded.start(flooded.be, "dd", f"if={flooded.sparse}", "of=/dev/null", "bs=1M", "count=300")
    cached.communicate()
    try:
        with LiveAgent(tmp_path, *flooded.arguments(trial="5s"), "--enforce") as agent:
            agent.becomes_ready()
            until(lambda: flooded.limit() is not None, lambda: f"a limit\n{agent.log}", 30)
            agent.said("are lifted")
            until(lambda: flooded.limit() is None, lambda: f"no limit\n{agent.log}", 10)
            assert agent.metric("koordebpf_page_cache_failed_trials_total") == 1
            before = refaults(flooded.ls_pod)
            time.sleep(3)
            assert refaults(flooded.ls_pod) > before
            assert flooded.limit() is None
            assert agent.stop() == 0
    finally:
        ended(looping)


def test_what_a_killed_agent_limited_the_next_one_restores(flooded: PageCacheNode, tmp_path: Path) -> None:
    with LiveAgent(tmp_path, *flooded.arguments(), "--enforce") as agent:
        agent.becomes_ready()
        flooded.felt(1, 8)
        assert flooded.limit() is not None
        agent.process.kill()
        agent.process.wait()
    assert flooded.limit() is not None
    with LiveAgent(tmp_path, *flooded.arguments(), "--enforce") as agent:
        agent.becomes_ready()
        until(lambda: flooded.limit() is None, lambda: f"no limit\n{agent.log}", 30)
        assert agent.stop() == 0
