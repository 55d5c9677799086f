"""Who installs koordebpf: kubectl and Helm with an administrator's credentials, at the root of a checkout."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

from tests.cluster.api import Object
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane
from tests.deploy.programs import helm
from tests.deploy.rendered import DEPLOY, NAMESPACE

_EVICTION = ["pods/eviction"]
# Of what others may have objects; Events and Leases come and go by themselves.
_KINDS = [
    "crds",
    "namespaces",
    "nodes",
    "priorityclasses",
    "clusterroles",
    "clusterrolebindings",
    "roles",
    "rolebindings",
    "serviceaccounts",
    "configmaps",
    "secrets",
    "deployments",
    "daemonsets",
    "networkpolicies",
    "resourcequotas",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "nodeslos.slo.koordinator.sh",
    "nodemetrics.slo.koordinator.sh",
]


class Operator:
    """Runs what an operator types; a program that fails raises AssertionError with what it said."""

    def __init__(self, cluster: ControlPlane, binaries: Binaries, home: Path) -> None:
        self._kubectl = [str(binaries.kubernetes), "kubectl", f"--kubeconfig={cluster.admin_kubeconfig}"]
        self._helm = [str(helm()), f"--kubeconfig={cluster.admin_kubeconfig}"]
        self._environment = os.environ | {f"HELM_{name}_HOME": str(home / name) for name in ("CACHE", "CONFIG", "DATA")}

    def kubectl(self, *arguments: str, given: str = "") -> str:
        """Return what kubectl printed."""
        return self._run([*self._kubectl, *arguments], given)

    def helm(self, *arguments: str) -> str:
        """Return what Helm printed; the release is in the agents' namespace."""
        return self._run([*self._helm, "-n", NAMESPACE, *arguments])

    def type(self, line: str) -> str:
        """Run a line of deploy/README.md; return what it printed."""
        program, *arguments = shlex.split(line)
        return self._run([*{"kubectl": self._kubectl, "helm": self._helm}[program], *arguments])

    def get(self, *what: str) -> Any:
        """Return objects; those of a namespace from the agents'."""
        return json.loads(self.kubectl("-n", NAMESPACE, "get", *what, "-o", "json"))

    def evicting_roles(self) -> list[str]:
        """Return who has been given the right to evict, of ours."""
        roles = self.get("clusterroles", "-l", "app.kubernetes.io/name=koordebpf")["items"]
        evicting = [role for role in roles if _EVICTION in [rule["resources"] for rule in role["rules"]]]
        return [role["metadata"]["name"] for role in evicting]

    def daemonsets(self) -> list[str]:
        """Return the names of the agents' DaemonSets."""
        return [each["metadata"]["name"] for each in self.get("daemonsets")["items"]]

    def ours(self) -> list[str]:
        """Return what is koordebpf's own, but for its namespace."""
        kinds = "daemonsets,deployments,configmaps,serviceaccounts,roles,rolebindings,networkpolicies,resourcequotas"
        cluster_wide = "clusterroles,clusterrolebindings"
        ours = ["-l", "app.kubernetes.io/name=koordebpf"]
        found = self.get(kinds, *ours)["items"] + self.get(cluster_wide, *ours)["items"]
        return [f"{each['kind']} {each['metadata']['name']}" for each in found]

    def of_others(self) -> dict[str, Object]:
        """Return every object that is not koordebpf's own, whole, by kind, namespace and name."""
        command = ("get", ",".join(_KINDS), "-A", "--show-managed-fields", "-o", "json")
        found = {}
        for each in json.loads(self.kubectl(*command))["items"]:
            names = [each["metadata"].get("namespace", ""), each["metadata"]["name"]]
            if NAMESPACE not in names and not names[1].startswith("koordebpf"):
                found["/".join([each["kind"], *names])] = each
        return found

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
