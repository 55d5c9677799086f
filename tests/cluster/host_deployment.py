"""deploy/ on a node that is a cgroup and namespaces of this machine, watched by a Prometheus in the node's network."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordebpf.units import MIB
from tests.cluster.agent_image import obtain_image
from tests.cluster.api import Object
from tests.cluster.binaries import Binaries, say_line
from tests.cluster.control_plane import ControlPlane, control_plane
from tests.cluster.deployment import Deployment
from tests.cluster.node import RealNode, hierarchies
from tests.cluster.objects import PRIORITIES, pod
from tests.cluster.processes import ServerProcess
from tests.contract.apiserver import until
from tests.deploy.programs import promtool

NODE = "worker-1"
NODE_BYTES = 3 << 30
_CAP_SYS_RESOURCE = 24  # include/uapi/linux/capability.h
_PROMETHEUS = 9090
USERS = "users"
_HOLD_S = 600


@contextmanager
def deployed_on_host(binaries: Binaries, folder: Path) -> Iterator[HostDeployment]:
    """Yield a deployment on a cluster of its own, with a namespace of users where the agent may evict.

    Without root, and on a machine without cgroup v1, the test is skipped.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes cgroups, namespaces and an image")
    if not hierarchies():
        pytest.skip("not this kind of machine: the node is made of cgroup v1 hierarchies")
    image = obtain_image(say_line)
    with control_plane(binaries.kubernetes, controllers="*") as cluster:
        deployment = HostDeployment(cluster, binaries, image, folder)
        try:
            users = cluster.add_namespace(USERS)
            cluster.api.patch(users, {"metadata": {"labels": {"koordebpf.io/eviction": "own-node"}}})
            yield deployment
        finally:
            deployment.close()


class HostDeployment(Deployment):
    """A deployment on a RealNode. What is edited in the copy is what this node differs in from others.

    Args:
        image: of the agent, for the node.
    """

    def __init__(self, cluster: ControlPlane, binaries: Binaries, image: Path, folder: Path) -> None:
        super().__init__(cluster, binaries, NODE, folder)
        # The node is a cgroup: all of its pods are below this one, whose limit is what the node can give them.
        self.edit("base/agent/config.yaml", "\n  cgroup: null\n", "\n  cgroup: /kubepods\n")
        # containerd before 1.7 keeps bpf(2) to CAP_SYS_ADMIN.
        self.edit("base/agent/daemonset.yaml", "type: RuntimeDefault", "type: Unconfined")
        if not _has(_CAP_SYS_RESOURCE):
            self.edit("base/agent/daemonset.yaml", "                - SYS_RESOURCE", "                #")
        try:
            for name, value in PRIORITIES.items():
                priority = {"kind": "PriorityClass", "metadata": {"name": name}, "value": value}
                self.api.create({"apiVersion": "scheduling.k8s.io/v1", **priority})
            self.node = RealNode(cluster, binaries, NODE, NODE_BYTES, image)
            self.add_to_pool()
        except BaseException:
            super().close()
            raise

    def user_pod(self, name: str, mib: int, **more: object) -> Object:
        """Create a pod of the users that holds so much memory; return it once it does."""
        command = ("/bin/hog", "--mib", mib, "--hold", _HOLD_S)
        made = self.api.create(pod(name, NODE, *command, namespace=USERS, **more))  # type: ignore[arg-type]

        def holds() -> bool:
            found = self.node.pod_cgroup(made)
            return found is not None and int((found / "memory.usage_in_bytes").read_text()) >= mib * MIB

        until(holds, f"{name} holds {mib} MiB", 60)
        return made

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
        path = f"/api/v1/nodes/http:{self.node_name}:{_PROMETHEUS}/proxy/api/v1/{path}"
        return json.loads(self.kubectl("get", "--raw", path))["data"]

    def close(self) -> None:
        """End the node and the scheduler."""
        self.node.close()
        super().close()


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


def _has(capability: int) -> bool:
    status = Path("/proc/self/status").read_text()
    bounding = next(line.split()[1] for line in status.splitlines() if line.startswith("CapBnd:"))
    return bool(int(bounding, 16) >> capability & 1)
