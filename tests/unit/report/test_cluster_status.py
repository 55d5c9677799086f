"""The pages of all nodes, from what was read of their agents; and what is read of a page of metrics."""

from __future__ import annotations

from typing import Any

import pytest

from koordebpf.errors import DecodeError
from koordebpf.tools.cluster.status import (
    ClusterStatus,
    NodeState,
    Scraped,
    ScrapedHook,
    scraped,
    status_page,
    top_nodes_page,
)
from koordebpf.units import GIB

HOOKS = (
    ScrapedHook("save", {"ok": 2, "timed_out": 1, "dropped": 0}, 0.5),
    ScrapedHook("note", {"ok": 0}),
    ScrapedHook("mark", {"ok": 1}),
)
ENFORCES = Scraped(
    version="1.0",
    dry_run=False,
    used_bytes=12.0 * GIB,
    capacity_bytes=16.0 * GIB,
    threshold_bytes=14.0 * GIB,
    psi_some=0.0123,
    psi_full=0.001,
    evict_in_s=90.4,
    full_in_s=0.0,
    evicted=3,
    backend="bcc",
    stalls="reclaim",
    hooks=HOOKS,
)
OBSERVES = Scraped(dry_run=True, used_bytes=15.0 * GIB, capacity_bytes=20.0 * GIB, evicted=2, full_in_s=1.4)


def state(node: str, said: Scraped | None = None, ready: bool = True, missing: str = "") -> NodeState:
    return NodeState(node, f"agent-{node}", "observe", ready, "Running", said, missing)


def pages(page: Any, *nodes: NodeState) -> tuple[list[str], list[str]]:
    status = ClusterStatus("koordebpf.status/v1", nodes)
    return page(status, is_wide=False).splitlines(), page(status, is_wide=True).splitlines()


def test_status_has_a_line_for_each_node_and_wide_also_what_runs_there() -> None:
    nodes = (state("a", ENFORCES), state("b", OBSERVES), state("c", Scraped(dry_run=True)), NodeState("d"))
    narrow, wide = pages(status_page, *nodes)
    hooks = "save 2 ok, 1 timed out (mean 500 ms); note not called; mark 1 ok"
    rows = [
        ("NODE   AGENT      READY   MEMORY          EVICTS ABOVE    EVICTED     ", "HOOKS", "PROBLEM"),
        ("a      enforces   yes     12.0GiB (75%)   14.0GiB (88%)   3           ", hooks, "-"),
        ("b      observes   yes     15.0GiB (75%)   -               2 dry run   ", "-", "-"),
        ("c      observes   yes     -               -               0           ", "-", "-"),
        ("d      none       -       -               -               -           ", "-", "no agent"),
    ]
    assert narrow == [f"{start}{hook.ljust(len(hooks))}   {problem}" for start, hook, problem in rows]
    assert wide[0].endswith("VERSION   SIGNALS               POD       PROBLEM")
    assert wide[1].endswith("1.0       bcc, stalls reclaim   agent-a   -")


def test_without_hooks_there_is_no_column_of_them() -> None:
    narrow, _ = pages(status_page, state("b", OBSERVES), state("e", missing="no answer"))
    assert narrow == [
        "NODE   AGENT      READY   MEMORY          EVICTS ABOVE   EVICTED     PROBLEM",
        "b      observes   yes     15.0GiB (75%)   -              2 dry run   -",
        "e      observe    yes     -               -              -           no answer",
    ]


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        (state("a", OBSERVES), ""),
        (NodeState("a"), "no agent"),
        (state("a", missing="no answer"), "no answer"),
        (state("a", ready=False), "not ready (Running)"),
        (state("a", OBSERVES, ready=False), "not ready (Running)"),
        (state("a", Scraped(guards=("stale", "budget")), ready=False), "guards closed: stale, budget"),
        (state("a", Scraped(guards=("stale",), lost_signals=4)), "guards closed: stale"),
        (state("a", Scraped(lost_signals=4)), "4 signals were lost"),
    ],
)
def test_what_is_wrong_with_a_node(node: NodeState, problem: str) -> None:
    assert node.problem == problem
    assert ClusterStatus("koordebpf.status/v1", (state("well", OBSERVES), node)).is_sound is not bool(problem)


