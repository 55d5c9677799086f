"""`koordebpf explain node` against an API server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from koordebpf.cli import main
from koordebpf.cli.explain import explain
from tests.contract.apiserver import Server
from tests.contract.batch_rig import BATCH_CPU, BATCH_MEMORY, GIB, big_node, colocation, pod, report
from tests.contract.objectstore import CONFIGMAPS, NODEMETRICS, NODES, PODS, TOPOLOGIES, Store

SUM = """\
Node n1: 2 pods Running or Pending, NodeMetric AGE s old

kubernetes.io/batch-memory (the Node has 100.00 GiB)
  capacity                   400.00 GiB  node.status.capacity.memory
  safety margin          −   140.00 GiB  35 %, memoryReclaimThresholdPercent 65
  system used            −    20.00 GiB  NodeMetric systemUsage
  pods used              −    30.00 GiB  NodeMetric, 1 pod, not batch or free
  new pods requested     −     8.00 GiB  1 pod without a report yet
  third party            −     2.00 GiB  annotation thirdPartyAllocations
  result                 =   200.00 GiB
"""


@pytest.fixture
def store(server: Server) -> Store:
    store = Store(server)
    third = {"allocations": [{"priority": "koord-batch", "resources": {BATCH_MEMORY: "2Gi"}}]}
    annotations = {
        "node.koordinator.sh/thirdPartyAllocations": json.dumps(third),
        "node.koordinator.sh/reservation": "\x1b[2J{",
    }
    store.put(NODES, big_node("n1", annotations=annotations, has={BATCH_MEMORY: "100Gi"}))
    store.put(PODS, pod("a", "n1", "10", "40Gi"))
    store.put(PODS, pod("new", "n1", "1", "8Gi"))
    store.put(PODS, pod("elsewhere", "n2", "1", "8Gi"))
    store.put(CONFIGMAPS, colocation(degradeTimeMinutes=20))
    store.put(NODEMETRICS, report("n1", ("5", "20Gi"), ("a", "12", "30Gi")))
    amounts = [{"name": "cpu", "allocatable": "60"}, {"name": "memory", "allocatable": "241Gi"}]
    store.put(TOPOLOGIES, {"metadata": {"name": "n1"}, "zones": [{"name": "node-0", "resources": amounts}]})
    return store


def run(kubeconfig: Path, *arguments: str) -> Result:
    done = CliRunner().invoke(explain, ["node", *arguments, "--kubeconfig", str(kubeconfig)])
    assert done.exit_code == 0, done.output
    return done


def test_the_sum_is_shown_with_every_term_in_80_columns(store: Store, kubeconfig: Path) -> None:
    output = run(kubeconfig, "n1", "batch-memory").output
    lines = output.splitlines()
    assert max(map(len, lines)) <= 80
    wanted = SUM.splitlines()
    assert lines[0].startswith("Node n1: 2 pods Running or Pending, NodeMetric 1")
    assert lines[1 : len(wanted)] == wanted[1:]
    assert "  degradeTimeMinutes = 20: colocation-config.degradeTimeMinutes" in lines
    assert any(line.startswith("  node-0: ") for line in lines)
    assert any("appears" in line for line in lines)
    assert "\x1b" not in output
    assert "left out: annotation node.koordinator.sh/reservation" in output


def test_all_four_are_shown_where_none_is_named(store: Store, kubeconfig: Path) -> None:
    output = run(kubeconfig, "n1").output
    for resource in ("batch-cpu", "batch-memory", "mid-cpu", "mid-memory"):
        assert f"kubernetes.io/{resource} (the Node has" in output
    assert "  result                 =       42.000" in output


def test_json_has_the_same_in_bytes_and_millicpu(store: Store, kubeconfig: Path) -> None:
    found = json.loads(run(kubeconfig, "n1", "batch-memory", "--json").output)
    (calculation,) = found["calculations"]
    assert calculation["result"] == 200 * GIB == sum(term["value"] for term in calculation["terms"])
    assert found["has"] == {BATCH_MEMORY: 100 * GIB}
    assert found["values"]["degradeTimeMinutes"] == 20


def test_a_node_without_any_says_why(store: Store, kubeconfig: Path) -> None:
    store.put(NODEMETRICS, report("n1", ("5", "20Gi"), age_s=3600))
    output = run(kubeconfig, "n1", "batch-cpu").output
    assert "kubernetes.io/batch-cpu: none (the Node has none)" in output
    assert "its NodeMetric is 60 min old (degradeTimeMinutes 20)" in output
    store.remove(NODEMETRICS, "n1")
    assert "there is no NodeMetric of this node" in run(kubeconfig, "n1", "batch-cpu").output
    store.put(CONFIGMAPS, colocation(enable=False))
    assert "colocation is off" in run(kubeconfig, "n1", "batch-cpu").output


def test_a_node_that_is_not_there_is_an_error(
    store: Store, kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "node", "n9", "--kubeconfig", str(kubeconfig)])
    assert "n9 not found" in capsys.readouterr().err


def test_a_difference_that_is_small_says_when_it_is_written(store: Store, kubeconfig: Path) -> None:
    amounts = {BATCH_CPU: "42100", BATCH_MEMORY: str(200 * GIB), "kubernetes.io/mid-cpu": "0"}
    sums = {"resources": {BATCH_CPU: "42100", BATCH_MEMORY: "200Gi"}}
    annotations = {"node.koordinator.sh/originExtendedAllocatable": json.dumps(sums)}
    store.put(NODES, big_node("n1", has={**amounts, "kubernetes.io/mid-memory": "0"}, annotations=annotations))
    output = run(kubeconfig, "n1", "batch-cpu").output
    assert "written updateTimeThresholdSeconds (300) after the last" in " ".join(output.split())
