"""Cgroups called like pods outside the kubelet's root, on the running kernel: they change no pod."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from koordebpf.cli.doctor import doctor as command
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

BACKENDS = ["auto", "files"]
OTHER = "is not below the kubelet's cgroup root /"


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 256 * MIB) as node:
        yield node


def make(node: NodeCgroup, path: str) -> Path:
    """Make a directory below the node and those above it, as a service may that has cgroups of its own."""
    directory = node.path
    for name in path.split("/"):
        directory /= name
        directory.mkdir(exist_ok=True)
        if node.version == 2 and name != path.rpartition("/")[2]:
            (directory / "cgroup.subtree_control").write_text("+memory")
    return directory


def without_cgroup(node: NodeCgroup, name: str) -> str:
    """Put a best-effort pod on the list that the kubelet has made no cgroup for; return its UID."""
    (container,) = node.add_pod(name, be=True, priority=5000)
    container.rmdir()
    pod_path = node.pod_paths.pop(name)
    pod_path.rmdir()
    return pod_path.name.removeprefix("pod")


def arguments(node: NodeCgroup, folder: Path, backend: str) -> list[object]:
    manifest = node.write_manifest(folder / "pods.json", 55, 50)
    enforce = ["--enforce", "--executor", "cgroup", "--backend", backend]
    return ["--pods", manifest, "--node-cgroup", node.path, *enforce]


def rounds_pass(agent: LiveAgent) -> None:
    """Let the agent look at the node some times more: with what it does not do there is nothing to wait for."""
    ticks = agent.metric("koordebpf_ticks_total") + 10
    until(lambda: agent.metric("koordebpf_ticks_total") >= ticks, "ticks")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "is_first"),
    [("auto", True), ("auto", False), ("files", False)],
    ids=["made before the agent starts", "made while it runs", "made while it runs, files"],
)
def test_a_service_that_names_its_cgroup_after_a_pod_is_not_that_pod(
    node: NodeCgroup, tmp_path: Path, backend: str, is_first: bool
) -> None:
    node.add_pod("web", be=False)
    late = without_cgroup(node, "late")
    forged = f"any.service/kubepods/besteffort/pod{late}/{'f' * 64}"
    hog = None
    if is_first:
        make(node, forged)
    try:
        with LiveAgent(tmp_path, *arguments(node, tmp_path, backend)) as agent:
            agent.said("the kubelet's cgroup root is /: this node's pods are below")
            hog = Hog(make(node, forged), 160, hold_s=120)
            hog.wait_for("done")
            agent.said(OTHER)
            rounds_pass(agent)
            assert hog.process.poll() is None, agent.log
            assert "evicting" not in agent.log
            assert agent.metric("koordebpf_other_kubepods") == 1
            assert agent.metric('koordebpf_pods{state="without_cgroup"}') == 1
            assert agent.stop() == 0
    finally:
        if hog:
            hog.stop()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hog_does_not_hide_behind_a_second_cgroup_of_its_name(node: NodeCgroup, tmp_path: Path, backend: str) -> None:
    (container,) = node.add_pod("hog", be=True, priority=5000)
    hog = Hog(container, 160, hold_s=120)
    try:
        with LiveAgent(tmp_path, *arguments(node, tmp_path, backend)) as agent:
            make(node, f"any.service/kubepods/{node.pod_paths['hog'].name}")
            make(node, f"any.service/x.slice/x-kubepods.slice/{'x' * 64}")
            assert hog.process.wait(patience(30)) == -signal.SIGKILL, agent.log
            assert [each["name"] for each in agent.has_plan()["outcomes"]] == ["hog"]
            assert agent.stop() == 0
    finally:
        hog.stop()


@pytest.mark.slow
@pytest.mark.parametrize("root", ["/kubelet", "/system.slice/docker-3f.scope/kubelet"])
def test_a_root_that_is_not_the_nodes_is_learned_and_kept_or_given(node: NodeCgroup, tmp_path: Path, root: str) -> None:
    (container,) = node.add_pod("hog", be=True, priority=5000)
    below = f"{root[1:]}/kubepods/besteffort/{node.pod_paths['hog'].name}/{container.name}"
    container.rmdir()
    node.pod_paths["hog"].rmdir()
    real = make(node, below)
    given: list[object]
    for given in ([], ["--cgroup-root", root]):
        hog = Hog(real, 160, hold_s=120)
        try:
            with LiveAgent(tmp_path, *arguments(node, tmp_path, "auto"), *given) as agent:
                assert hog.process.wait(patience(30)) == -signal.SIGKILL, agent.log
                assert agent.stop() == 0
                if not given:
                    assert f"the kubelet's cgroup root is {root}:" in agent.log
                    (kept,) = agent.run_dir.glob("**/cgroup-root")
                    assert kept.read_text() == root
        finally:
            hog.stop()


@pytest.mark.slow
def test_a_given_root_without_kubepods_is_said_and_no_pod_is_evicted(node: NodeCgroup, tmp_path: Path) -> None:
    (container,) = node.add_pod("hog", be=True, priority=5000)
    hog = Hog(container, 160, hold_s=120)
    try:
        hog.wait_for("done")
        with LiveAgent(tmp_path, *arguments(node, tmp_path, "auto"), "--cgroup-root", "/custom") as agent:
            said = agent.said("--cgroup-root /custom: there is neither custom/kubepods nor")
            assert "leave it out to have it learned; there is one below /" in said
            rounds_pass(agent)
            assert hog.process.poll() is None and "evicting" not in agent.log, agent.log
            make(node, "custom/kubepods/besteffort")  # the kubelet starts
            agent.said("kubepods is not below the kubelet's cgroup root /custom")
            assert agent.stop() == 0
    finally:
        hog.stop()


def doctor(node: NodeCgroup, *more: str) -> dict[str, str]:
    arguments = ["--json", "--node-cgroup", str(node.path), *more]
    report = json.loads(CliRunner().invoke(command, arguments, catch_exceptions=False).stdout)
    (found,) = (each for each in report["sources"] if each["signal"] == "kubelet's cgroup root")
    return dict(found)


def test_doctor_says_which_root_there_is(node: NodeCgroup) -> None:
    assert doctor(node)["how"] == "/: kubepods"
    assert doctor(node, "--cgroup-root", "/")["how"] == "/, as given: kubepods"
    wrong = doctor(node, "--cgroup-root", "/custom")
    assert not wrong["works"]
    assert "neither custom/kubepods nor custom.slice/custom-kubepods.slice" in wrong["reason"]
    assert "set --cgroup-root (node.cgroupRoot) to the kubelet's own" in wrong["remedy"]
    make(node, "kind/kubelet/kubepods")
    assert doctor(node)["how"] == "one of /, /kind/kubelet: learned from the pods, or --cgroup-root"
