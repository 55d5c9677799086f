"""deploy/ as an operator has it: a copy to edit, kubectl to apply it with, a cluster whose node runs its image."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.api import Object
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.documented import commands, is_like, transcripts
from tests.cluster.node import RealNode
from tests.cluster.objects import AGENT, BASE, NAMESPACE, PRIORITIES
from tests.cluster.processes import ServerProcess
from tests.contract.apiserver import until
from tests.deploy.programs import promtool
from tests.support.patience import patience

NODE = "worker-1"
NODE_BYTES = 3 << 30
COMPONENTS = ("own-node-only", "cri")
_POOL = {"pool": "batch"}
_CAP_SYS_RESOURCE = 24  # include/uapi/linux/capability.h
_TIMEOUT_S = 120
_PROMETHEUS = 9090
_AGENTS = "app.kubernetes.io/component=agent"
# What changes nothing may be typed again until it shows what it should.
_LOOKS = {"get", "logs", "exec", "status"}
_MODES = {"observe": AGENT, "enforce": f"{AGENT}-enforce"}


class Deployment:
    """A cluster with every controller, the scheduler and one node, into which deploy/ is applied as its README says.

    `folder` is the copy of deploy/. What is edited in it, `edit()` aside, is what this node differs in from others.
    """

    def __init__(self, cluster: ControlPlane, binaries: Binaries, image: Path, folder: Path) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.folder = shutil.copytree(BASE.parent, folder / "deploy")
        self._kubectl = [str(binaries.kubernetes), "kubectl", f"--kubeconfig={cluster.admin_kubeconfig}"]
        self._programs = folder / "bin"
        self._programs.mkdir()
        program = self._programs / "kubectl"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(self._kubectl)} "$@"\n')
        program.chmod(0o755)
        # The node is a cgroup: all of its pods are below this one, whose limit is what the node can give them.
        self.edit("base/agent/config.yaml", "\n  cgroup: null\n", "\n  cgroup: /kubepods\n")
        # containerd before 1.7 keeps bpf(2) to CAP_SYS_ADMIN.
        self.edit("base/agent/daemonset.yaml", "type: RuntimeDefault", "type: Unconfined")
        for overlay in ("observe", "enforce"):
            for line in ("components:", *(f"  - ../../components/{name}" for name in COMPONENTS)):
                self.edit(f"overlays/{overlay}/kustomization.yaml", f"# {line}\n", f"{line}\n")
        if not _has(_CAP_SYS_RESOURCE):
            self.edit("base/agent/daemonset.yaml", "                - SYS_RESOURCE", "                #")
        self._scheduler = _scheduler(cluster, binaries)
        try:
            for name, value in PRIORITIES.items():
                priority = {"kind": "PriorityClass", "metadata": {"name": name}, "value": value}
                self.api.create({"apiVersion": "scheduling.k8s.io/v1", **priority})
            self.node = RealNode(cluster, binaries, NODE, NODE_BYTES, image)
            self.api.patch(self.node.object, {"metadata": {"labels": _POOL}})
        except BaseException:
            self._scheduler.stop()
            raise

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
                self._type(command.replace("NODE", self.node.name).replace("POD", pod), shown.get(command))

    def _type(self, line: str, shown: Sequence[str] | None) -> None:
        environment = os.environ | {"PATH": f"{self._programs}:{os.environ['PATH']}", "COLUMNS": "80"}
        printed = ""

        def is_shown() -> bool:
            nonlocal printed
            done = subprocess.run(
                ["sh", "-c", line],
                cwd=self.folder.parent,
                env=environment,
                timeout=patience(_TIMEOUT_S),
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
                until(is_shown, line, 60)
                return
        elif is_shown():
            return
        raise AssertionError("\n".join([f"not as deploy/README.md has it: {line}", printed, self.diagnostics()]))

    def apply(self, overlay: str) -> None:
        """Apply an overlay as deploy/README.md says."""
        self.kubectl("apply", "--server-side", "-k", f"deploy/overlays/{overlay}")

    def configure(self, **strategy: Any) -> None:
        """Change the cluster's resource-threshold-config."""
        self.edit_config_map(json.dumps({"clusterStrategy": {"enable": True, **strategy}}))

    def edit_config_map(self, text: str) -> None:
        """Change the text of the cluster's resource-threshold-config."""
        change = {"data": {"resource-threshold-config": text}}
        name = {"name": "slo-controller-config", "namespace": "koordinator-system"}
        self.api.patch({"apiVersion": "v1", "kind": "ConfigMap", "metadata": name}, change)

    def rolled_out(self, mode: str) -> str:
        """Wait until the node's agent is this mode's, of the newest revision, and Ready; return its pod's name."""
        timeout = f"--timeout={patience(_TIMEOUT_S):.0f}s"
        self.kubectl("-n", NAMESPACE, "rollout", "status", f"daemonset/{_MODES[mode]}", timeout)
        found: str = until(lambda: self._agent(mode), f"an agent that is there to {mode}", _TIMEOUT_S)
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
            return str(until(find, text, 60))
        except TimeoutError:
            raise AssertionError(f"{pod} did not say {text!r}:{self.diagnostics()}") from None

    def metrics(self, pod: str) -> str:
        """Return what an agent's /metrics says, by HTTP through the API server."""
        return self.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:9320/proxy/metrics")

    def prometheus(self) -> ServerProcess:
        """Start Prometheus in the node's network, with deploy/monitoring; its minutes are seconds.

        Debian's knows no kubernetes_sd_configs: it gets the present pods as targets, as these would find them.
        """
        folder = self.folder / "monitoring"
        settings = yaml.safe_load((folder / "prometheus.yaml").read_text())
        (job,) = settings["scrape_configs"]
        (found,) = job.pop("kubernetes_sd_configs")
        (selector,) = found["selectors"]
        (namespace,) = found["namespaces"]["names"]
        self._discovery = (namespace, selector["label"])
        self.discover()
        job |= {"file_sd_configs": [{"files": ["pods.json"]}], "scrape_interval": "1s"}
        settings["global"] = {"evaluation_interval": "1s"}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
        rules = folder / "rules.yaml"
        rules.write_text(re.sub(r"\bfor: (\d+)m$", r"for: \1s", rules.read_text(), flags=re.MULTILINE))
        flags = [f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
        flags.append(f"--web.listen-address=0.0.0.0:{_PROMETHEUS}")
        network = ["nsenter", f"--net=/proc/{self.node.first_pid}/ns/net", "--"]
        command = [*network, promtool().with_name("prometheus"), *flags]
        return ServerProcess("prometheus", command, self.folder / "prometheus.log")

    def discover(self) -> None:
        """Tell Prometheus of the pods that there are now; it looks at the file itself."""
        namespace, label = self._discovery
        pods = self.api.items("v1", "Pod", namespace, labelSelector=label)
        alive = [each for each in pods if "deletionTimestamp" not in each["metadata"]]
        found = [
            _discovered(each, port) for each in alive for one in each["spec"]["containers"] for port in one["ports"]
        ]
        path = self.folder / "monitoring/pods.json"
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(found))
        unfinished.rename(path)

    def ask_prometheus(self, path: str) -> Any:
        """Return what Prometheus answers, through the API server as everything in the node's network."""
        path = f"/api/v1/nodes/http:{self.node.name}:{_PROMETHEUS}/proxy/api/v1/{path}"
        return json.loads(self.kubectl("get", "--raw", path))["data"]

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
        """End the node and the scheduler."""
        self.node.close()
        self._scheduler.stop()

    def _agent(self, mode: str) -> str | None:
        selector = f"{_AGENTS},koordebpf.io/mode={mode}"
        pods = self.api.items("v1", "Pod", NAMESPACE, labelSelector=selector)
        alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return alive[0]["metadata"]["name"] if len(alive) == len(pods) == 1 and _is_ready(alive[0]) else None


