"""Koordinator's own manager and scheduler on a control plane of the tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.api import Object
from tests.cluster.binaries import say_line
from tests.cluster.control_plane import ControlPlane
from tests.cluster.controllers import CONFIG
from tests.cluster.koordinator_programs import Name, koordinator_objects, koordinator_program
from tests.cluster.objects import is_served
from tests.cluster.processes import ServerProcess, wait_for
from tests.support.ports import free_ports

NAMESPACE = "koordinator-system"
SLO = "slo.koordinator.sh/v1alpha1"
SCHEDULER: Name = "koord-scheduler"
# What works out batch and mid resources, and what makes the objects that this needs.
_CONTROLLERS = "noderesource,nodemetric,nodeslo"


class Koordinator:
    """The CRDs of Koordinator, its ConfigMap with `colocation`, and its programs as administrator of the cluster."""

    def __init__(self, plane: ControlPlane, folder: Path, colocation: Object) -> None:
        self.api = plane.api
        self._plane = plane
        self._folder = folder
        self._servers: list[ServerProcess] = []
        self._config: Object = {
            **CONFIG,
            "data": {"colocation-config": json.dumps(colocation)},
        }
        if self.api.get(self._config) is None:
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
            for each in (namespace, *koordinator_objects("crd/bases", say_line)):
                if self.api.get(each) is None:  # deploy/ may have brought some
                    self.api.create(each)
            wait_for(lambda: is_served(self.api, "NodeMetric"), "no NodeMetric is served", ())
            self.api.create(self._config)
        else:
            self.configure(colocation)

    def configure(self, config: Object, key: str = "colocation-config") -> None:
        """Replace a key of the ConfigMap."""
        self.api.patch(self._config, {"data": {key: json.dumps(config)}})

    def start_manager(self) -> ServerProcess:
        """Start koord-manager without its webhooks, for which the API server would need a way to it."""
        metrics, health = free_ports(2)
        return self._start(
            "koord-manager",
            "--feature-gates=WebhookFramework=false",
            "--enable-leader-election=false",
            "--enable-pprof=false",
            f"--controllers={_CONTROLLERS}",
            f"--metrics-addr=127.0.0.1:{metrics}",
            f"--health-probe-addr=127.0.0.1:{health}",
            f"--kubeconfig={self._plane.admin_kubeconfig}",
        )

    def start_scheduler(self) -> ServerProcess:
        """Start koord-scheduler with the configuration that Koordinator installs, alone."""
        (made,) = koordinator_objects("manager/scheduler-config.yaml", say_line)
        config: dict[str, Any] = yaml.safe_load(made["data"]["koord-scheduler-config"])
        config["leaderElection"] = {"leaderElect": False}
        config["clientConnection"] = {"kubeconfig": str(self._plane.admin_kubeconfig)}
        file = self._folder / "scheduler-config.yaml"
        file.write_text(yaml.safe_dump(config))
        (port,) = free_ports(1)
        return self._start(
            SCHEDULER,
            f"--config={file}",
            f"--secure-port={port}",
            "--bind-address=127.0.0.1",
            f"--authentication-kubeconfig={self._plane.admin_kubeconfig}",
            f"--authorization-kubeconfig={self._plane.admin_kubeconfig}",
            f"--cert-dir={self._folder}",
        )

    def node_metric(self, node_name: str) -> Object | None:
        """Return a node's NodeMetric."""
        return self.api.get({"apiVersion": SLO, "kind": "NodeMetric", "metadata": {"name": node_name}})

    def allocatable(self, node_name: str) -> dict[str, str]:
        """Return what a Node says is allocatable."""
        node = self.api.get({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node_name}})
        return dict(node["status"].get("allocatable", {})) if node else {}

    def check(self) -> None:
        """Raise Ended if a program has ended."""
        for each in self._servers:
            each.check()

    def close(self) -> None:
        """End the programs; the objects stay."""
        for each in self._servers:
            each.stop()

    def _start(self, name: Name, *arguments: str) -> ServerProcess:
        program = koordinator_program(name, say_line)
        server = ServerProcess(name, [program, *arguments], self._folder / f"{name}.log")
        self._servers.append(server)
        return server


@contextmanager
def koordinator(plane: ControlPlane, folder: Path, colocation: Object) -> Iterator[Koordinator]:
    """Have Koordinator for as long."""
    made = Koordinator(plane, folder, colocation)
    try:
        yield made
    finally:
        made.close()
