"""The page of `koordebpf pod explain`: 80 columns, whatever a tenant calls things."""

from __future__ import annotations

from koordebpf.tools.pod_explain import ExplainedCgroup, ExplainedPodValues, ExplainedValue, pod_values_page

POD = ExplainedPodValues(
    "uid-1",
    "team/web",
    (
        ExplainedCgroup(
            "kubepods/besteffort/poduid-1",
            (
                ExplainedValue("cpu.shares", "512", ("BatchResource",), "2", "kubernetes.io/batch-cpu requests"),
                ExplainedValue("cpu.cfs_quota_us", "-1"),
                ExplainedValue("cpuset.cpus", ""),
            ),
        ),
        ExplainedCgroup(
            "kubepods/besteffort/poduid-1/" + "a" * 64,
            (ExplainedValue("oom_score_adj", "", ("OOMScoreAdj",), None, "annotation x", "wants 500"),),
            "a" * 64,
        ),
    ),
)


def test_each_value_has_who_set_it_and_from_which_field():
    assert pod_values_page(POD).splitlines() == [
        "pod team/web, uid uid-1",
        "",
        "the pod itself",
        "  /kubepods/besteffort/poduid-1",
        "  cpu.shares                        512  BatchResource, before: 2",
        "      kubernetes.io/batch-cpu requests",
        "  cpu.cfs_quota_us             no limit  not by this agent",
        "  cpuset.cpus                     empty  not by this agent",
        "",
        "container aaaaaaaaaaa…aaaaaaaaaaaa",
        *pod_values_page(POD).splitlines()[10:12],
        "  oom_score_adj                       -  OOMScoreAdj",
        "      annotation x",
        "      wants 500",
    ]


def test_what_a_tenant_writes_stays_within_the_page():
    wild = "\x1b[31m" + "ü\u202e" * 200
    value = ExplainedValue(wild, wild, (wild,), wild, wild, wild)
    page = pod_values_page(ExplainedPodValues(wild, wild, (ExplainedCgroup(wild, (value,), wild),), (wild,)))
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert page.count("\n") < 200
