"""Put the compiled BPF objects into the wheel, so that its user needs no clang."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BpfObjects(BuildHookInterface[Any]):
    """Compiles bpf/ and maps its objects to koordebpf/kernel/objects."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build and add the objects; an editable install reads them from bpf/build instead."""
        if version == "editable":
            return
        bpf = Path(self.root) / "bpf"
        subprocess.run(["make", "-C", str(bpf)], check=True)
        objects = sorted((bpf / "build").glob("*.bpf.o"))
        if not objects:
            raise FileNotFoundError(f"{bpf}/build holds no *.bpf.o after make")
        for path in objects:
            build_data["force_include"][str(path)] = f"koordebpf/kernel/objects/{path.name}"
        # The bcc backend compiles them on the node.
        for path in sorted([*bpf.glob("*.bpf.c"), *(bpf / "include").glob("*.h")]):
            build_data["force_include"][str(path)] = f"koordebpf/kernel/sources/{path.relative_to(bpf)}"
        # Not tagged with an architecture: BPF is a machine of its own; only __TARGET_ARCH_ makes objects differ, and
        # only programs that read pt_regs look at it. None here does.
        build_data["pure_python"] = True
