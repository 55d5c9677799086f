"""The C loads under ASan and UBSan: no access out of bounds, no undefined behaviour, nothing leaked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.loads.workloads import BUILD, SOURCES
from tests.support.patience import patience

# Each for a moment; PROCS is a file in place of a cgroup's, FILE one of 8 KiB, FOLDER has procs files of two cgroups.
LOADS = {
    "allocs": ["2", "100", "1", "PRESSURE", "PROCS"],
    "cacheflood": ["FOLDER", "8", "1", "PROCS"],
    "forker": ["20", "4", "100", "PROCS"],
    "hog": ["--mib", "16", "--cgroup", "PROCS", "--mark-mib", "8", "--mark-file", "USAGE", "--mark-bytes", "1"],
    "holder": ["--kind", "mixed", "--mib", "8", "--cgroup", "PROCS", "--folder", "FOLDER", "--hold", "0"],
    "lookups": ["FOLDER", "8", "1", "PROCS"],
    "onnode": ["0", "true"],
    "pingpong": ["PROCS", "0", "200", "50"],
    "reads": ["FILE", "1", "1", "PROCS"],
    "requests": ["200", "50", "20", "2000", "500", "2", "2", "PROCS"],
    "pulse": ["50", "5", "2", "1", "PROCS"],
    "sleeper": ["1", "PROCS"],
    "storm": ["200", "0", "USAGE", "1048576", "PROCS"],
    "thrash": ["FOLDER", "8", "1", "PROCS"],
    "visit": ["FOLDER", "2", "0", "PROCS"],
}
KINDS = ("anon", "memfd", "tmpfs", "sockets", "pipes", "tables", "dentries")


@pytest.fixture(scope="module")
def sanitized() -> Path:
    compiles = ["gcc", "-x", "c", "-fsanitize=address,undefined", "-", "-o", os.devnull]
    try:
        subprocess.run(compiles, input=b"int main(void) { return 0; }", capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs gcc with its sanitizers: apt-get install gcc")
    subprocess.run(["make", "--silent", "-C", SOURCES, "SANITIZE=1", "V=0"], check=True)
    return BUILD / "sanitized"


def run(program: Path, arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    for name in ("0", "1"):
        (folder / name).mkdir()
    places = {"FOLDER": folder, "PROCS": folder / "procs", "USAGE": folder / "usage"}
    places["FILE"] = folder / "file"
    places["FILE"].write_bytes(bytes(8192))
    for path in (places["PROCS"], folder / "0" / "cgroup.procs", folder / "1" / "cgroup.procs"):
        path.touch()
    places["USAGE"].write_text("4096\n")
    places["PRESSURE"] = folder / "pressure"
    places["PRESSURE"].write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\n")
    command = [program, *(str(places.get(each, each)) for each in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=False)


def test_every_load_is_here() -> None:
    assert sorted(LOADS) == sorted(path.stem for path in SOURCES.glob("*.c"))


@pytest.mark.parametrize("name", LOADS)
def test_a_load_runs_without_a_report(sanitized: Path, name: str, tmp_path: Path) -> None:
    assert b"__asan_init" in (sanitized / name).read_bytes()
    done = run(sanitized / name, LOADS[name], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_memory_is_held_without_a_report(sanitized: Path, kind: str, tmp_path: Path) -> None:
    arguments = ["--kind", kind, "--mib", "4", "--folder", "FOLDER", "--hold", "0"]
    done = run(sanitized / "holder", arguments, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ready ")


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("arguments", [[], ["x" * 5000] * 4, ["-1"] * 3, ["9" * 30, "1", "1", "1"]])
def test_bad_arguments_are_refused_without_a_report(
    sanitized: Path, name: str, arguments: list[str], tmp_path: Path
) -> None:
    done = run(sanitized / name, arguments, tmp_path)
    assert done.returncode in (1, 2)
    assert "Sanitizer" not in done.stderr
    assert "runtime error" not in done.stderr
