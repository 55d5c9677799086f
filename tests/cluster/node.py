"""A real node: kubelet, containerd and runc in namespaces of their own, inside a cgroup with a memory limit."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tests.cluster.api import Object
from tests.cluster.binaries import IMAGE, Binaries
from tests.cluster.control_plane import ControlPlane
from tests.cluster.overlay import can_overlay
from tests.cluster.passage import SERVICE
from tests.cluster.processes import ServerProcess, wait_for
from tests.support.patience import patience

_ROOT = Path(__file__).parents[2]
_SCRIPT = Path(__file__).with_name("node.sh")
_SOCKET = "run/containerd/containerd.sock"
_NRI_SOCKET = "run/nri/nri.sock"
_NRI = f"""\
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "/{_NRI_SOCKET}"
"""
_ADDRESS = "10.244.255.1"  # of the node, in its own network
_PODS = "10.244.0.0/24"
# In a node of 3 GiB they could otherwise hold much of what the pods are to fill.
_MEMORY = {"GOMEMLIMIT": "256MiB"}
_LAST_CHARACTERS = 4000


class Hierarchy(msgspec.Struct, frozen=True):
    """One mounted hierarchy of cgroup v1."""

    options: str  # its controllers, or name=systemd
    path: Path


def hierarchies() -> tuple[Hierarchy, ...]:
    """Return the cgroup v1 hierarchies that are mounted; none: this machine has cgroup v2 alone."""
    lines = [line.split(":")[1] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    controllers = {each for names in lines for each in names.split(",")}
    found = []
    for line in Path("/proc/mounts").read_text().splitlines():
        _, path, kind, options, *_ = line.split()
        if kind == "cgroup":
            found.append(Hierarchy(",".join(each for each in options.split(",") if each in controllers), Path(path)))
    return tuple(found)


class RealNode:
    """A node of the cluster, Ready when made. `close()` ends whatever runs in it and removes its cgroups and files.

    Shape:   the host sees its pods below `cgroup`/kubepods, as a host sees those of kind. `socket` is containerd's;
             `kubelet` are settings in place of those of the tests. `containerd` is the folder of another one than
             Debian's, with NRI.
    Needs:   root, and cgroup v1.
    Cost:    Ready within about 3 s; 0.2 GiB of its memory.
    """

    def __init__(
        self,
        cluster: ControlPlane,
        binaries: Binaries,
        name: str,
        memory_bytes: int,
        *images: Path,
        kubelet: Object | None = None,
        containerd: Path | None = None,
    ) -> None:
        self.name = name
        self._kubelet_settings = kubelet or {}
        self._containerd = containerd
        self.memory_bytes = memory_bytes
        self._cluster = cluster
        self._images = images
        self._ctr = binaries.debian / "usr/bin/ctr"
        self._folder = cluster.folder / f"node-{name}"
        self._hierarchies = hierarchies()
        self._directories = [each.path / f"{cluster.folder.name}-{name}" for each in self._hierarchies]
        self.object: Object = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        self._server: ServerProcess | None = None
        self._passage: ServerProcess | None = None
        try:
            self._make_cgroups()
            self._write_files(binaries)
            self._server = self._start(binaries)
            self._passage = self._open_passage(self._server)
            self._wait_until_ready(self._server, self._passage)
        except BaseException:
            self.close()
            raise

    @property
    def cgroup(self) -> Path:
        """Return the memory cgroup that is the node."""
        return self.directory("memory")

    @property
    def first_pid(self) -> int:
        """Return the node's first process, whose namespaces are the node's."""
        assert self._server is not None
        return _first_child(self._server.pid)

    @property
    def socket(self) -> Path:
        """Return containerd's socket, as the host reaches it: through the mounts of the node's first process."""
        return Path(f"/proc/{self.first_pid}/root/{_SOCKET}")

    @property
    def nri_socket(self) -> Path:
        """Return where plugins connect to its containerd, as the host reaches it."""
        return Path(f"/proc/{self.first_pid}/root/{_NRI_SOCKET}")

    def container_log(self, pod: Object) -> str:
        """Return what the container `load` of a pod has printed, "" before it is there."""
        meta = pod["metadata"]
        folder = self._folder / "log/pods" / f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
        return "".join(path.read_text() for path in folder.glob("load/*.log"))

    @property
    def kubelet_folder(self) -> Path:
        """Return what is /var/lib/kubelet in the node."""
        return self._folder / "kubelet"

    def log(self, program: str) -> Path:
        """Return where containerd or kubelet writes its log."""
        return self._folder / f"{program}.log"

    def is_ready(self) -> bool:
        """Tell whether the kubelet says so of the node."""
        found = self._cluster.api.get(self.object)
        conditions = found["status"].get("conditions", ()) if found else ()
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def runtime_version(self) -> str:
        """Return what the kubelet says of the container runtime, as containerd://1.7.24."""
        found = self._cluster.api.get(self.object)
        assert found is not None, self.name
        return str(found["status"]["nodeInfo"]["containerRuntimeVersion"])

    def pod_cgroup(self, pod: Object) -> Path | None:
        """Return a pod's memory cgroup; None: the kubelet has not made it, or has removed it."""
        name = f"pod{pod['metadata']['uid']}"
        levels = (self.cgroup / "kubepods" / level for level in ("besteffort", "burstable", "."))
        return next((level / name for level in levels if (level / name).is_dir()), None)

    def tag_image(self, name: str, tag: str) -> None:
        """Give an image of the node another name."""
        command = [str(self._ctr), "-a", str(self.socket), "-n", "k8s.io", "images", "tag", name, tag]
        subprocess.run(command, check=True, capture_output=True)

    def used_bytes(self) -> int:
        """Return what is charged to the node but for page cache, as the agent counts: it comes with each image."""
        stat = dict(line.split() for line in (self.cgroup / "memory.stat").read_text().splitlines())
        cache = int(stat["total_inactive_file"]) + int(stat["total_active_file"])
        return int((self.cgroup / "memory.usage_in_bytes").read_text()) - cache

    def close(self) -> None:
        """End the node and remove what it had; twice is harmless."""
        if self._server is not None:
            # Its first process has the others with it: they are of one pid namespace.
            self._server.stop()
        if self._passage is not None:
            self._passage.stop()
            self._cluster.way_to_nodes.unlink(missing_ok=True)
        self._cluster.api.delete(self.object)
        for directory in self._directories:
            remove_cgroups(directory)

    def _open_passage(self, server: ServerProcess) -> ServerProcess:
        wait_for(lambda: _children(server.pid), f"node {self.name} has no process", [server])
        arguments = [str(self.first_pid), str(self._cluster.port), str(self._cluster.way_to_nodes)]
        command = [sys.executable, "-m", "tests.cluster.passage", *arguments]
        return ServerProcess("passage", command, self._folder / "passage.log", cwd=_ROOT)

    def _wait_until_ready(self, *servers: ServerProcess) -> None:
        try:
            wait_for(self.is_ready, f"node {self.name} is not Ready", servers)
        except TimeoutError as error:
            log = self._folder / "kubelet.log"
            error.add_note(log.read_text(errors="replace")[-_LAST_CHARACTERS:] if log.exists() else "no kubelet")
            raise

    def directory(self, controller: str) -> Path:
        """Return the cgroup that is the node, in this controller's hierarchy."""
        for hierarchy, directory in zip(self._hierarchies, self._directories, strict=True):
            if controller in hierarchy.options.split(","):
                return directory
        raise LookupError(f"no cgroup v1 hierarchy with the controller {controller}")

    def _make_cgroups(self) -> None:
        for directory in self._directories:
            directory.mkdir()
        cpuset = self.directory("cpuset")
        for name in ("cpuset.cpus", "cpuset.mems"):
            (cpuset / name).write_text((cpuset.parent / name).read_text())
        (self.cgroup / "memory.limit_in_bytes").write_text(str(self.memory_bytes))

    def _write_files(self, binaries: Binaries) -> None:
        for name in ("log", "network", "certificates", "kubelet"):
            (self._folder / name).mkdir(parents=True)
        certificate, key = self._cluster.authority.client(self.name, f"system:node:{self.name}", "system:nodes")
        user = {"client-certificate": str(certificate), "client-key": str(key)}
        self._cluster.kubeconfig("kubelet", user).rename(self._folder / "kubelet.kubeconfig")
        kubelet = _kubelet_settings(self._cluster.authority.certificate) | self._kubelet_settings
        (self._folder / "kubelet.json").write_text(json.dumps(kubelet))
        self._snapshotter = "overlayfs" if can_overlay(self._folder) else "native"
        settings = _containerd_settings(self._folder, binaries, self._snapshotter)
        settings += _NRI if self._containerd else ""
        (self._folder / "containerd.toml").write_text(settings)
        bridge = {
            "type": "bridge",
            "bridge": "pods",
            "isDefaultGateway": True,
            "ipam": {"type": "host-local", "subnet": _PODS},
        }
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
        (self._folder / "network" / "pods.conflist").write_text(json.dumps(network))

    def _start(self, binaries: Binaries) -> ServerProcess:
        environment: Mapping[str, str] = {
            **_MEMORY,
            "PATH": f"{self._containerd}:{binaries.path}" if self._containerd else binaries.path,
            "NODE_NAME": self.name,
            "NODE_ADDRESSES": f"{_ADDRESS} {SERVICE[0]}",
            "NODE_FOLDER": str(self._folder),
            "NODE_HIERARCHIES": "\n".join(f"{each.options} {each.path}" for each in self._hierarchies),
            "NODE_MEMORY_KIB": str(self.memory_bytes >> 10),
            "NODE_IMAGES": " ".join(map(str, (binaries.image, *self._images))),
            "NODE_SNAPSHOTTER": self._snapshotter,
            "NODE_KUBERNETES": str(binaries.kubernetes),
        }
        join = "".join(f"echo $$ >{shlex.quote(str(each / 'cgroup.procs'))}; " for each in self._directories)
        unshare = "unshare --mount --cgroup --uts --ipc --net --pid --fork --kill-child"
        command = ["bash", "-c", f"set -e; {join}exec {unshare} {shlex.quote(str(_SCRIPT))}"]
        return ServerProcess(self.name, command, self._folder / "node.log", environment=environment)


