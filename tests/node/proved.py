"""What the tests of a node prove, as the rows of docs/node.md: a sentence for each test, from its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

_HERE = Path(__file__).parent
# What stands over the tests of each file, in this order.
TOPICS = {
    "test_network": "the network of the machine's own",
    "test_reachable": "the node from outside",
    "test_restore": "a restored node",
    "test_evict": "eviction",
    "test_katalyst": "Katalyst's eviction manager",
    "test_nri": "containers adjusted before they start (NRI)",
    "test_suppress": "suppression in systemd's slices",
    "test_bound_cpus": "pods with CPUs of their own",
    "test_deployed": "the DaemonSet of deploy/",
    "test_disturbed": "restarts, a full disk, reboots, clocks, a pause",
    "test_beside": "beside the kernel's, the kubelet's and systemd-oomd's own kills",
    "test_kinds": "nodes of other kinds",
    "test_crio": "a node with CRI-O",
    "test_figures": "cost and counts",
}


class Proved(msgspec.Struct, frozen=True):
    """One test: its file and name without parameters, how often it passed, and what it measured."""

    module: str
    name: str
    passed: int = 0
    figures: tuple[str, ...] = ()


def sentence(name: str) -> str:
    """Return what a test's name says."""
    return re.sub(r"_", " ", name.removeprefix("test_"))


def declared() -> list[Proved]:
    """Return every test of the folder, in the order of the topics."""
    found = []
    for module in TOPICS:
        tree = ast.parse((_HERE / f"{module}.py").read_text())
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        found += [Proved(module, name) for name in names if name.startswith("test_")]
    return found


def table(proved: Iterable[Proved]) -> str:
    """Return the rows as Markdown."""
    lines = ["| on a node with cgroup v2 and systemd | proved | measured |", "|---|---|---|"]
    for each in proved:
        figures = "; ".join(each.figures)
        lines.append(f"| {TOPICS[each.module]} | {sentence(each.name)} | {figures} |")
    return "\n".join(lines)


def gathered(passed: Iterable[tuple[str, Mapping[str, str]]]) -> list[Proved]:
    """Return what the tests that passed prove: node ids and what they recorded as `figure`."""
    found: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for node_id, properties in passed:
        path, _, name = node_id.partition("::")
        found.setdefault((Path(path).stem, name.partition("[")[0]), []).append(properties)
    return [
        Proved(each.module, each.name, len(runs), tuple(run["figure"] for run in runs if "figure" in run))
        for each in declared()
        if (runs := found.get((each.module, each.name)))
    ]
