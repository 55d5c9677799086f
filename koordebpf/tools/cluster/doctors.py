"""Runs `koordebpf doctor` on many nodes."""

from __future__ import annotations

from typing import Literal

import msgspec

from koordebpf.errors import KubeError
from koordebpf.kube.body import MALFORMED, reason
from koordebpf.kube.remote.exec import text_of
from koordebpf.kube.remote.pods import CONTAINER, RemotePod
from koordebpf.printable import page
from koordebpf.report.pages.columns import filled
from koordebpf.tools.cluster.asking import Agents, ask_all

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


class _Source(msgspec.Struct, frozen=True):
    signal: str
    works: bool
    reason: str = ""
    how: str = ""


class _Report(msgspec.Struct, frozen=True):
    exit_code: int
    sources: list[_Source]
    quality: str = ""


def diagnoses(agents: Agents, within_s: float) -> Diagnoses:
    """Return what doctor says on each node, with the settings of its agent; a node that does not answer is named."""
    answers = ask_all(agents.by_node, lambda pod: _diagnosis(agents, pod, within_s), within_s=within_s)
    return Diagnoses(
        "koordebpf.doctor-all/v1",
        tuple(Diagnosis(node, *found) for node, found in answers.given.items()),
        tuple(f"{each.node}: {each.reason}" for each in answers.missing),
    )


def _diagnosis(agents: Agents, pod: RemotePod, within_s: float) -> tuple[int, str, tuple[Finding, ...]]:
    raw, ended = text_of(agents.cluster, pod.place, CONTAINER, ("koordebpf", "doctor", "--json"), within_s)
    try:
        report = msgspec.json.decode(raw, type=_Report)
    except MALFORMED as error:
        said = ended.stderr.strip().rpartition("\n")[2] or reason(error)
        raise KubeError(f"doctor: exit code {ended.exit_code}: {said}", retry=False) from error
    missing = tuple(Finding(each.signal, each.reason) for each in report.sources if not each.works)
    return report.exit_code, report.quality, missing
