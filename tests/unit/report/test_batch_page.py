"""The page that says why a Node has so much of the batch resources."""

from __future__ import annotations

import msgspec

from koordebpf.policy.batch.facts import Calculation, CpuMemory, Term
from koordebpf.report.pages.batch import ExplainedNode, explained_node
from koordebpf.units import GIB

CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
TERMS = (
    Term("capacity", 4000, "status.allocatable"),
    Term("reserved", -2500, "x" * 50),
    Term("again", 0, "y" * 38),
    Term("more", 10, "y" * 39),
)


def test_each_term_has_its_sign_and_a_source_that_does_not_fit_is_cut() -> None:
    node = ExplainedNode(
        "n1",
        (Calculation(CPU, 1510, TERMS), Calculation(MEMORY, None, reset="the report is old")),
        has={CPU: 1000},
        report_age_s=12.6,
        pods=3,
        zones={"node-0": CpuMemory(500, GIB)},
    )
    assert explained_node(node).splitlines() == [
        "Node n1: 3 pods Running or Pending, NodeMetric 13 s old",
        "",
        "kubernetes.io/batch-cpu (the Node has 1.000)",
        "  capacity                        4.000  status.allocatable",
        f"  reserved               −        2.500  {'x' * 38}…",
        f"  again                  +        0.000  {'y' * 38}",
        f"  more                   +        0.010  {'y' * 39}",
        "  result                 =        1.510",
        "",
        "kubernetes.io/batch-memory: none (the Node has none)",
        "  the report is old",
        "",
        "by NUMA zone:",
        "  node-0: 0.500 CPUs, 1.00 GiB",
    ]


def test_what_else_decides_is_said_and_zones_only_of_what_there_is() -> None:
    node = ExplainedNode(
        "n1",
        (Calculation(MEMORY, None, reset="no report"),),
        has={MEMORY: 3 * GIB},
        waits="it is written later",
        zones={"node-0": CpuMemory(500, GIB)},
        origins={"a": "the ConfigMap", "b": "a label"},
        values={"a": {"x": 1}, "b": "text"},
        problems=("one pod",),
    )
    expected = [
        "Node n1: 0 pods Running or Pending, NodeMetric none",
        "",
        "kubernetes.io/batch-memory: none (the Node has 3.00 GiB)",
        "  no report",
        "",
        "it is written later",
        "",
        "strategy, where it is not the default:",
        '  a = {"x":1}: the ConfigMap',
        "  b = text: a label",
        "",
        "left out: one pod",
    ]
    assert explained_node(node).splitlines() == expected
    bare = msgspec.structs.replace(node, waits="", origins={}, problems=(), zones={})
    assert explained_node(bare).splitlines() == expected[:4]
