"""containerd 1.7 with runc and NRI and without a kubelet: what it does is asked for by CRI, as a kubelet does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import grpc

from tests.cluster.binaries import IMAGE, Binaries
from tests.cluster.node import containerd_settings
from tests.cluster.overlay import can_overlay
from tests.contract.apiserver import until
from tests.contract.protobuf_classes import message_classes
from tests.support.patience import patience

_TABLE: dict[str, dict[str, tuple[int, str]]] = {
    "Entry": {"key": (1, "string"), "value": (2, "string")},
    "PodMetadata": {"name": (1, "string"), "uid": (2, "string"), "namespace": (3, "string")},
    "NamespaceOption": {"network": (1, "int32"), "pid": (2, "int32"), "ipc": (3, "int32")},
    "SandboxSecurity": {"namespace_options": (1, "NamespaceOption")},
    "LinuxPod": {"cgroup_parent": (1, "string"), "security_context": (2, "SandboxSecurity")},
    "PodConfig": {
        "metadata": (1, "PodMetadata"),
        "log_directory": (3, "string"),
        "labels": (6, "*Entry"),
        "annotations": (7, "*Entry"),
        "linux": (8, "LinuxPod"),
    },
    "RunPodSandboxRequest": {"config": (1, "PodConfig")},
    "RunPodSandboxResponse": {"pod_sandbox_id": (1, "string")},
    "Resources": {"cpu_shares": (3, "int64"), "oom_score_adj": (5, "int64")},
    "ContainerSecurity": {"namespace_options": (3, "NamespaceOption")},
    "LinuxContainer": {"resources": (1, "Resources"), "security_context": (2, "ContainerSecurity")},
    "ContainerMetadata": {"name": (1, "string")},
    "ImageSpec": {"image": (1, "string"), "user_specified_image": (18, "string")},
    "ContainerConfig": {
        "metadata": (1, "ContainerMetadata"),
        "image": (2, "ImageSpec"),
        "command": (3, "*string"),
        "labels": (9, "*Entry"),
        "log_path": (11, "string"),
        "linux": (15, "LinuxContainer"),
    },
    "CreateContainerRequest": {
        "pod_sandbox_id": (1, "string"),
        "config": (2, "ContainerConfig"),
        "sandbox_config": (3, "PodConfig"),
    },
    "CreateContainerResponse": {"container_id": (1, "string")},
    "StartContainerRequest": {"container_id": (1, "string")},
    "StartContainerResponse": {},
    "StopPodSandboxRequest": {"pod_sandbox_id": (1, "string")},
    "StopPodSandboxResponse": {},
    "RemovePodSandboxRequest": {"pod_sandbox_id": (1, "string")},
    "RemovePodSandboxResponse": {},
}
CRI = message_classes("runtime.v1", _TABLE)
_CONTAINER, _NODE = 1, 2  # NamespaceMode: as a kubelet asks for, and no network is set up
_NAMESPACES = {"namespace_options": {"network": _NODE, "pid": _CONTAINER}}


class BareContainerd:
    """containerd in namespaces of its own, with its files in `folder`; leaving the context ends it and its containers.

    Args:
        folder: for sockets and files.
        binaries: runc and the image.
        programs: the folder of containerd.
        cgroup: where its pods are, below each hierarchy's root.
    """

    def __init__(self, folder: Path, binaries: Binaries, programs: Path, cgroup: str) -> None:
        self.nri_socket = folder / "nri.sock"
        self._folder = folder
        self._cgroup = cgroup
        self._pods: list[str] = []
        self._process, self._channel = self._start(binaries, programs)

    def _start(self, binaries: Binaries, programs: Path) -> tuple[subprocess.Popen[bytes], grpc.Channel]:
        folder, socket = self._folder, self._folder / "c.sock"
        snapshotter = "overlayfs" if can_overlay(folder) else "native"
        (folder / "containerd.toml").write_text(_settings(folder, socket, snapshotter))
        environment = {"PATH": f"{programs}:{binaries.path}"}
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        # Its shims have their sockets in /run/containerd/s, which no setting changes, and would leave the directory.
        own_run = ["sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh"]
        with (folder / "containerd.log").open("wb") as log:
            command = [*unshare, *own_run, str(programs / "containerd"), "--config", str(folder / "containerd.toml")]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        ctr = [str(programs / "ctr"), "-a", str(socket)]
        until(lambda: subprocess.run([*ctr, "version"], capture_output=True, check=False).returncode == 0, self.log)
        load = [*ctr, "-n", "k8s.io", "images", "import", "--snapshotter", snapshotter, str(binaries.image)]
        subprocess.run(load, check=True, capture_output=True)
        return process, grpc.insecure_channel(f"unix://{socket}")

    def log(self) -> str:
        """Return what containerd has logged last."""
        return (self._folder / "containerd.log").read_text()[-3000:]

    def call(self, method: str, **fields: Any) -> Any:
        """Call a method of CRI's RuntimeService."""
        ask = self._channel.unary_unary(
            f"/runtime.v1.RuntimeService/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=CRI[f"{method}Response"].FromString,
        )
        return ask(CRI[f"{method}Request"](**fields), timeout=patience(60))

    def pod(self, name: str, labels: dict[str, str], annotations: dict[str, str]) -> tuple[str, Any]:
        """Run a sandbox; return its ID and its configuration."""
        config = CRI["PodConfig"](
            metadata={"name": name, "uid": f"uid-{name}", "namespace": "team"},
            log_directory=str(self._folder / "log"),
            labels=[{"key": key, "value": value} for key, value in labels.items()],
            annotations=[{"key": key, "value": value} for key, value in annotations.items()],
            linux={
                "cgroup_parent": f"{self._cgroup}/kubepods/besteffort/pod{name}",
                "security_context": _NAMESPACES,
            },
        )
        made = self.call("RunPodSandbox", config=config).pod_sandbox_id
        self._pods.append(made)
        return made, config

    def create(self, pod: tuple[str, Any], name: str, *command: str) -> str:
        """Create a container as the kubelet asks for one of a best-effort pod; return its ID."""
        config = CRI["ContainerConfig"](
            metadata={"name": name},
            image={"image": IMAGE, "user_specified_image": IMAGE},
            command=command,
            labels=[{"key": "io.kubernetes.container.name", "value": name}],  # by which CRI-O knows it
            log_path=f"{pod[1].metadata.name}-{name}.log",
            linux={"resources": {"cpu_shares": 2, "oom_score_adj": 1000}, "security_context": _NAMESPACES},
        )
        return str(
            self.call("CreateContainer", pod_sandbox_id=pod[0], config=config, sandbox_config=pod[1]).container_id
        )

    def printed(self, pod: tuple[str, Any], name: str) -> list[str]:
        """Return the lines that a container has printed."""
        path = self._folder / "log" / f"{pod[1].metadata.name}-{name}.log"
        return [line.split(" ", 3)[3] for line in path.read_text().splitlines()] if path.exists() else []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_pods()
        self._channel.close()
        self._process.kill()  # and with it all of its pid namespace, of which the runtime is the first process
        self._process.wait()

    def _end_pods(self) -> None:
        for each in self._pods:
            try:
                self.call("StopPodSandbox", pod_sandbox_id=each)
                self.call("RemovePodSandbox", pod_sandbox_id=each)
            except grpc.RpcError as error:
                print(error, file=sys.stderr)


def _settings(folder: Path, socket: Path, snapshotter: str) -> str:
    return f"""\
{containerd_settings(folder / "root", folder / "state", socket, snapshotter)}\
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "{folder}/nri.sock"
"""