def test_top_has_who_is_nearest_to_its_threshold_first_and_what_is_not_known_is_no_zero() -> None:
    narrow, wide = pages(
        top_nodes_page,
        NodeState("none"),
        state("silent", missing="no answer"),
        state("half", Scraped(used_bytes=512.0, capacity_bytes=1024.0)),
        state("b", OBSERVES),
        state("a", ENFORCES),
        state("d", Scraped(used_bytes=2048.0, capacity_bytes=0.0)),
        state("c", Scraped(capacity_bytes=1024.0)),
    )
    assert narrow == [
        "NODE     USED      CAPACITY   USED%   EVICTS AT%   SOME%   FULL%   EVICTS IN",
        "a        12.0GiB   16.0GiB    75%     88%          1.2     0.1     90s",
        "b        15.0GiB   20.0GiB    75%     -            -       -       -",
        "half     512B      1.0KiB     50%     -            -       -       -",
        "c        -         1.0KiB     -       -            -       -       -",
        "d        2.0KiB    0B         -       -            -       -       -",
        "none     -         -          -       -            -       -       -",
        "silent   -         -          -       -            -       -       -",
    ]
    ends = {line.split()[0]: line.split()[8:] for line in wide[1:]}
    assert (ends["a"], ends["b"], ends["half"]) == (["now", "3", "-"], ["1s", "2", "-"], ["-", "0", "-"])
    assert (ends["none"], ends["silent"]) == (["-", "-", "no", "agent"], ["-", "-", "no", "answer"])


PAGE = b"""\
koordebpf_build_info{version="1.0"} 1
koordebpf_dry_run 0
koordebpf_node_used_bytes 10
koordebpf_node_threshold_bytes{mark="lower"} 5
koordebpf_node_threshold_bytes{mark="threshold"} 14
koordebpf_node_psi_avg10_ratio{degree="some"} 0.2
koordebpf_node_psi_avg10_ratio{degree="full"} 0.1
koordebpf_node_forecast_seconds{mark="threshold",bound="low"} 1
koordebpf_node_forecast_seconds{mark="threshold",bound="point"} 2
koordebpf_node_forecast_seconds{mark="oom",bound="point"} 3
koordebpf_evictions_total{result="done"} 4
koordebpf_evictions_total{result="dry_run"} 5
koordebpf_evictions_total{result="failed"} 6
koordebpf_pods{qos="BE"} 7
koordebpf_pods{qos="LS"} 8
koordebpf_guard_closed{reason="stale"} 1
koordebpf_guard_closed{reason="budget"} 0
koordebpf_eviction_hook_calls_total{hook="save",outcome="ok"} 3
koordebpf_eviction_hook_calls_total{hook="save",outcome="dropped"} 9
koordebpf_eviction_hook_calls_total{hook="note",outcome="dropped"} 1
koordebpf_eviction_hook_seconds_total{hook="save"} 6
koordebpf_eviction_hook_seconds_total{hook="note"} 0
"""


def test_a_page_of_metrics_is_read_and_what_it_lacks_is_none() -> None:
    found = scraped(PAGE)
    assert (found.version, found.dry_run, found.used_bytes, found.capacity_bytes) == ("1.0", False, 10, None)
    assert (found.threshold_bytes, found.psi_some, found.psi_full) == (14, 0.2, 0.1)
    assert (found.evict_in_s, found.full_in_s, found.evicted, found.pods) == (2, 3, 9, 15)
    assert (found.guards, found.lost_signals, found.backend) == (("stale",), 0, "")
    # One that was dropped took no time.
    assert found.hooks == (
        ScrapedHook("save", {"ok": 3, "dropped": 9}, 2.0),
        ScrapedHook("note", {"dropped": 1}, None),
    )
    assert scraped(b"") == Scraped()
    assert scraped(b"koordebpf_dry_run 1\nkoordebpf_lost_signals 2\n") == Scraped(dry_run=True, lost_signals=2)


@pytest.mark.parametrize("page", [b"{", b"\xff", b"a{"])
def test_what_is_no_page_of_metrics_is_refused(page: bytes) -> None:
    with pytest.raises(DecodeError, match="no page of metrics"):
        scraped(page)
