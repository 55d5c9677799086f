"""What vagrant/ gives to a cluster: a real API server takes it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import control_plane
from vagrant.scenarios.scenario import names

pytestmark = pytest.mark.slow  # a control plane of its own

VAGRANT = Path(__file__).parents[2] / "vagrant"
APPLIED = [
    "namespace/koordinator-system",
    "customresourcedefinition.apiextensions.k8s.io/nodemetrics.slo.koordinator.sh",
    "customresourcedefinition.apiextensions.k8s.io/nodeslos.slo.koordinator.sh",
    "configmap/slo-controller-config",
    "priorityclass.scheduling.k8s.io/koord-prod",
    "priorityclass.scheduling.k8s.io/koord-batch",
    "deployment.apps/train",
    "deployment.apps/web",
]
GENERATIONS = "-o=jsonpath={range .items[*]}{.metadata.name} {.metadata.generation} {end}"


class Administrator:
    """Runs programs that find kubectl and its kubeconfig in the environment."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = os.environ | environment

    def run(self, *command: str | Path, given: str = "") -> str:
        done = subprocess.run(
            command, input=given, env=self._environment, cwd=VAGRANT.parent,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}:\n{done.stdout}"
        return done.stdout


@pytest.fixture(scope="module")
def administrator(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administrator]:
    """One of a cluster in which there is nothing yet."""
    programs = tmp_path_factory.mktemp("programs")
    (programs / "kubectl").symlink_to(binaries.kubernetes)
    with control_plane(binaries.kubernetes) as plane:
        yield Administrator({"PATH": f"{programs}:{os.environ['PATH']}", "KUBECONFIG": str(plane.admin_kubeconfig)})


def test_workloads_are_applied_and_the_second_time_keep(administrator: Administrator) -> None:
    script = VAGRANT / "provision/workloads.sh"
    said = administrator.run(script)
    assert said.splitlines() == [f"applied: {name}" for name in APPLIED]
    before = administrator.run("kubectl", "get", "deployments", GENERATIONS)
    assert before == "train 1 web 1 "
    administrator.run(script)
    assert administrator.run("kubectl", "get", "deployments", GENERATIONS) == before


@pytest.mark.parametrize("name", names())
def test_the_pods_of_a_scenario_are_taken(administrator: Administrator, name: str) -> None:
    manifest = administrator.run(sys.executable, "-m", "vagrant.scenarios", "--manifest", name)
    said = administrator.run("kubectl", "apply", "-f", "-", given=manifest)
    assert said.count("pod/") == manifest.count("kind: Pod\n") > 0
    administrator.run("kubectl", "delete", "--force", "--grace-period=0", "-f", "-", given=manifest)
