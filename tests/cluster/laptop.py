"""A person with kubectl and a kubeconfig: programs on PATH, credentials of a group, a folder to work in."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane
from tests.support.patience import patience

ROOT = Path(__file__).parents[2]
_PAGE = ROOT / "docs/laptop.md"
_TIMEOUT_S = 120


class Laptop:
    """Commands as a user of `group` types them."""

    def __init__(self, cluster: ControlPlane, binaries: Binaries, group: str, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        programs = folder / "bin"
        programs.mkdir()
        ours = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from koordebpf.cli"
        for name, line in {
            "kubectl": shlex.join([str(binaries.kubernetes), "kubectl"]),
            "kubectl-koordebpf": shlex.join([sys.executable, "-c", f"{ours}.kubectl import main; main()"]),
            "koordebpf": shlex.join([sys.executable, "-c", f"{ours} import main; main()"]),
        }.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
            (programs / name).chmod(0o755)
        name = group.replace(":", "-")
        certificate, key = cluster.authority.client(name, "jane", group)
        user = {"client-certificate": str(certificate), "client-key": str(key)}
        kubeconfig = cluster.kubeconfig(name, user)
        path = f"{programs}:{os.environ['PATH']}"
        self.environment: Mapping[str, str] = {
            "PATH": path, "KUBECONFIG": str(kubeconfig), "COLUMNS": "80", "HOME": str(folder), "LC_ALL": "C.UTF-8"
        }  # fmt: skip

    def types(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run what a user types."""
        return subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env=self.environment,
            timeout=patience(_TIMEOUT_S),
            capture_output=True,
            text=True,
            check=False,
        )

    def sees(self, line: str, code: int = 0) -> str:
        """Return what it prints; it must end with this exit code."""
        done = self.types(line)
        assert done.returncode == code, f"{line}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout


def documented_commands(section: str) -> list[str]:
    """Return what docs/laptop.md has in a section, line for line."""
    text = _PAGE.read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return block.splitlines()
