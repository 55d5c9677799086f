"""deploy/ as an operator has it: a copy to edit, kubectl to apply it with, a cluster that schedules its pods."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.api import Object
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.documented import commands, is_like, transcripts
from tests.cluster.objects import AGENT, BASE, NAMESPACE
from tests.cluster.processes import ServerProcess
from tests.contract.apiserver import until
from tests.support.patience import patience

COMPONENTS = ("own-node-only", "cri")
_POOL = {"pool": "batch"}
_TIMEOUT_S = 120
_AGENTS = "app.kubernetes.io/component=agent"
# What changes nothing may be typed again until it shows what it should.
_LOOKS = {"get", "logs", "exec", "status"}
_MODES = {"observe": AGENT, "enforce": f"{AGENT}-enforce"}


class Deployment:
    """A cluster with every controller and the scheduler, into which deploy/ is applied as its README says.

    `folder` is the copy of deploy/, `node_name` the one node's, `slower` how many times longer than here everything may
    take there. The components that a cluster may take are taken.
    """

    def __init__(
        self, cluster: ControlPlane, binaries: Binaries, node_name: str, folder: Path, *, slower: float = 1
    ) -> None:
        self._slower = slower
        self.cluster = cluster
        self.api = cluster.api
        self.node_name = node_name
        self.folder = shutil.copytree(BASE.parent, folder / "deploy")
        self._kubectl = [str(binaries.kubernetes), "kubectl", f"--kubeconfig={cluster.admin_kubeconfig}"]
        self._programs = folder / "bin"
        self._programs.mkdir()
        program = self._programs / "kubectl"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(self._kubectl)} "$@"\n')
        program.chmod(0o755)
        for overlay in ("observe", "enforce"):
            for line in ("components:", *(f"  - ../../components/{name}" for name in COMPONENTS)):
                self.edit(f"overlays/{overlay}/kustomization.yaml", f"# {line}\n", f"{line}\n")
        self._scheduler = _scheduler(cluster, binaries)

    def add_to_pool(self) -> None:
        """Give the node the label of those on which agents act."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.node_name}}
        self.api.patch(node, {"metadata": {"labels": _POOL}})

    def edit(self, name: str, old: str, new: str) -> None:
        """Change a file of the copy: the one place that says `old`."""
        path = self.folder / name
        text = path.read_text()
        assert text.count(old) == 1, (name, old)
        path.write_text(text.replace(old, new))

    def kubectl(self, *arguments: str) -> str:
        """Return what kubectl printed; it runs beside the copy, so that `-k deploy/overlays/observe` is its path."""
        done = subprocess.run(
            [*self._kubectl, *arguments], cwd=self.folder.parent, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{self.diagnostics()}"
        return done.stdout

    def follow(self, section: str, pod: str = "") -> None:
        """Type each command of a section of deploy/README.md; what it shows of their output must come.

        Not docker's: the image, of the same Dockerfile, is there already.
        """
        shown = transcripts(section)
        for command in commands(section):
            if not command.startswith("docker "):
                self._type(command.replace("NODE", self.node_name).replace("POD", pod), shown.get(command))

    def _type(self, line: str, shown: Sequence[str] | None) -> None:
        environment = os.environ | {"PATH": f"{self._programs}:{os.environ['PATH']}", "COLUMNS": "80"}
        printed = ""

        def is_shown() -> bool:
            nonlocal printed
            done = subprocess.run(
                ["sh", "-c", line],
                cwd=self.folder.parent,
                env=environment,
                timeout=patience(self._slower * _TIMEOUT_S),
                capture_output=True,
                text=True,
                check=False,
            )
            printed = done.stdout + done.stderr
            # What runs in a container, as doctor, may say something by its exit code.
            is_done = done.returncode == 0 or " exec " in line
            return is_done and (shown is None or is_like(done.stdout, shown))

        if _LOOKS & set(line.split()):
            with contextlib.suppress(TimeoutError):
                until(is_shown, line, self._slower * 60)
                return
        elif is_shown():
            return
        raise AssertionError("\n".join([f"not as deploy/README.md has it: {line}", printed, self.diagnostics()]))

    def apply(self, overlay: str) -> None:
        """Apply an overlay as deploy/README.md says, after what it shares with others."""
        self.kubectl("apply", "--server-side", "-k", "deploy/bootstrap")
        self.kubectl("apply", "--server-side", "-k", f"deploy/overlays/{overlay}")

    def configure(self, **strategy: Any) -> None:
        """Change the cluster's resource-threshold-config."""
        self.edit_config_map(json.dumps({"clusterStrategy": {"enable": True, **strategy}}))

    def edit_config_map(self, text: str) -> None:
        """Change the text of the cluster's resource-threshold-config, in a file that is applied as the examples are."""
        name = {"name": "slo-controller-config", "namespace": "koordinator-system"}
        data = {"resource-threshold-config": text}
        path = self.folder.parent / "slo-controller-config.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": data}))
        self.kubectl("apply", "--server-side", "-f", str(path))

    def rolled_out(self, mode: str) -> str:
        """Wait until the node's agent is this mode's, of the newest revision, and Ready; return its pod's name."""
        timeout = f"--timeout={patience(self._slower * _TIMEOUT_S):.0f}s"
        self.kubectl("-n", NAMESPACE, "rollout", "status", f"daemonset/{_MODES[mode]}", timeout)
        found: str = until(lambda: self._agent(mode), f"an agent that is there to {mode}", self._slower * _TIMEOUT_S)
        return found

    def logs(self, pod: str) -> list[Mapping[str, Any]]:
        """Return what an agent has written: its log, and the lines of its audit."""
        lines = self.kubectl("-n", NAMESPACE, "logs", pod).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def said(self, pod: str, text: str) -> str:
        """Wait until an agent's log has `text`; return the message."""

        def find() -> str | None:
            messages = (str(line.get("message", "")) for line in self.logs(pod))
            return next((message for message in messages if text in message), None)

        try:
            return str(until(find, text, self._slower * 60))
        except TimeoutError:
            raise AssertionError(f"{pod} did not say {text!r}:{self.diagnostics()}") from None

    def metrics(self, pod: str) -> str:
        """Return what an agent's /metrics says, by HTTP through the API server."""
        return self.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:9320/proxy/metrics")

    def diagnostics(self) -> str:
        """Return the agents' logs and the cluster's events, to find out why a test failed."""
        asked = (
            ["-n", NAMESPACE, "get", "pods", "-o", "wide"],
            ["-n", NAMESPACE, "logs", "-l", _AGENTS, "--tail=20"],
            ["get", "events", "-A"],
        )
        texts = [
            subprocess.run([*self._kubectl, *each], capture_output=True, text=True, check=False).stdout[-4000:]
            for each in asked
        ]
        return "\n" + "\n".join(texts)

    def close(self) -> None:
        """End the scheduler."""
        self._scheduler.stop()

    def _agent(self, mode: str) -> str | None:
        selector = f"{_AGENTS},koordebpf.io/mode={mode}"
        pods = self.api.items("v1", "Pod", NAMESPACE, labelSelector=selector)
        alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return alive[0]["metadata"]["name"] if len(alive) == len(pods) == 1 and _is_ready(alive[0]) else None


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _scheduler(cluster: ControlPlane, binaries: Binaries) -> ServerProcess:
    certificate, key = cluster.authority.client("scheduler", "system:kube-scheduler", "none")
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    flags = [f"--kubeconfig={cluster.kubeconfig('scheduler', user)}", "--leader-elect=false", "--secure-port=0"]
    log = cluster.folder / "kube-scheduler.log"
    return ServerProcess("kube-scheduler", [binaries.kubernetes, "kube-scheduler", *flags], log)
