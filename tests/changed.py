"""Run the test modules that a change reaches, for the inner loop: `make test CHANGED=1`. Before a merge all run.

A change is what differs from where main was left (origin/main, or main; on main itself the commit before); files that
git does not know yet count. Python reaches test modules by imports (imports.py), anything else by `OWNERS`.
`python -m tests.changed FILE…` takes these files for the change.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from tests import git, imports, run

# Where a file that is not Python is tested: it, or what is in a folder of this name. Any other of koordebpf/ or tests/
# counts as the modules of its folder, and any other of the top is tested by all.
OWNERS = {
    "bpf": ("tests/host", "tests/golden", "tests/contract", "tests/unit/kernel", "tests/unit/events"),
    "deploy": ("tests/deploy", "tests/contract", "tests/cluster"),
    "docs": ("tests/rules", "tests/contract/test_site.py"),
    "vagrant": ("tests/contract", "tests/cluster"),
    "tests/workloads": ("tests/host", "tests/contract", "tests/cluster"),
    "tests/README.md": ("tests/rules",),
    "README.md": ("tests/rules", "tests/contract/test_site.py"),
    "CONTRIBUTING.md": ("tests/rules",),
    "SECURITY.md": ("tests/rules",),
    "CHANGELOG.md": (),
    "LICENSE": (),
    ".gitignore": (),
}
_NOT_QUICK = ("browser", "node", "vm")


def selected(paths: Iterable[str], sources: Mapping[str, str]) -> list[str]:
    """Return the test modules that the changed paths reach; `sources`: path → text of all Python."""
    python, folders = set(), set()
    for path in paths:
        if path.endswith(".py") and path.startswith(imports.FOLDERS):
            python.add(path)
            continue
        owners = [OWNERS[name] for name in (path, *map(str, PurePosixPath(path).parents)) if name in OWNERS]
        beside = _beside(path, sources) if path.startswith(("koordebpf/", "tests/")) else set()
        python |= set() if owners else beside
        folders |= set(owners[0] if owners else () if beside else ("tests",))
    reached = imports.importers(imports.graph(dict.fromkeys(python, "") | dict(sources)), python)
    in_folders = {
        path for path in sources if imports.is_test(path) and f"{path}/".startswith(tuple(f"{at}/" for at in folders))
    }
    return sorted(in_folders | {path for path in reached if path in sources})


def _beside(path: str, sources: Mapping[str, str]) -> set[str]:
    """Return the modules in the nearest folder above that has some."""
    for folder in PurePosixPath(path).parents:
        if beside := {each for each in sources if PurePosixPath(each).parent == folder}:
            return beside
    return set()


def changed() -> list[str]:
    """Return the paths that differ from where main was left, and those that git does not know."""
    for main in ("origin/main", "main"):
        base = git.lines("merge-base", "HEAD", main)
        if base and base != git.lines("rev-parse", "HEAD"):
            break
    else:
        base = ["HEAD~"]
    return git.changed_since(base[0]) + git.lines("ls-files", "--others", "--exclude-standard")


def _relative(path: Path) -> str:
    return path.relative_to(imports.ROOT).as_posix()


def main(arguments: list[str]) -> int:
    """Say what is chosen, run it, and return the exit code."""
    paths = [_relative(Path(each).resolve()) for each in arguments] or changed()
    modules = selected(paths, imports.sources())
    of_folder = Counter(module.split("/")[1] for module in modules)
    folders = [folder for folder in run.FOLDERS if folder in of_folder and folder not in _NOT_QUICK]
    print(f"changed: {len(paths)} files; they reach {len(modules)} test modules:", end=" ")
    print(", ".join(f"{folder} {count}" for folder, count in of_folder.items()) or "none")
    for folder in of_folder.keys() - set(folders):
        print(f"left out: {folder}: {'make lint' if folder == 'rules' else 'make test-all'} runs it", flush=True)
    if not folders:
        return 0
    return run.main(["--quick", *(module for module in modules if module.split("/")[1] in folders)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
