"""A copy of the package with one more strategy: its folder, and its line in the tuple. Nothing else is changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_EXAMPLE = Path(__file__).parent / "example_strategy"
_IMPORT = "from koordebpf.policy.best_effort_weight import BEST_EFFORT_WEIGHT\n"
_LINE = "    BE_CPU_SUPPRESS,\n"


def copy_with_strategy(folder: Path) -> Path:
    """Return a folder from which `python -m koordebpf` runs the package with the example in it."""
    shutil.copytree(_ROOT / "koordebpf", folder / "koordebpf", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "bpf").symlink_to(_ROOT / "bpf")
    shutil.copytree(_EXAMPLE, folder / "koordebpf" / "policy" / "best_effort_weight")
    tuple_of_all = folder / "koordebpf" / "policy" / "strategies.py"
    before = tuple_of_all.read_text()
    assert before.count(_LINE) == 1
    text = before.replace("from koordebpf.policy.evict.", f"{_IMPORT}from koordebpf.policy.evict.", 1)
    tuple_of_all.write_text(text.replace(_LINE, f"{_LINE}    BEST_EFFORT_WEIGHT,\n"))
    return folder


def koordebpf_in(folder: Path, *arguments: object) -> str:
    """Return what a command of the copy prints."""
    command = [sys.executable, "-m", "koordebpf", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"COLUMNS": "80"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
