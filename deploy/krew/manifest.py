"""Makes what krew installs `kubectl koordebpf` from: an archive of the wheel, and a manifest with its checksum.

    python deploy/krew/manifest.py dist/koordebpf-0.1.0-py3-none-any.whl --uri URL --out dist

`URL` is where the archive will be downloaded from. The archive has a launcher, the wheel and the licence. The launcher
makes a virtual environment for its version below $XDG_DATA_HOME/koordebpf at its first call, by the python3 and the
package index of its user.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
API_VERSION = "krew.googlecontainertools.github.com/v1alpha2"
_OS = ("linux", "darwin")


def archive_of(wheel: Path) -> bytes:
    """Return the archive; the same wheel gives the same bytes."""
    made = io.BytesIO()
    with zipfile.ZipFile(wheel) as packed, tarfile.open(fileobj=made, mode="w:gz", compresslevel=9) as archive:
        (licence,) = (each for each in packed.namelist() if each.endswith("licenses/LICENSE"))
        for name, mode, content in (
            ("kubectl-koordebpf", 0o755, (HERE / "kubectl-koordebpf").read_bytes()),
            (wheel.name, 0o644, wheel.read_bytes()),
            ("LICENSE", 0o644, packed.read(licence)),
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    raw = bytearray(made.getvalue())
    raw[4:8] = bytes(4)  # RFC 1952: the time of compression
    return bytes(raw)


def manifest_of(version: str, uri: str, archive: bytes) -> dict[str, Any]:
    """Return the plugin's manifest; krew's own index asks for a `homepage` besides."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Plugin",
        "metadata": {"name": "koordebpf"},
        "spec": {
            "version": f"v{version}",
            "shortDescription": "Say why pods were evicted, and when nodes run short",
            "description": (
                "Looks at the agents of koordebpf on all nodes: their state, nodes and pods by memory, growth and\n"
                "stall, why a pod was evicted (also once it is gone), and what was recorded, to decide it again\n"
                "with other settings.\n"
            ),
            "caveats": (
                "Needs python3 3.11 or newer with venv; the first call installs its packages.\n"
                "Roles for readers: deploy/components/readers of koordebpf.\n"
            ),
            "platforms": [
                {
                    "selector": {"matchExpressions": [{"key": "os", "operator": "In", "values": list(_OS)}]},
                    "uri": uri,
                    "sha256": hashlib.sha256(archive).hexdigest(),
                    "bin": "kubectl-koordebpf",
                }
            ],
        },
    }


def main() -> None:
    """Write both files into a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--uri", required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    version = given.wheel.name.split("-")[1]
    archive = archive_of(given.wheel)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / f"kubectl-koordebpf-{version}.tar.gz").write_bytes(archive)
    manifest = manifest_of(version, given.uri, archive)
    (given.out / "koordebpf.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    sys.stdout.write(f"{given.out / 'koordebpf.yaml'}\n")


if __name__ == "__main__":
    main()
