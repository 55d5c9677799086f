"""deploy/ on a real node, as an operator walks through its README: one story, in the order of these tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kube.clients.kubelet import SOCKET, BoundCpus
from tests.cluster.agent_image import IMAGE, ROOT
from tests.cluster.api import Object
from tests.cluster.binaries import Binaries
from tests.cluster.host_deployment import USERS, HostDeployment, deployed_on_host
from tests.cluster.objects import DONE_EVENTS, NAMESPACE, reasons
from tests.cluster.processes import ServerProcess, wait_for
from tests.contract.apiserver import until
from tests.support.followed import Followed

pytestmark = [pytest.mark.kubelet, pytest.mark.slow]  # one story: each test needs the one before

USER_PODS = ("web", "batch")
WRITTEN = (
    "cpu.cfs_*_us",
    "cpu.shares",
    "cpu.idle",
    "cpuset.cpus",
    "memory.limit_in_bytes",
    "memory.soft_limit_in_bytes",
)
SHORT = {"memoryEvictThresholdPercent": 22, "memoryEvictLowerPercent": 18}  # until who holds 17 % is gone
AMPLE = {"memoryEvictThresholdPercent": 90, "memoryEvictLowerPercent": 85}
HELD = {**AMPLE, "cpuSuppressThresholdPercent": 40, "cpuSuppressPolicy": "cfsQuota"}
NO_QUOTA = "-1"


@pytest.fixture(scope="module")
def untouched(deployment: HostDeployment) -> dict[Path, bytes]:
    """What the files held before there was an agent."""
    return files_of(deployment)


@pytest.fixture(scope="module")
def deployment(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostDeployment]:
    with deployed_on_host(binaries, tmp_path_factory.mktemp("deployment")) as deployment:
        deployment.user_pod("web", 200, qos="LS", priority="koord-prod", requests={"memory": "200Mi"})
        deployment.user_pod("batch", 50)
        yield deployment


def files_of(deployment: HostDeployment) -> dict[Path, bytes]:
    """Return what every file holds that an agent may write: of best-effort pods, and of all that live through it."""
    level = deployment.node.directory("cpu") / "kubepods/besteffort"
    assert level.is_dir()
    found = {}
    for controller in ("cpu", "cpuset", "memory"):
        pods = deployment.node.directory(controller) / "kubepods"
        levels = [pods / "besteffort"]
        levels += [found for one in USER_PODS for found in pods.rglob(f"pod{uid_of(deployment, one)}")]
        for path in (path for each in levels for pattern in WRITTEN for path in each.rglob(pattern)):
            found[path] = path.read_bytes()
    return found


def uid_of(deployment: HostDeployment, name: str) -> str:
    found = deployment.api.get(named(name))
    assert found is not None
    return str(found["metadata"]["uid"])


def quota_of(deployment: HostDeployment) -> Path:
    """Return the file by which all best-effort pods of the node are held."""
    return deployment.node.directory("cpu") / "kubepods/besteffort/cpu.cfs_quota_us"


def is_there(deployment: HostDeployment, one: Object) -> bool:
    found = deployment.api.get(one)
    return found is not None and found["metadata"]["uid"] == one["metadata"]["uid"]


def decided(deployment: HostDeployment, agent: str) -> list[Object]:
    """Return the plans of an agent's audit that have victims."""
    return [line for line in deployment.logs(agent) if line.get("outcomes")]


def test_the_overlay_is_applied_and_the_agent_becomes_ready(
    deployment: HostDeployment, untouched: dict[Path, bytes]
) -> None:
    assert len(untouched) > 20
    deployment.follow("Watch")
    agent = deployment.rolled_out("observe")
    deployment.said(agent, "dry run: nothing is evicted")


def test_a_second_apply_changes_nothing(deployment: HostDeployment) -> None:
    before = deployment.kubectl("-n", NAMESPACE, "get", "daemonset,deployment,configmap", "-o", "json")
    deployment.apply("observe")
    after = deployment.kubectl("-n", NAMESPACE, "get", "daemonset,deployment,configmap", "-o", "json")
    generations = [
        {each["metadata"]["name"]: each["metadata"].get("generation") for each in json.loads(text)["items"]}
        for text in (before, after)
    ]
    assert generations[0] == generations[1]


