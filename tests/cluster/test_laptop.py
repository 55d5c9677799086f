"""`kubectl koordebpf` on a cluster with a node: an eviction, explained and decided again from outside. One story."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cluster.binaries import Binaries
from tests.cluster.host_deployment import NODE, USERS, HostDeployment, deployed_on_host
from tests.cluster.laptop import Laptop, documented_commands
from tests.cluster.objects import NAMESPACE
from tests.contract.apiserver import until

pytestmark = [pytest.mark.kubelet, pytest.mark.slow]  # one story: each test needs the one before

AMPLE = {"memoryEvictThresholdPercent": 90, "memoryEvictLowerPercent": 85}
SHORT = {"memoryEvictThresholdPercent": 22, "memoryEvictLowerPercent": 18}
STORY = documented_commands("An eviction, seen from outside")


@pytest.fixture(scope="module")
def deployment(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostDeployment]:
    with deployed_on_host(binaries, tmp_path_factory.mktemp("deployment")) as made:
        readers = "  - ../../components/readers\n"
        made.edit("overlays/enforce/kustomization.yaml", f"# {readers}", readers)
        made.apply("enforce")
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        made.api.patch(node, {"metadata": {"labels": {"koordebpf.io/mode": "enforce"}}})
        made.kubectl("apply", "--server-side", "-f", "deploy/examples/slo-controller-config.yaml")
        made.configure(**AMPLE)
        made.rolled_out("enforce")
        yield made


@pytest.fixture(scope="module")
def reader(deployment: HostDeployment, binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    folder = tmp_path_factory.mktemp("reader") / "home"
    return Laptop(deployment.cluster, binaries, "koordebpf:readers", folder)


@pytest.fixture(scope="module")
def operator(deployment: HostDeployment, binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    folder = tmp_path_factory.mktemp("operator") / "home"
    return Laptop(deployment.cluster, binaries, "koordebpf:operators", folder)


def test_a_reader_sees_that_all_is_well(reader: Laptop) -> None:
    first, row = reader.sees(STORY[0]).splitlines()
    assert first.split()[:3] == ["NODE", "AGENT", "READY"]
    assert row.split()[:3] == [NODE, "enforces", "yes"]
    assert max(map(len, (first, row))) <= 100
    (state,) = json.loads(reader.sees("kubectl koordebpf status -o json"))["nodes"]
    assert state["said"]["dry_run"] is False
    assert 0 < state["said"]["used_bytes"] < state["said"]["threshold_bytes"] < state["said"]["capacity_bytes"]
    assert "stalls timed" in reader.sees("kubectl koordebpf status -o wide")


def test_nodes_and_pods_by_what_they_use(deployment: HostDeployment, reader: Laptop, operator: Laptop) -> None:
    deployment.user_pod("web", 200, qos="LS", priority="koord-prod", requests={"memory": "200Mi"})
    deployment.user_pod("batch", 50)
    deployment.user_pod("low", 500)
    assert f"\n{NODE} " in reader.sees("kubectl koordebpf top nodes")

    def rows() -> list[list[str]]:
        lines = operator.sees(f"kubectl koordebpf top pods -n {USERS}").splitlines()[1:]
        return [line.split() for line in lines]

    found = until(lambda: rows() if len(rows()) == 3 else None, "three pods")
    assert [row[0] for row in found] == ["low", "web", "batch"]
    assert all(row[2].endswith("MiB") for row in found)
    everywhere = operator.sees("kubectl koordebpf top pods -A -o wide")
    assert f"{NAMESPACE}   koordebpf-agent" in everywhere
    (only,) = json.loads(operator.sees("kubectl koordebpf top pods -A -l app=web -o json"))["pods"]
    assert (only["node"], only["row"]["name"]) == (NODE, f"{USERS}/web")


def test_a_reader_may_not_run_commands(reader: Laptop) -> None:
    done = reader.types(f"kubectl koordebpf top pods -n {USERS}")
    assert done.returncode == 1
    assert f"{NODE}: create pods/exec: 403" in done.stderr
    assert "needs RBAC verb" in done.stderr


def test_why_a_pod_was_evicted_that_is_gone(deployment: HostDeployment, reader: Laptop, operator: Laptop) -> None:
    low = deployment.api.get({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "low", "namespace": USERS}})
    assert low is not None
    deployment.configure(**SHORT)
    deployment.api.wait_gone(low)
    until(lambda: operator.types(STORY[1]).returncode == 0, "a settled decision", 60)
    said = operator.sees(STORY[1])
    assert said.startswith(f"pod {USERS}/low: gone\n")
    assert "koordebpf evictPodSuccess" in said
    assert f"decided on {NODE}, says its agent:" in said
    assert f"evicting {USERS}/low (priority 5000, " in " ".join(said.split()), said
    assert "users/batch" in said  # who stayed
    assert max(map(len, said.splitlines())) <= 80
    # Who may not run commands has it from the log.
    assert f"decided on {NODE}, says its agent's log:" in reader.sees(STORY[1])
    deployment.configure(**AMPLE)


def test_without_events_all_agents_are_asked(deployment: HostDeployment, operator: Laptop) -> None:
    deployment.kubectl("-n", USERS, "delete", "events", "--all")
    why = json.loads(operator.sees(f"{STORY[1]} -o json"))
    assert (why["now"], why["events"], why["asked"]) == (None, [], [NODE])
    assert why["decisions"][-1]["decision"]["outcomes"][0]["name"] == "low"
    assert "no decision" in operator.sees("kubectl koordebpf why users/absent", code=1)


def test_a_pod_that_stayed(operator: Laptop) -> None:
    said = operator.sees("kubectl koordebpf why batch -n users")
    assert said.startswith(f"pod {USERS}/batch: running, on {NODE}\n")


def test_what_its_agent_says(operator: Laptop) -> None:
    assert f"evicting {USERS}/low" in operator.sees(f"kubectl koordebpf explain {NODE} --last 1")
    done = operator.types("kubectl koordebpf doctor --all")
    assert done.returncode in (0, 1), done.stderr
    assert NODE in done.stdout
    assert operator.types("kubectl koordebpf explain nowhere").returncode == 2


def test_its_recording_is_fetched_and_decided_again(operator: Laptop) -> None:
    for line in STORY[2:5]:
        operator.sees(line)
    assert (operator.folder / f"{NODE}.recording").is_dir()
    before = operator.sees(STORY[4])
    assert f"{USERS}/low" in before
    # With another threshold no pod is evicted.
    other = operator.sees(STORY[5])
    assert f"evicting {USERS}/low" not in other.replace("recorded: evicting", "")


def test_its_page_opens_in_a_browser(operator: Laptop) -> None:
    pytest.importorskip("selenium", reason="needs a browser; install it with: .ci/setup browser")
    from tests.browser.chromium import NoBrowser, chromium

    operator.sees(f"kubectl koordebpf report {NODE} -o incident.html")
    try:
        with chromium() as browser:
            browser.open(operator.folder / "incident.html")
            browser.opened_ms()
            shown = browser.run("return document.body.innerText")
            assert "users/low" in shown
            assert browser.run("return document.querySelectorAll('canvas').length") > 0
            assert browser.complaints() == []
    except NoBrowser as error:
        pytest.skip(str(error))
