"""The page of `kubectl koordebpf doctor --all`: nodes with the same findings stand together."""

from __future__ import annotations

from typing import Literal

import msgspec

from koordebpf.printable import page
from koordebpf.report.pages.columns import filled

_VERDICTS = {0: "all works", 1: "works with losses", 2: "cannot run"}


class Finding(msgspec.Struct, frozen=True):
    """What does not work, and why."""

    signal: str
    reason: str


class Diagnosis(msgspec.Struct, frozen=True):
    """One node. `exit_code` as doctor's: 0 all works, 1 with losses, 2 the agent cannot run."""

    node: str
    exit_code: int
    quality: str
    missing: tuple[Finding, ...]


class Diagnoses(msgspec.Struct, frozen=True):
    """All nodes: what `doctor --all -o json` prints. `problems`: nodes that did not answer, with the reason."""

    schema: Literal["koordebpf.doctor-all/v1"]
    nodes: tuple[Diagnosis, ...]
    problems: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """The worst of all nodes; one that did not answer counts as 1."""
        return max((each.exit_code for each in self.nodes), default=0) or int(bool(self.problems))


def doctors_page(found: Diagnoses) -> str:
    """Return each finding with the nodes that have it."""
    groups: dict[tuple[int, tuple[Finding, ...]], list[str]] = {}
    for each in found.nodes:
        groups.setdefault((each.exit_code, each.missing), []).append(each.node)
    lines: list[str] = []
    for (code, missing), nodes in sorted(groups.items(), key=lambda group: (-group[0][0], group[1])):
        count = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
        lines += filled(f"{count}: {_VERDICTS.get(code, f'exit code {code}')}: {', '.join(nodes)}")
        for finding in missing:
            lines += filled(f"-- {finding.signal}: {finding.reason}", "  ")
    for problem in found.problems:
        lines += filled(f"not known: {problem}")
    return page(lines or ["no node has an agent"])