def test_its_capabilities_and_mounts_are_enough(deployment: HostDeployment) -> None:
    """In the pod works what works for root on the host, each in the same way."""
    agent = deployment.rolled_out("observe")
    doctor = ["koordebpf", "doctor", "--json"]
    inside = deployment.kubectl("-n", NAMESPACE, "exec", agent, "--", "sh", "-c", " ".join(doctor) + " || true")
    command = [sys.executable, "-m", *doctor]
    outside = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found = [{each["signal"]: (each["works"], each["how"]) for each in sources(text)} for text in (inside, outside)]
    root = "kubelet's cgroup root"  # the node is a cgroup of this machine, where other kubelets may be
    assert found[0].pop(root) == (True, "/: kubepods")
    assert found[1].pop(root)[0]
    assert found[0] == found[1]
    assert json.loads(inside)["backends"][0] == json.loads(outside)["backends"][0]


def test_the_sockets_that_it_mounts_answer(deployment: HostDeployment) -> None:
    agent = deployment.rolled_out("observe")

    def run(*command: str) -> str:
        return deployment.kubectl("-n", NAMESPACE, "exec", agent, "--", *command)

    # Policy none, and a runtime that runs the agent.
    ask = f"from koordebpf.kube.clients.kubelet import *; print(bound_cpus(Path('{SOCKET}')))"
    assert run("python", "-c", ask).strip() == str(BoundCpus())
    assert run("python", "-c", "from koordebpf.kube.clients.cri import Cri; print(Cri().version())").startswith(
        "containerd "
    )


def sources(text: str) -> list[Object]:
    listed: list[Object] = json.loads(text)["sources"]
    return listed


def test_it_is_scraped_over_http(deployment: HostDeployment) -> None:
    metrics = deployment.metrics(deployment.rolled_out("observe"))
    assert "koordebpf_dry_run 1.0" in metrics
    assert 'koordebpf_signals_info{backend="co-re"' in metrics


@pytest.fixture(scope="module")
def prometheus(deployment: HostDeployment) -> Iterator[ServerProcess]:
    server = deployment.prometheus()
    wait_for(lambda: targets(deployment), "Prometheus has no target", [server])
    yield server
    server.stop()


def targets(deployment: HostDeployment) -> list[Object]:
    """Return what Prometheus scrapes; none: it is not there yet."""
    try:
        found: list[Object] = deployment.ask_prometheus("targets")["activeTargets"]
    except AssertionError:
        return []
    return found


def firing(deployment: HostDeployment) -> dict[str, Object]:
    """Return the labels of the alerts that fire, by name."""
    alerts = deployment.ask_prometheus("alerts")["alerts"]
    return {each["labels"]["alertname"]: each["labels"] for each in alerts if each["state"] == "firing"}


def test_prometheus_finds_the_agent_and_both_controllers(deployment: HostDeployment, prometheus: ServerProcess) -> None:
    def scraped() -> list[str]:
        return sorted(each["labels"]["component"] for each in targets(deployment) if each["health"] == "up")

    wait_for(lambda: scraped() == ["agent", "controller", "controller"], "not all are scraped", [prometheus])
    assert firing(deployment) == {}


def test_an_observer_reports_and_evicts_no_pod(deployment: HostDeployment, prometheus: ServerProcess) -> None:
    agent = deployment.rolled_out("observe")
    low = deployment.user_pod("low", 500)
    deployment.follow("Read what it would have done", agent)
    (plan, *_) = until(lambda: decided(deployment, agent), "a plan", 60)
    assert [(each["name"], each["result"]) for each in plan["outcomes"]] == [("low", "dry_run")]
    wait_for(lambda: "KoordebpfWouldEvict" in firing(deployment), "no alert", [prometheus])
    alert = firing(deployment)["KoordebpfWouldEvict"]
    assert (alert["node"], alert["feature"]) == (deployment.node.name, "BEMemoryEvict")
    assert is_there(deployment, low)
    deployment.configure(**AMPLE)
    wait_for(lambda: firing(deployment) == {}, "an alert keeps firing", [prometheus])


