"""`koordebpf controller` as a process, and the ConfigMap that it reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.cluster.api import Object
from tests.cluster.objects import NAMESPACE

ACCOUNT = "koordebpf-controller"
CONFIG: Object = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "slo-controller-config", "namespace": "koordinator-system"},
}


class Running:
    """One controller and its log."""

    def __init__(self, kubeconfig: Path, log: Path, *options: str, lease_namespace: str = NAMESPACE) -> None:
        command = [sys.executable, "-m", "koordebpf", "controller", "--kubeconfig", str(kubeconfig), "--listen", ""]
        self._log = log
        with log.open("w") as stderr:
            self.popen = subprocess.Popen([*command, "--lease-namespace", lease_namespace, *options], stderr=stderr)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def close(self) -> None:
        self.popen.terminate()
        self.popen.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Run:
    """Starts controllers, each with the `always` options, and ends them all at the end."""

    def __init__(self, kubeconfig: Path, folder: Path, *always: str) -> None:
        self.running: list[Running] = []
        self._kubeconfig = kubeconfig
        self._folder = folder
        self._always = always

    def __call__(self, *options: str) -> Running:
        log = self._folder / f"controller-{len(self.running)}.log"
        self.running.append(Running(self._kubeconfig, log, *self._always, *options))
        return self.running[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.running:
            each.close()
