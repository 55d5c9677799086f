"""The image of deploy/image: what it installs, what it leaves out, and what it copies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.cluster.agent_image import unpack
from tests.cluster.image import write_image

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "deploy/image"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DOCKERFILE = (IMAGE / "Dockerfile").read_text()
LEFT_OUT = ("aiohttp", "kubernetes.aio", "kubernetes.client.api", "kubernetes.client.models", "pygments")


def locked(name: str) -> dict[str, str]:
    """Return package → version of a file of hashes."""
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+) \\$", (IMAGE / name).read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", ["requirements.txt", "build.txt", "sbom.txt"])
def test_every_package_has_its_hashes(name: str) -> None:
    lines = [line for line in (IMAGE / name).read_text().splitlines() if line and not line.startswith("#")]
    packages = [number for number, line in enumerate(lines) if not line.startswith("    --hash=sha256:")]
    assert len(packages) == len(locked(name)) > 0
    assert [lines[number] for number in packages if "--hash" not in lines[number + 1]] == []


@pytest.mark.parametrize("text", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cri"]])
def test_what_the_project_needs_is_locked(text: str) -> None:
    needed = Requirement(text)
    assert needed.specifier.contains(locked("requirements.txt")[needed.name])


def test_what_builds_it_is_locked() -> None:
    needed = [
        Requirement(text) for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    ]
    assert [each for each in needed if not each.specifier.contains(locked("build.txt")[each.name])] == []


def test_what_it_copies_is_there() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert [name for names in copied for name in names.split() if not (ROOT / name).exists()] == []


def test_it_bears_the_version_of_the_project() -> None:
    assert set(re.findall(r'image\.version="([^"]+)"', DOCKERFILE)) == {PROJECT["version"]}
    tags = {re.search(r"newTag: (\S+)", path.read_text()) for path in (ROOT / "deploy").rglob("kustomization.yaml")}
    assert {tag[1] for tag in tags if tag} == {PROJECT["version"]}


def test_what_it_leaves_out_is_not_needed(kubeconfig: Path) -> None:
    program = f"""
import importlib, pathlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        is_gone = any(name == gone or name.startswith(gone + ".") for gone in {LEFT_OUT})
        if is_gone and name != "kubernetes.client.models":  # whose __init__ stays
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from koordebpf.kube.http.transport import open_cluster
open_cluster(pathlib.Path({str(kubeconfig)!r})).close()
for path in sorted(pathlib.Path("koordebpf").rglob("*.py")):
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    if not name.endswith(("__main__", "bcc_child", "recording", "ring_pages")):  # of them two need numpy, one bcc
        importlib.import_module(name)
print(len(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    removed = re.findall(r"(kubernetes/aio|kubernetes/client/api|kubernetes/client/models|pygments)\b", DOCKERFILE)
    assert {name.replace("/", ".") for name in removed} == set(LEFT_OUT) - {"aiohttp"}


def test_an_image_that_is_unpacked_lets_its_user_in_whatever_the_umask(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    write_image(tmp_path / "image.tar", "some:1", {"bin/file": tmp_path / "file"}, links={})
    before = os.umask(0o077)
    try:
        root = unpack(tmp_path / "image.tar", tmp_path).root
    finally:
        os.umask(before)
    assert root.stat().st_mode & 0o777 == 0o755
