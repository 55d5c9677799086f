"""What rigs of a live node share: its cgroups' files by name, and the manifest that an agent reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from koordebpf.act.writer.places import Places
from koordebpf.kernel.cgroup.files import CgroupFile, Value
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from tests.support.nodes import NodeCgroup


class NodeFiles:
    """The files of directories, which are given as they are in the memory hierarchy."""

    def __init__(self) -> None:
        found = find_controllers()
        self.places = Places(found)
        self._below = found["memory"].mount_point

    def path(self, directory: Path) -> str:
        """Return where a directory lies in every hierarchy."""
        return str(directory.relative_to(self._below))

    def file(self, directory: Path, file: CgroupFile) -> Path:
        found = self.places.locate((self.path(directory), file))
        assert found is not None
        return found

    def value(self, directory: Path, file: CgroupFile) -> Value:
        return self.places.parse((self.path(directory), file), self.file(directory, file).read_text())


def write_manifest(node: NodeCgroup, folder: Path, **spec: dict[str, Any]) -> Path:
    """Write the pods as they are now, and a NodeSLO with these fields laid over its parts; whole before it is seen."""
    manifest, part = folder / "pods.json", folder / "more.json"
    node.write_manifest(part)
    written = json.loads(part.read_text())
    slo = written["items"][-1]["spec"]
    slo |= {name: slo.get(name, {}) | fields for name, fields in spec.items()}
    part.write_text(json.dumps(written))
    part.rename(manifest)
    return manifest
