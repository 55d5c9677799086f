"""Runs `koordebpf doctor` on many nodes."""

from __future__ import annotations

import msgspec

from koordebpf.errors import KubeError
from koordebpf.kube.malformed import MALFORMED, reason
from koordebpf.kube.remote.exec import text_of
from koordebpf.kube.remote.pods import CONTAINER, RemotePod
from koordebpf.report.cluster.doctors import Diagnoses, Diagnosis, Finding
from koordebpf.tools.cluster.asking import Agents, ask_all


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
