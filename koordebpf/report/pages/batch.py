"""How the batch and mid resources of a Node came to be, for people: 80 columns; and as one value for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koordebpf.policy.batch.facts import Calculation, CpuMemory
from koordebpf.printable import page, printable
from koordebpf.report.pages.columns import WIDTH, filled
from koordebpf.units import GIB

_AMOUNT = 13
_NAME = 22


class ExplainedNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is said of one Node.

    `has`: resource → what its status has, None: none of it. `waits`: why a difference is not written yet, or would be.
    `origins`: field of the strategy → where its value comes from. `policies`: the words in force.
    """

    node: str
    calculations: Sequence[Calculation]
    has: Mapping[str, int | None] = {}
    waits: str = ""
    report_age_s: float | None = None
    pods: int = 0
    zones: Mapping[str, CpuMemory] = {}
    origins: Mapping[str, str] = {}
    values: Mapping[str, Any] = {}
    problems: Sequence[str] = ()


def explained_node(node: ExplainedNode) -> str:
    """Return the sums with every term, and what else decides about the Node."""
    age = "none" if node.report_age_s is None else f"{node.report_age_s:.0f} s old"
    lines = [f"Node {node.node}: {node.pods} pods Running or Pending, NodeMetric {age}"]
    for calculation in node.calculations:
        lines += ["", *_sum(calculation, node.has.get(calculation.resource))]
    if node.zones and any(each.result is not None for each in node.calculations):
        lines += ["", "by NUMA zone:"]
        lines += [
            f"  {name}: {_amount('cpu', each.cpu_millicpu)} CPUs, {_amount('memory', each.memory_bytes)}"
            for name, each in node.zones.items()
        ]
    if node.waits:
        lines += ["", *filled(node.waits)]
    if node.origins:
        lines += ["", "strategy, where it is not the default:"]
        for field, origin in node.origins.items():
            lines += filled(f"{field} = {_text(node.values.get(field))}: {origin}", "  ")
    for problem in node.problems:
        lines += ["", *filled(f"left out: {problem}")]
    return page(lines)


def _sum(calculation: Calculation, has: int | None) -> list[str]:
    resource = calculation.resource
    of = "the Node has none" if has is None else f"the Node has {_amount(resource, has)}"
    if calculation.result is None:
        return [f"{resource}: none ({of})", *filled(calculation.reset, "  ")]
    lines = [f"{resource} ({of})"]
    for index, term in enumerate(calculation.terms):
        sign = "−" if term.value < 0 else "+" if index else ""
        amount = _amount(resource, abs(term.value)).rjust(_AMOUNT)
        lines.append(_cut(f"  {term.name.ljust(_NAME)} {sign or ' '}{amount}  {term.source}", term.source))
    lines.append(f"  {'result'.ljust(_NAME)} ={_amount(resource, calculation.result).rjust(_AMOUNT)}")
    return lines


def _cut(line: str, source: str) -> str:
    if len(line) <= WIDTH:
        return line
    return f"{line[: len(line) - len(source)].rstrip()}  {source[: WIDTH - len(line) + len(source) - 1]}…"


# CPU to the millicpu. Memory to a hundredth of a GiB: the bytes are in JSON.
def _amount(resource: str, value: int) -> str:
    return f"{value / 1000:.3f}" if "cpu" in resource else f"{value / GIB:,.2f} GiB"


def _text(value: Any) -> str:
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    return printable(value if isinstance(value, str) else msgspec.json.encode(value).decode())
