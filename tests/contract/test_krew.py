"""What krew would install: the archive, its manifest, and the launcher in it."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MAKER = ROOT / "deploy/krew/manifest.py"
URI = "https://releases.example.com/kubectl-koordebpf-0.1.0.tar.gz"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with both files, of the wheel of this tree."""
    folder = tmp_path_factory.mktemp("krew")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    for out in ("first", "second"):
        command = [sys.executable, MAKER, wheel, "--uri", URI, "--out", folder / out]
        subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def manifest(made: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((made / "first/koordebpf.yaml").read_text())
    return loaded


def archive(made: Path, out: str = "first") -> Path:
    return made / out / "kubectl-koordebpf-0.1.0.tar.gz"


def test_the_manifest_passes_krews_own_rules(manifest: dict[str, Any]) -> None:
    """As sigs.k8s.io/krew internal/index/validation has them."""
    spec = manifest["spec"]
    assert (manifest["apiVersion"], manifest["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert re.fullmatch(r"[\w-]+", manifest["metadata"]["name"])
    assert re.fullmatch(r"v\d+\.\d+\.\d+(-[\w.-]+)?", spec["version"])
    assert spec["shortDescription"] and not re.search(r"[\r\n]", spec["shortDescription"])
    (platform,) = spec["platforms"]
    assert platform.keys() == {"selector", "uri", "sha256", "bin"}  # without `files` all of them are installed
    (expression,) = platform["selector"]["matchExpressions"]
    assert expression["key"] == "os" and expression["operator"] == "In"
    assert set(expression["values"]) <= {"linux", "darwin", "windows"}


def test_its_checksum_is_that_of_the_archive(made: Path, manifest: dict[str, Any]) -> None:
    assert manifest["spec"]["platforms"][0]["sha256"] == hashlib.sha256(archive(made).read_bytes()).hexdigest()
    assert archive(made).read_bytes() == archive(made, "second").read_bytes()


def test_kubectl_would_find_what_it_installs(made: Path, manifest: dict[str, Any], tmp_path: Path) -> None:
    with tarfile.open(archive(made)) as packed:
        assert {"kubectl-koordebpf", "LICENSE", "koordebpf-0.1.0-py3-none-any.whl"} == set(packed.getnames())
        packed.extractall(tmp_path / "store", filter="data")
    # krew links the file into a folder on PATH.
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin/kubectl-koordebpf"
    link.symlink_to(tmp_path / "store" / manifest["spec"]["platforms"][0]["bin"])
    environment = os.environ | {"KOORDEBPF_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([link, "--help"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: kubectl koordebpf ")


@pytest.mark.slow
def test_its_first_call_installs_the_wheel(made: Path, tmp_path: Path) -> None:
    """With pip as its user has it; nothing is fetched, since what the wheel needs is found where this Python has it."""
    with tarfile.open(archive(made)) as packed:
        packed.extractall(tmp_path, filter="data")
    site = next(path for path in sys.path if path.endswith("site-packages"))
    environment = os.environ | {
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PYTHONPATH": site,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    for said in ("installing koordebpf-0.1.0", ""):
        done = subprocess.run(
            [tmp_path / "kubectl-koordebpf", "--version"], env=environment, capture_output=True, text=True, check=True
        )
        assert "kubectl koordebpf, version 0.1.0" in done.stdout
        assert said in done.stderr if said else not done.stderr
