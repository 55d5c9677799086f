"""What an operator applies, rolls back and removes, by kubectl and by Helm: a real API server without nodes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane, control_plane
from tests.cluster.documented import commands
from tests.deploy.programs import helm, operator_definitions
from tests.deploy.rendered import DEPLOY, NAMESPACE, built, overlay_with, templated

pytestmark = pytest.mark.slow  # compiling helm and kustomize takes minutes on a fresh machine

EVICTION = ["pods/eviction"]
# Those that change the same object are apart.
COMPONENTS = [
    [
        "beside-koordinator",
        "node-mark",
        "katalyst",
        "instead-of-koordlet",
        "namespace-labels",
        "pod-deletion",
        "own-node-only",
        "prometheus-operator",
    ],
    ["cri"],
    ["cri-o", "nri", "kubelet-state", "layers"],
    ["batch-resources"],
    ["host-processes"],
    ["oom-score-adj"],
    ["core-sched", "readers"],
    ["privileged"],
]


class Operator:
    """Who types: the programs with an administrator's credentials, at the root of a checkout."""

    def __init__(self, cluster: ControlPlane, binaries: Binaries, home: Path) -> None:
        self._kubectl = [str(binaries.kubernetes), "kubectl", f"--kubeconfig={cluster.admin_kubeconfig}"]
        self._helm = [str(helm()), f"--kubeconfig={cluster.admin_kubeconfig}"]
        self._environment = os.environ | {f"HELM_{name}_HOME": str(home / name) for name in ("CACHE", "CONFIG", "DATA")}

    def kubectl(self, *arguments: str, given: str = "") -> str:
        return self._run([*self._kubectl, *arguments], given)

    def type(self, line: str) -> str:
        """Run a line of deploy/README.md; return what it printed."""
        program, *arguments = shlex.split(line)
        return self._run([*{"kubectl": self._kubectl, "helm": self._helm}[program], *arguments])

    def get(self, *what: str) -> Any:
        return json.loads(self.kubectl("-n", NAMESPACE, "get", *what, "-o", "json"))

    def evicting_roles(self) -> list[str]:
        """Return who has been given the right to evict, of ours."""
        roles = self.get("clusterroles", "-l", "app.kubernetes.io/name=koordebpf")["items"]
        return [role["metadata"]["name"] for role in roles if EVICTION in [rule["resources"] for rule in role["rules"]]]

    def daemonsets(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.get("daemonsets")["items"]]

    def what_is_left(self) -> list[str]:
        kinds = "daemonsets,deployments,configmaps,serviceaccounts,roles,rolebindings,networkpolicies"
        cluster_wide = "clusterroles,clusterrolebindings"
        ours = ["-l", "app.kubernetes.io/name=koordebpf"]
        found = self.get(kinds, *ours)["items"] + self.get(cluster_wide, *ours)["items"]
        found += [each for each in self.get("crds")["items"] if "koordinator" in each["metadata"]["name"]]
        return [f"{each['kind']} {each['metadata']['name']}" for each in found]

    def _run(self, command: list[str], given: str = "") -> str:
        done = subprocess.run(
            command,
            input=given,
            cwd=DEPLOY.parent,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command[1:])}: {done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def operator(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """A cluster of its own: nothing of deploy/ is in it but the namespace."""
    with control_plane(binaries.kubernetes) as cluster:
        operator = Operator(cluster, binaries, tmp_path_factory.mktemp("helm"))
        definitions = [operator_definitions()[kind] for kind in ("PodMonitor", "PrometheusRule")]
        operator.kubectl("apply", "--server-side", "-f", "-", given=yaml.safe_dump_all(definitions))
        operator.kubectl("apply", "--server-side", "-f", "deploy/base/namespace.yaml")
        operator.kubectl("wait", "--for=condition=Established", "crd", "--all")
        yield operator


@pytest.mark.parametrize("components", COMPONENTS, ids="+".join)
def test_the_api_server_takes_every_field(components: Sequence[str], operator: Operator, tmp_path: Path) -> None:
    objects = built(overlay_with(tmp_path, "enforce", components))
    applied = operator.kubectl(
        *("apply", "--server-side", "--validate=strict", "--dry-run=server", "-o", "name", "-f", "-"),
        given=yaml.safe_dump_all(objects),
    )
    assert len(applied.splitlines()) == len(objects)


def test_every_component_was_taken() -> None:
    assert {name for names in COMPONENTS for name in names} == {path.name for path in (DEPLOY / "components").iterdir()}


def test_a_field_that_is_not_known_is_refused(operator: Operator) -> None:
    (policy,) = [one for one in templated() if one["kind"] == "NetworkPolicy"]
    policy["spec"]["podSelektor"] = {}
    with pytest.raises(AssertionError, match="podSelektor"):
        operator.kubectl(
            *("apply", "--server-side", "--validate=strict", "--dry-run=server", "-f", "-"),
            given=yaml.safe_dump(policy),
        )


def test_from_watching_to_acting_and_back_with_kustomize(operator: Operator) -> None:
    apply = ("apply", "--server-side", "-k")
    operator.kubectl(*apply, "deploy/overlays/observe")
    watching = operator.get("daemonset", "koordebpf-agent")["spec"]
    assert (operator.daemonsets(), operator.evicting_roles()) == (["koordebpf-agent"], [])
    operator.kubectl(*apply, "deploy/overlays/enforce")
    assert operator.daemonsets() == ["koordebpf-agent", "koordebpf-agent-enforce"]
    assert operator.evicting_roles() == ["koordebpf-agent"]
    operator.kubectl(*apply, "deploy/overlays/observe")
    assert operator.get("daemonset", "koordebpf-agent")["spec"] == watching
    assert operator.evicting_roles() == []
    operator.kubectl("delete", "-k", "deploy/overlays/enforce")
    assert operator.what_is_left() == []


def test_from_watching_to_acting_and_back_with_helm(operator: Operator) -> None:
    namespace, install, upgrade, rollback, uninstall = commands("The same with Helm")
    operator.type(namespace)
    notes = operator.type(install)
    assert "koordebpf watches every node and evicts no pod." in notes
    # The namespace has the label already.
    assert "Pod Security Standard" not in notes
    watching = operator.get("daemonset", "koordebpf-agent")["spec"]
    assert (operator.daemonsets(), operator.evicting_roles()) == (["koordebpf-agent"], [])
    notes = operator.type(upgrade)
    assert "acts on those with koordebpf.io/mode=enforce" in notes
    assert operator.daemonsets() == ["koordebpf-agent", "koordebpf-agent-enforce"]
    assert operator.evicting_roles() == ["koordebpf-agent"]
    operator.type(rollback)
    assert operator.get("daemonset", "koordebpf-agent")["spec"] == watching
    assert (operator.daemonsets(), operator.evicting_roles()) == (["koordebpf-agent"], [])
    operator.type(uninstall)
    assert operator.what_is_left() == []
