"""`make release`: what is in it, and that the same commit gives the same bytes wherever it is built."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from tests.cluster.agent_image import build_image, unpack

pytest.importorskip("cyclonedx", reason="the bill of materials needs cyclonedx-python-lib; make setup installs it")

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
NAME = f"koordebpf-{VERSION}"
EPOCH = "1700000000"
WITH_IMAGE = os.environ.get("KOORDEBPF_RELEASE_IMAGE") == "1"

pytestmark = [pytest.mark.slow]


def copied(folder: Path) -> Path:
    """Return a copy of the repository as git has it, with what is not committed yet."""
    listed = ["git", "ls-files", "-co", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def build(sources: Path, out: Path, umask: str, zone: str, *options: str) -> Path:
    environment = os.environ | {"SOURCE_DATE_EPOCH": EPOCH, "TZ": zone, "PYTHONPATH": str(sources)}
    command = ["sh", "-c", f'umask {umask}; exec "$@"', "sh", sys.executable, ".ci/release.py", *options, str(out)]
    done = subprocess.run(command, cwd=sources, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    return build(copied(folder / "sources"), folder / "release", "022", "UTC", "--no-image")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_it_has_all_that_is_published(release: Path) -> None:
    assert set(files(release)) == {
        f"{NAME}-py3-none-any.whl",
        f"{NAME}.tar.gz",
        f"{NAME}.tgz",
        f"{NAME}-man.tar.gz",
        f"{NAME}.cdx.json",
        "SHA256SUMS",
    }


def test_the_checksums_are_those_of_the_files(release: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=release, check=True)
    named = {line.split()[1] for line in (release / "SHA256SUMS").read_text().splitlines()}
    assert named == set(files(release)) - {"SHA256SUMS"}


def test_it_is_the_same_at_another_place_and_under_another_umask_and_time_zone(release: Path, tmp_path: Path) -> None:
    sources = copied(tmp_path / "elsewhere/with/a/longer/name")
    again = build(sources, tmp_path / "release", "077", "Asia/Kathmandu", "--no-image")
    first, second = files(release), files(again)
    assert {name for name in first | second if first.get(name) != second.get(name)} == set()


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="needs Debian's dpkg-query, as the image has")
def test_the_bill_of_the_image_is_the_same_each_time() -> None:
    command = [sys.executable, "deploy/image/sbom.py", "/var/lib/dpkg", str(Path(sys.prefix))]
    environment = os.environ | {"SOURCE_DATE_EPOCH": EPOCH}
    one, two = (subprocess.check_output(command, cwd=ROOT, env=environment) for _ in range(2))
    assert one == two
    assert json.loads(one)["metadata"]["component"]["bom-ref"] == "koordebpf"


@pytest.mark.skipif(not WITH_IMAGE, reason="takes 10 minutes; make release-check")
def test_the_image_is_the_same_when_built_again(tmp_path: Path) -> None:
    for name in ("one", "two"):
        build_image(tmp_path / f"{name}.tar", print, epoch=int(EPOCH), revision="0" * 40)
    one, two = (unpack(tmp_path / f"{name}.tar", tmp_path / name) for name in ("one", "two"))
    assert contents(one.root) == contents(two.root)
    first, second = ((tmp_path / f"{name}.tar").read_bytes() for name in ("one", "two"))
    assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest()


def contents(root: Path) -> dict[str, tuple[int, int, str]]:
    """Return mode, time and hash of every file below a folder."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        digest = hashlib.sha256(data).hexdigest()
        found[str(path.relative_to(root))] = (status.st_mode, int(status.st_mtime), digest)
    return found


def test_the_chart_is_what_helm_would_package(release: Path) -> None:
    with tarfile.open(release / f"{NAME}.tgz") as packed:
        names = packed.getnames()
        assert names[0] == "koordebpf/Chart.yaml"
        assert {entry.mtime for entry in packed.getmembers()} == {int(EPOCH)}
    below = {name.split("/")[1] for name in names}
    assert below == {
        ".helmignore", "Chart.yaml", "base", "bootstrap", "components", "templates", "values.schema.json",
        "values.yaml",
    }  # fmt: skip


def test_the_bill_has_every_package_of_the_image_with_its_hashes(release: Path) -> None:
    bill = json.loads((release / f"{NAME}.cdx.json").read_text())
    locked = (ROOT / "deploy/image/requirements.txt").read_text()
    parts = {each["name"]: each for each in bill["components"]}
    assert len(parts) == locked.count("==")
    for name, each in parts.items():
        assert f"{name}=={each['version']} \\\n" in locked
        assert each["purl"] == f"pkg:pypi/{name}@{each['version']}"
        assert all(f"sha256:{one['content']}" in locked for one in each["hashes"])
        assert each["hashes"]
    assert bill["metadata"]["component"]["version"] == VERSION
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"


def test_the_source_archive_makes_the_same_wheel(release: Path, tmp_path: Path) -> None:
    with tarfile.open(release / f"{NAME}.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "out")]
    environment = os.environ | {"SOURCE_DATE_EPOCH": EPOCH}
    subprocess.run(command, cwd=tmp_path / NAME, env=environment, check=True, capture_output=True)
    wheel = f"{NAME}-py3-none-any.whl"
    assert (tmp_path / "out" / wheel).read_bytes() == (release / wheel).read_bytes()


def test_the_manual_pages_are_in_it(release: Path) -> None:
    with tarfile.open(release / f"{NAME}-man.tar.gz") as packed:
        assert {"man1/koordebpf.1", "man1/koordebpf-run.1", "man1/koordebpf-slo-check.1"} <= set(packed.getnames())
    assert gzip.decompress((release / f"{NAME}-man.tar.gz").read_bytes())