def test_who_is_gone_and_what_is_unusable_is_reported(deployment: HostDeployment, prometheus: ServerProcess) -> None:
    deployment.follow("Act, on one pool of nodes")
    deployment.rolled_out("enforce")
    deployment.edit_config_map("{")
    # Prometheus knows of the agent that has gone, and not of the one in its place.
    expected = {"KoordebpfDown", "KoordebpfAbsent", "KoordebpfConfigMapUnusable"}
    wait_for(lambda: expected <= firing(deployment).keys(), f"not all of {expected} fire", [prometheus])
    deployment.discover()
    deployment.configure(**AMPLE)
    wait_for(lambda: firing(deployment) == {}, "an alert keeps firing", [prometheus])


def test_on_a_node_with_the_label_it_acts(deployment: HostDeployment) -> None:
    agent = deployment.rolled_out("enforce")
    low, web = (deployment.api.get(named(name)) for name in ("low", "web"))
    assert low is not None and web is not None
    deployment.configure(**SHORT)
    deployment.api.wait_gone(low)
    assert is_there(deployment, web)
    (plan, *_) = until(lambda: decided(deployment, agent), "a plan", 60)
    assert [(each["name"], each["result"]) for each in plan["outcomes"]] == [("low", "done")]
    query = {"fieldSelector": DONE_EVENTS}
    events = until(lambda: deployment.api.items("v1", "Event", USERS, **query), "an Event")
    assert reasons(events) == [("low", "evictPodSuccess")]
    deployment.configure(**AMPLE)
    deployment.follow("Read what it has done", agent)


def replace_while_held(deployment: HostDeployment, old: str, new: str) -> None:
    """Apply another image while best-effort pods are limited; no limit may be lifted meanwhile."""
    before = deployment.rolled_out("enforce")
    with Followed(quota_of(deployment)) as quota:
        give(deployment, old, new)
        after = deployment.rolled_out("enforce")
        assert after != before
        deployment.said(after, "the agent before this one has ended: this one acts now")
        deployment.said(after, "enforcing by api")
    assert quota.values
    assert NO_QUOTA not in quota.values


def test_an_upgrade_releases_no_pod(deployment: HostDeployment) -> None:
    deployment.configure(**HELD)
    held_by_quota(deployment)
    deployment.node.tag_image(IMAGE, IMAGE + ".next")
    replace_while_held(deployment, "0.1.0", "0.1.0.next")


def give(deployment: HostDeployment, old: str, new: str) -> None:
    """Apply the same with another image."""
    deployment.edit("overlays/enforce/kustomization.yaml", f"newTag: {old}\n", f"newTag: {new}\n")
    deployment.apply("enforce")


def held_by_quota(deployment: HostDeployment) -> None:
    until(lambda: quota_of(deployment).read_text().strip() != NO_QUOTA, "best-effort pods are held", 60)


def test_and_neither_does_its_roll_back(deployment: HostDeployment) -> None:
    replace_while_held(deployment, "0.1.0.next", "0.1.0")


def test_without_the_label_everything_is_restored(deployment: HostDeployment, untouched: dict[Path, bytes]) -> None:
    deployment.follow("Back")
    deployment.rolled_out("observe")
    assert files_of(deployment) == untouched


def test_after_its_removal_every_cgroup_is_as_before(deployment: HostDeployment, untouched: dict[Path, bytes]) -> None:
    deployment.follow("Act, on one pool of nodes")
    deployment.rolled_out("enforce")
    deployment.configure(**HELD)
    held_by_quota(deployment)
    deployment.follow("Away")
    assert deployment.api.items("v1", "Pod", NAMESPACE) == []
    assert files_of(deployment) == untouched


def named(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": USERS}}
