"""The image of deploy/image: what it installs is locked, what it copies is there, and its version is the project's."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement

from tests.rules.offenders import report
from tests.rules.pages import ROOT

IMAGE = ROOT / "deploy/image"
LOCKS = ("requirements.txt", "build.txt", "sbom.txt")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DOCKERFILE = (IMAGE / "Dockerfile").read_text()


def locked(name: str) -> dict[str, str]:
    """Return package → version of a file of hashes."""
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+) \\$", (IMAGE / name).read_text(), re.MULTILINE))


def test_every_package_has_its_hashes() -> None:
    wrong = []
    for name in LOCKS:
        lines = [line for line in (IMAGE / name).read_text().splitlines() if line and not line.startswith("#")]
        packages = [number for number, line in enumerate(lines) if not line.startswith("    --hash=sha256:")]
        assert len(packages) == len(locked(name)) > 0, name
        bare = [lines[number] for number in packages if "--hash" not in "".join(lines[number + 1 : number + 2])]
        wrong += [f"deploy/image/{name}: {line}" for line in bare]
    report(wrong, "these packages have no --hash: lock them again, as the first lines of the file say")


def test_what_the_project_needs_is_locked() -> None:
    project = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cri"]]
    wrong = [
        f"deploy/image/{name}: {text}"
        for name, texts in (("requirements.txt", project), ("build.txt", PYPROJECT["build-system"]["requires"]))
        for text in texts
        if not is_locked(Requirement(text), locked(name))
    ]
    report(wrong, "pyproject.toml needs these: lock them again, as the first lines of the file say")


def is_locked(needed: Requirement, versions: dict[str, str]) -> bool:
    return needed.name in versions and needed.specifier.contains(versions[needed.name])


def test_what_it_copies_is_there() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert [name for names in copied for name in names.split() if not (ROOT / name).exists()] == []


def test_it_bears_the_version_of_the_project() -> None:
    assert set(re.findall(r'image\.version="([^"]+)"', DOCKERFILE)) == {PROJECT["version"]}
    tags = {re.search(r"newTag: (\S+)", path.read_text()) for path in (ROOT / "deploy").rglob("kustomization.yaml")}
    assert {tag[1] for tag in tags if tag} == {PROJECT["version"]}
