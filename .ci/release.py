"""Make everything that is published of one commit: python .ci/release.py [--no-image] [FOLDER].

Wheel, source archive, chart, manual pages, a bill of materials of the Python packages, the image as an OCI archive
(with a bill of its own inside; root) and SHA256SUMS. The same commit gives the same bytes: all times are
SOURCE_DATE_EPOCH, by default that of the commit.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
_NAME = f"koordebpf-{VERSION}"
_LOCKED = re.compile(r"^([A-Za-z0-9_.-]+)==(\S+) \\\n((?:    --hash=sha256:\w+(?: \\)?\n)+)", re.MULTILINE)


def main() -> None:
    """Make it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--no-image", action="store_true", help="Leave the image out.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist/release")
    asked = parser.parse_args()
    folder: Path = asked.folder.absolute()
    epoch = source_date_epoch()
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    os.umask(0o022)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_packages(folder)
    write_chart(folder, epoch)
    write_manual(folder, epoch)
    write_bill(folder, epoch)
    if not asked.no_image:
        write_image(folder, epoch)
    write_checksums(folder)
    print((folder / "SHA256SUMS").read_text(), end="")


def source_date_epoch() -> int:
    """Return the second that all times of a release are."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def write_packages(folder: Path) -> None:
    """Write wheel and source archive; hatchling takes SOURCE_DATE_EPOCH."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)


def write_chart(folder: Path, epoch: int) -> None:
    """Write the chart as `helm package` names it, of what .helmignore leaves in it."""
    chart = ROOT / "deploy"
    ignored = [line for line in (chart / ".helmignore").read_text().splitlines() if line and line[0] != "#"]
    files = {}
    for path in sorted(each for each in chart.rglob("*") if each.is_file()):
        name = path.relative_to(chart).as_posix()
        if not any(_matches(f"/{name}", pattern) for pattern in ignored):
            files[f"koordebpf/{name}"] = path.read_bytes()
    _write_archive(folder / f"{_NAME}.tgz", files, epoch)


def write_manual(folder: Path, epoch: int) -> None:
    """Write the manual pages, as share/man/man1 has them."""
    from koordebpf.cli import root
    from koordebpf.cli.man import man_pages

    files = {f"man1/{name}": text.encode() for name, text in man_pages(root())}
    _write_archive(folder / f"{_NAME}-man.tar.gz", files, epoch)


def write_bill(folder: Path, epoch: int) -> None:
    """Write the bill of materials of the Python packages that the image has, with their hashes, as CycloneDX."""
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    of = PackageURL("pypi", None, "koordebpf", VERSION)
    root = Component(name="koordebpf", version=VERSION, purl=of, bom_ref=str(of), type=ComponentType.APPLICATION)
    parts = []
    for name, version, hashes in _LOCKED.findall((ROOT / "deploy/image/requirements.txt").read_text()):
        purl = PackageURL("pypi", None, name, version)
        digests = [HashType(alg=HashAlgorithm.SHA_256, content=each) for each in re.findall(r"sha256:(\w+)", hashes)]
        parts.append(
            Component(
                name=name, version=version, purl=purl, bom_ref=str(purl), hashes=digests, type=ComponentType.LIBRARY
            )
        )
    bom = Bom(components=parts, serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{of}#{epoch}"))
    bom.metadata.component = root
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.register_dependency(root, parts)
    (folder / f"{_NAME}.cdx.json").write_text(JsonV1Dot6(bom).output_as_string(indent=1) + "\n")


def write_image(folder: Path, epoch: int) -> None:
    """Write the image for this machine's architecture, built as deploy/image/Dockerfile says."""
    from tests.cluster.agent_image import build_image

    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    out = folder / f"{_NAME}-image-{os.uname().machine}.oci.tar"
    # Standard output is for the checksums.
    build_image(out, lambda text: print(text, file=sys.stderr), epoch=epoch, revision=head.stdout.strip())


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS, as `sha256sum --check` reads it."""
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(lines))


def _matches(name: str, pattern: str) -> bool:
    if pattern.endswith("/"):
        return name.startswith(pattern)
    return name.count("/") == pattern.count("/") and fnmatch.fnmatchcase(name, pattern)


def _write_archive(path: Path, files: dict[str, bytes], epoch: int) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in _sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(data), epoch, 0o644
            archive.addfile(entry, io.BytesIO(data))
    path.write_bytes(gzip.compress(packed.getvalue(), compresslevel=9, mtime=epoch))


def _sorted(files: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    # Chart.yaml first, as Helm reads it quickest.
    return sorted(files, key=lambda each: (not each[0].endswith("/Chart.yaml"), each[0]))


if __name__ == "__main__":
    main()
