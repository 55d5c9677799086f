"""The wheel: what is in it, and that a user of it finds the BPF programs without the repository."""

from __future__ import annotations

import email
import email.policy
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import msgspec
import packaging.metadata
import pytest
import trove_classifiers

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    (path,) = folder.glob("*.whl")
    return path


def test_it_holds_the_object_the_sources_and_says_it_is_typed(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        path.relative_to(ROOT / "bpf")
        for pattern in ("*.bpf.c", "include/*.h")
        for path in (ROOT / "bpf").glob(pattern)
    }
    assert sources
    assert {f"koordebpf/kernel/sources/{source}" for source in sources} <= names
    assert {f"koordebpf/kernel/objects/{name}.bpf.o" for name in ("koordebpf", "sched", "cpu_iter")} <= names
    assert "koordebpf/py.typed" in names


def test_it_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"koordebpf"}
    licences = {name.rsplit("/", 1)[1] for name in names if "/licenses/" in name and not name.endswith("/")}
    assert licences == {"LICENSE", "GPL-2.0-only.txt", "BSD-2-Clause.txt", "uPlot.LICENSE"}


@pytest.mark.slow
def test_its_user_finds_the_programs(wheel, tmp_path):
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    # The venv has no pip of its own: installing one takes longer than all the rest.
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    # What it depends on is not installed either: of that the module needs msgspec alone.
    (tmp_path / "needed").mkdir()
    (tmp_path / "needed" / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    script = "from koordebpf.kernel.bpf.programs import *; print(object_path('koordebpf')); print(source_folder())"
    found = subprocess.run(
        [str(python), "-c", script],
        cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "needed")},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    path, sources = map(Path, found.stdout.splitlines())
    assert path.is_relative_to(tmp_path / "venv")
    assert path.read_bytes().startswith(b"\x7fELF")
    assert sources.is_relative_to(tmp_path / "venv")
    assert (sources / "reclaim.bpf.c").exists()


def raw_metadata(wheel):
    files = zipfile.ZipFile(wheel)
    (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
    return files.read(name)


def metadata(wheel):
    return email.message_from_bytes(raw_metadata(wheel), policy=email.policy.default)


def test_an_index_would_accept_and_show_it(wheel):
    """What `twine check --strict` looks at, and that each classifier is one."""
    said = metadata(wheel)
    assert said["Description-Content-Type"] == "text/markdown"
    assert said.get_payload().startswith("# koordebpf\n")
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Author"] and said["Keywords"] and said["Summary"]
    classifiers = said.get_all("Classifier")
    assert set(classifiers) - trove_classifiers.classifiers == set()
    assert not [each for each in classifiers if each.startswith("License ::")]  # PEP 639: the expression has it
    raw, unparsed = packaging.metadata.parse_email(raw_metadata(wheel))
    assert unparsed == {}
    assert packaging.metadata.Metadata.from_raw(raw).name == "koordebpf"


def test_its_pythons_are_those_that_are_tested(wheel):
    said = {each.rpartition(" ")[2] for each in metadata(wheel).get_all("Classifier") if ":: 3." in each}
    assert said == {"3.11", "3.12", "3.13"}
    assert metadata(wheel)["Requires-Python"] == ">=3.11"
