"""The page of all nodes' diagnoses: each finding once, with the nodes that have it."""

from __future__ import annotations

from koordebpf.tools.cluster.doctors import Diagnoses, Diagnosis, Finding, doctors_page

NO_PSI, NO_BTF = Finding("psi", "psi=0 on the command line"), Finding("reclaim", "the kernel has no BTF")
WELL, LESS, NONE = (
    Diagnosis("well", 0, "full", ()),
    Diagnosis("less", 1, "less", (NO_PSI,)),
    Diagnosis("none", 2, "none", (NO_BTF,)),
)


def diagnoses(*nodes: Diagnosis, problems: tuple[str, ...] = ()) -> Diagnoses:
    return Diagnoses("koordebpf.doctor-all/v1", nodes, problems)


def test_each_verdict_is_said_in_words_the_worst_first_and_nodes_that_are_alike_together() -> None:
    alike = Diagnosis("like", 1, "less", (NO_PSI,))
    assert doctors_page(diagnoses(WELL, LESS, NONE, alike, problems=("gone: no answer",))).splitlines() == [
        "1 node: cannot run: none",
        "  -- reclaim: the kernel has no BTF",
        "2 nodes: works with losses: less, like",
        "  -- psi: psi=0 on the command line",
        "1 node: all works: well",
        "not known: gone: no answer",
    ]


def test_a_cluster_is_as_well_as_its_worst_node_and_one_that_is_silent_has_losses() -> None:
    assert diagnoses(WELL).exit_code == 0
    assert diagnoses(WELL, problems=("gone: no answer",)).exit_code == 1
    assert diagnoses(LESS, NONE, WELL, problems=("gone: no answer",)).exit_code == 2
    assert doctors_page(diagnoses()) == "no node has an agent"