# The labels that Prometheus' discovery of pods gives each port: those that deploy/monitoring reads.
def _discovered(one: Object, port: Object) -> Object:
    component = one["metadata"]["labels"]["app.kubernetes.io/component"]
    meta = {
        "namespace": one["metadata"]["namespace"],
        "pod_name": one["metadata"]["name"],
        "pod_node_name": one["spec"]["nodeName"],
        "pod_phase": one["status"]["phase"],
        "pod_container_port_name": port["name"],
        "pod_label_app_kubernetes_io_component": component,
    }
    labels = {f"__meta_kubernetes_{name}": value for name, value in meta.items()}
    return {"targets": [f"{one['status']['podIP']}:{port['containerPort']}"], "labels": labels}


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _has(capability: int) -> bool:
    status = Path("/proc/self/status").read_text()
    bounding = next(line.split()[1] for line in status.splitlines() if line.startswith("CapBnd:"))
    return bool(int(bounding, 16) >> capability & 1)


def _scheduler(cluster: ControlPlane, binaries: Binaries) -> ServerProcess:
    certificate, key = cluster.authority.client("scheduler", "system:kube-scheduler", "none")
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    flags = [f"--kubeconfig={cluster.kubeconfig('scheduler', user)}", "--leader-elect=false", "--secure-port=0"]
    log = cluster.folder / "kube-scheduler.log"
    return ServerProcess("kube-scheduler", [binaries.kubernetes, "kube-scheduler", *flags], log)
