"""Pure tests on other Pythons: `make test-python`.

The oldest Python that pyproject.toml allows, with the lowest versions of every dependency that it allows, and the
newest Python that is installed here, with the newest versions. uv resolves and installs them into .make/pythons. With
--merge it is one of the two, the other with the next merge, and both where pyproject.toml changed (ledger.py).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path

from tests import ledger, needs

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".make" / "pythons"
# Not properties: what they vary is data, which means the same to each Python, and they take as long as all others.
FOLDERS = tuple(each for each in needs.PURE if each != "properties")
_EXTRAS = ("cri",)
# Of the extra `dev`: what pure tests import.
_TOOLS = ("hypothesis", "jsonschema", "protobuf", "pytest", "pytest-rerunfailures", "pytest-timeout")
# uv trusts certificates of its own otherwise, and pip those of the system. The second name is that of older releases.
_SYSTEMS_CERTIFICATES = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}
_TEST_S = 900
RESOLUTIONS = ("lowest-direct", "highest")  # of uv: with the oldest Python, and with the newest

Version = tuple[int, int]


def project() -> dict[str, object]:
    """Return [project] of pyproject.toml."""
    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def oldest() -> Version:
    """Return the oldest Python that is allowed."""
    found = re.fullmatch(r">=(\d+)\.(\d+)", str(project()["requires-python"]))
    assert found is not None
    return int(found[1]), int(found[2])


def requirements() -> list[str]:
    """Return what pure tests need, as pyproject.toml has it."""
    has = project()
    extras = has["optional-dependencies"]
    assert isinstance(extras, dict) and isinstance(has["dependencies"], list)
    tools = [each for each in extras["dev"] if re.split("[<>=]", each)[0] in _TOOLS]
    return [*has["dependencies"], *(each for extra in _EXTRAS for each in extras[extra]), *tools]


def installed() -> dict[Version, Path]:
    """Return the Pythons of this machine that are allowed: on PATH, and pyenv's."""
    found: dict[Version, Path] = {}
    for path in _candidates():
        command = [path, "-c", "import sys; print(*sys.version_info[:2], sys.version_info.releaselevel)"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        match done.stdout.split():
            case [major, minor, "final"] if (version := (int(major), int(minor))) >= oldest():
                found.setdefault(version, path)
    return found


def _candidates() -> Iterator[Path]:
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob("versions/*/bin/python"))
    yield Path(sys.executable).resolve()
    for minor in range(11, 30):
        if path := shutil.which(f"python3.{minor}"):
            yield Path(path)


def find_uv() -> list[str]:
    """Return the command of uv: this machine's, or one of PyPI."""
    if path := shutil.which("uv"):
        return [path]
    folder = HOME / "uv"
    if not (folder / "bin" / "uv").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), "uv>=0.5"]
        subprocess.run(command, check=True)
    return [str(folder / "bin" / "uv")]


def environment(python: Path, resolution: str, uv: list[str]) -> Path:
    """Return the Python of a virtual environment with everything in it; one that is there is brought up to date."""
    folder = HOME / f"{python.parents[1].name}-{resolution}"
    if not (folder / "bin" / "python").exists():
        subprocess.run([*uv, "venv", "--quiet", "--python", str(python), str(folder)], check=True)
    command = [*uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python")]
    command += ["--resolution", resolution, *requirements()]
    subprocess.run(command, check=True, cwd=HOME, env=_SYSTEMS_CERTIFICATES | os.environ)
    return folder / "bin" / "python"


def run(python: Path, arguments: list[str]) -> int:
    """Run the pure tests; return pytest's exit code."""
    own = {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(HOME / "bytecode")}
    folders = [str(ROOT / "tests" / name) for name in FOLDERS]
    options = ["-q", "-p", "no:cacheprovider", "-m", "not slow", f"--timeout={_TEST_S}"]
    command = [str(python), "-m", "pytest", *options, *(arguments or folders)]
    return subprocess.run(command, cwd=ROOT, env=os.environ | own, check=False).returncode


def chosen(merges: int, changed: Collection[str]) -> list[str]:
    """Return how versions of dependencies are resolved for what a merge runs; each is with a Python of its own."""
    return list(RESOLUTIONS) if "pyproject.toml" in changed else [RESOLUTIONS[merges % len(RESOLUTIONS)]]


def main(arguments: list[str]) -> int:
    """Run the tests named, or all pure ones, on each Python; return 1 where one fails or no such Python is here."""
    parser = argparse.ArgumentParser(prog="python -m tests.pythons", description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="*", metavar="PATH", help="only these; pytest's arguments after --")
    parser.add_argument("--merge", action="store_true", help="on the one whose turn it is")
    asked = parser.parse_args(arguments)
    resolutions = chosen(ledger.read().merges, ledger.changed()) if asked.merge else RESOLUTIONS
    HOME.mkdir(parents=True, exist_ok=True)
    pythons = installed()
    if oldest() not in pythons:
        print(f"no Python {'.'.join(map(str, oldest()))} here; install it, by pyenv or your distribution")
        return 1
    uv, failed = find_uv(), 0
    versions = dict(zip(RESOLUTIONS, (oldest(), max(pythons)), strict=True))
    for resolution in resolutions:
        version = versions[resolution]
        print(f"\n== Python {'.'.join(map(str, version))}, {resolution} versions", flush=True)
        failed += run(environment(pythons[version], resolution, uv), asked.tests) != 0
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
