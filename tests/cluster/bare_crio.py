"""CRI-O with runc and NRI and without a kubelet: what it does is asked for by CRI (bare_containerd.py)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import grpc

from tests.cluster.bare_containerd import BareContainerd
from tests.cluster.binaries import IMAGE, Binaries, cache_folder, say_line, unpacked
from tests.cluster.overlay import can_overlay
from tests.contract.apiserver import until
from tests.contract.protobuf_classes import message_classes
from tests.node.crio import write_registry
from tests.node.served import served
from tests.support.patience import patience

_IMAGES = message_classes(
    "runtime.v1",
    {
        "ImageSpec": {"image": (1, "string")},
        "PullImageRequest": {"image": (1, "ImageSpec")},
        "PullImageResponse": {"image_ref": (1, "string")},
    },
)
_ANYTHING = '{"default": [{"type": "insecureAcceptAnything"}]}'


class BareCrio(BareContainerd):
    """CRI-O in namespaces of its own, with its files in `folder`; leaving the context ends it and its containers.

    Args:
        folder: for sockets and files.
        binaries: runc and the image.
        programs: the folder of CRI-O.
        cgroup: where its pods are, below each hierarchy's root.
    """

    def _start(self, binaries: Binaries, programs: Path) -> tuple[subprocess.Popen[bytes], grpc.Channel]:
        folder, socket = self._folder, self._folder / "c.sock"
        conmon = unpacked(cache_folder() / "conmon", ("conmon",), say_line) / "usr/bin/conmon"
        (folder / "policy.json").write_text(_ANYTHING)
        settings = _settings(folder, programs, conmon, binaries.debian / "usr/sbin/runc")
        (folder / "crio.conf").write_text(settings)
        (folder / "registry").mkdir()
        write_registry(folder / "registry", binaries.image)
        with served(folder / "registry") as port:
            prefix = IMAGE.partition("/")[0]
            registry = f'[[registry]]\nprefix = "{prefix}"\nlocation = "127.0.0.1:{port}"\ninsecure = true\n'
            # The machine's own /etc/containers, where there is one, stays out of it.
            home = folder / "home"
            (home / ".config/containers").mkdir(parents=True)
            (home / ".config/containers/registries.conf").write_text(registry)
            environment = {"PATH": binaries.path, "HOME": str(home)}
            unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
            command = [*unshare, str(programs / "crio"), "--config", str(folder / "crio.conf"), "--config-dir", ""]
            with (folder / "containerd.log").open("wb") as log:
                process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            try:
                until(socket.exists, self.log)
                channel = grpc.insecure_channel(f"unix://{socket}")
                pull = channel.unary_unary(
                    "/runtime.v1.ImageService/PullImage",
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=_IMAGES["PullImageResponse"].FromString,
                )
                pull(_IMAGES["PullImageRequest"](image={"image": IMAGE}), timeout=patience(60))
            except BaseException:
                process.kill()
                process.wait()
                raise
        return process, channel

    # They are in its namespaces, and end with it.
    def _end_pods(self) -> None:
        pass


def _settings(folder: Path, programs: Path, conmon: Path, runc: Path) -> str:
    driver = "overlay" if can_overlay(folder) else "vfs"
    return f"""\
[crio]
root = "{folder}/root"
runroot = "{folder}/runroot"
storage_driver = "{driver}"
log_dir = "{folder}/log"
version_file = "{folder}/version"
version_file_persist = "{folder}/version-persist"
clean_shutdown_file = "{folder}/clean"
[crio.api]
listen = "{folder}/c.sock"
stream_port = "0"
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
default_runtime = "runc"
pinns_path = "{programs}/pinns"
namespaces_dir = "{folder}/ns"
container_exits_dir = "{folder}/exits"
container_attach_socket_dir = "{folder}/attach"
hooks_dir = []
disable_hostport_mapping = true
irqbalance_config_restore_file = "disable"
[crio.runtime.runtimes.runc]
runtime_path = "{runc}"
runtime_root = "{folder}/runc"
monitor_path = "{conmon}"
monitor_cgroup = "pod"
[crio.image]
pause_image = "{IMAGE}"
signature_policy = "{folder}/policy.json"
[crio.network]
network_dir = "{folder}/cni"
[crio.nri]
nri_listen = "{folder}/nri.sock"
nri_plugin_dir = "{folder}/plugins"
nri_plugin_config_dir = "{folder}/plugins.d"
"""