def _kubelet_settings(authority: Path) -> Object:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "failSwapOn": False,
        "cgroupDriver": "cgroupfs",
        "enforceNodeAllocatable": ["pods"],
        "containerRuntimeEndpoint": f"unix:///{_SOCKET}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        # Who evicts here is the agent: the kubelet's own threshold is far above.
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "4s",
    }


def containerd_settings(root: Path, state: Path, socket: Path, snapshotter: str) -> str:
    """Return what each containerd here is configured with; tables of its own may follow."""
    # Without CAP_SYS_RESOURCE no process may lower oom_score_adj: restrict_oom_score_adj.
    return f"""\
version = 2
root = "{root}"
state = "{state}"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
"""


def _containerd_settings(folder: Path, binaries: Binaries, snapshotter: str) -> str:
    common = containerd_settings(folder / "containerd", Path("/run/containerd"), Path("/", _SOCKET), snapshotter)
    return f"""\
{common}\
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{binaries.cni}"
    conf_dir = "{folder}/network"
"""


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _first_child(pid: int) -> int:
    (first,) = _children(pid)
    return first


def remove_cgroups(root: Path) -> None:
    """Remove a cgroup and those below it, when killed processes have left them; it may be gone already."""
    # A process is out of cgroup.procs before it is out of the cgroup.
    deadline = time.monotonic() + patience(20)
    for directory, _, _ in os.walk(root, topdown=False):
        while True:
            try:
                Path(directory).rmdir()
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                break
