"""What a folder of tests needs and this machine lacks: each function returns why, and what to do, or None."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def has_memory_hierarchy() -> bool:
    """Tell whether a memory controller is mounted, on v1 or v2."""
    v2 = Path("/sys/fs/cgroup/cgroup.controllers")
    if v2.exists() and "memory" in v2.read_text().split():
        return True
    return any(
        line.split()[2] == "cgroup" and "memory" in line.split()[3].split(",")
        for line in Path("/proc/mounts").read_text().splitlines()
    )


def what_host_lacks() -> str | None:
    """Return why the host tests cannot run here and what to do, or None."""
    if os.geteuid() != 0:
        return "needs root; run it with: sudo make test"
    if not has_memory_hierarchy():
        return "needs a mounted memory controller (cgroup v1 or v2); run it on a machine that has one"
    return None


def what_deploy_lacks() -> str | None:
    """Return why manifests cannot be rendered here and what to do, or None."""
    if platform.machine() not in {"x86_64", "aarch64"}:
        return "needs x86-64 or arm64, for which Go's wheel is made"
    if not shutil.which("apt-get"):
        return "needs a Debian or Ubuntu, whose archive promtool comes from"
    return None


def what_quick_deploy_lacks() -> str | None:
    """Return why manifests are not rendered by a quick run, or None."""
    if lacks := what_deploy_lacks():
        return lacks
    command = [sys.executable, "-m", "tests.deploy.programs", "--are-here"]
    if subprocess.run(command, cwd=_ROOT, check=False).returncode:
        return "helm and kustomize are not compiled yet, which takes minutes; run: make test-all"
    return None


def what_cluster_lacks() -> str | None:
    """Return why no cluster can be started here and what to do, or None."""
    if os.geteuid() != 0:
        return "needs root: its node is made of cgroups and namespaces; run it with: sudo make test"
    if platform.machine() not in {"x86_64", "aarch64"}:
        return "needs x86-64 or arm64, for which Go's wheel and the image are made"
    if not shutil.which("apt-get"):
        return "needs a Debian or Ubuntu, whose archive containerd and runc come from"
    return None


def what_vm_lacks() -> str | None:
    """Return why no virtual machine can be booted here and what to do, or None."""
    if platform.machine() != "x86_64":
        return "needs x86-64: the kernels are Debian's for amd64"
    if not shutil.which("apt-get"):
        return "needs a Debian, whose archive the kernels come from"
    if os.geteuid() != 0 and not shutil.which("qemu-system-x86_64"):
        return "needs QEMU; install it once with: sudo .ci/setup vm"
    if " " in str(_ROOT):
        return "needs a checkout without a space in its path, which virtme-ng splits; move it"
    return None


def what_browser_lacks() -> str | None:
    """Return why no browser can be started here and what to do, or None."""
    if shutil.which("chromium") and shutil.which("chromedriver"):
        return None
    if not shutil.which("apt-get"):
        return "needs a Debian, whose archive Chromium comes from"
    if os.geteuid() != 0:
        return "needs Chromium and its driver; install them once with: sudo .ci/setup browser"
    return None


def what_node_lacks() -> str | None:
    """Return why no node can be booted here and what to do, or None."""
    if platform.machine() != "x86_64":
        return "needs x86-64: its image is Debian's for amd64"
    return what_cluster_lacks()
