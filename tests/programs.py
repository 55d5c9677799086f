"""What tests of clusters, nodes and manifests download, compile or build, kept in a cache.

`python -m tests.programs` brings what cluster, node and machines need, half an hour with two CPUs from nothing; with
the names of modules only what these bring.
Beside tests that do not need it yet, that is time that they leave; the manifests need theirs too soon for that.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import imports

# Modules below tests/, each of which is a command. Only slow tests need the agent's image and others' Go code.
DEPLOY = ("deploy.programs",)
CLUSTER_QUICK = ("cluster.binaries",)
CLUSTER = (
    *CLUSTER_QUICK,
    "cluster.agent_image",
    "cluster.katalyst_programs",
    "cluster.nri_programs",
    "cluster.newest_containerd",
    "cluster.koordinator_programs",
    "node.crio",
)
NODE = ("node.image", "cluster.agent_image")
VM = ("vm.compiled",)
_OF_FOLDERS = {"deploy": DEPLOY, "cluster": CLUSTER, "node": NODE}
_LATER = tuple(dict.fromkeys((*CLUSTER, *NODE, *VM)))
_ROOT = Path(__file__).resolve().parents[1]


def of_folder(folder: str, test_modules: Sequence[str] = (), *, quick: bool = False) -> tuple[str, ...]:
    """Return what brings what a folder's tests need, or those of it that some test modules reach by imports."""
    if folder == "cluster" and quick:
        return CLUSTER_QUICK
    found = _OF_FOLDERS.get(folder, ())
    if not (found and test_modules):
        return found
    return tuple(name for name in found if imports.importers(_graph(), [_path(name)]).keys() & set(test_modules))


@functools.cache  # two seconds; the sources stay as they are while it runs
def _graph() -> imports.Graph:
    return imports.graph(imports.sources())


def _path(name: str) -> str:
    return f"tests/{name.replace('.', '/')}.py"


def bring(modules: Sequence[str]) -> str | None:
    """Download, compile or build by these modules what is not in the cache; return what failed."""
    for name in modules:
        command = [sys.executable, "-m", f"tests.{name}"]
        if code := _run(command):
            return f"{command[-1]} ended with {code}"
    return None


# What it starts in turn, as a compiler, is of its process group: all of it ends with this process.
def _run(command: Sequence[str]) -> int:
    process = subprocess.Popen(command, cwd=_ROOT, process_group=0)
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(bring(sys.argv[1:] or _LATER))
