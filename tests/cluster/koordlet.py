"""koordlet itself on a node of the tests."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
from pathlib import Path
from typing import Self

from tests.cluster.binaries import say_line
from tests.cluster.control_plane import ControlPlane
from tests.cluster.koordinator_programs import koordinator_program, koordlet_libraries
from tests.cluster.node import RealNode
from tests.cluster.node_proc import NodeProc
from tests.cluster.passage import SERVICE
from tests.cluster.processes import ServerProcess

_SETTINGS = (
    "--kubelet-sync-interval=2s",
    "--runtime-hooks-addr=/run/koordlet.sock",
    "--runtime-hooks-config-path=/run",
    "--runtime-hooks-reconcile-interval=2s",
    "--enable-nri-runtime-hook=false",
    "--v=2",
)


class Koordlet:
    """koordlet in the node's namespaces, as administrator, with its own defaults but for paths and shorter intervals.

    In its /proc/meminfo and /proc/stat it sees the node, which is a cgroup of this machine.
    """

    def __init__(self, plane: ControlPlane, node: RealNode, folder: Path) -> None:
        self._home = home = folder / "koordlet"
        home.mkdir()
        config = json.loads(plane.admin_kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://{SERVICE[0]}:{SERVICE[1]}"
        (home / "kubeconfig").write_text(json.dumps(config))
        program = [
            str(koordinator_program("koordlet", say_line)),
            f"--kubeconfig={home}/kubeconfig",
            f"--tsdb-path={home}/series",
            f"--prediction-checkpoint-filepath={home}/checkpoints",
            *_SETTINGS,
        ]
        self._proc = proc = NodeProc(node, home / "proc")
        mounts = [f"mount --bind {file} /proc/{file.name}" for file in (proc.meminfo, proc.stat)]
        script = " && ".join((*mounts, f"exec {shlex.join(program)}"))
        enter = ["nsenter", "-t", str(node.first_pid), "-m", "-n", "-p", "-u", "-C", "--"]
        self._server = ServerProcess(
            "koordlet",
            [*enter, "unshare", "-m", "--propagation", "private", "sh", "-c", script],
            home / "log",
            environment={
                "NODE_NAME": node.name,
                "agent_mode": "hostMode",
                "LD_LIBRARY_PATH": str(koordlet_libraries(say_line)),
                "PATH": os.environ["PATH"],
            },
        )

    def check(self) -> None:
        """Raise Ended if it does not run."""
        self._server.check()

    def close(self) -> None:
        """End it; what it wrote stays."""
        for pid in self._pids():  # nsenter passes no signal on
            os.kill(pid, signal.SIGTERM)
        self._server.stop(signal.SIGTERM)
        self._proc.close()

    def _pids(self) -> list[int]:
        option = f"--kubeconfig={self._home}/kubeconfig".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if option in (folder / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
