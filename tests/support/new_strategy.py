"""A copy of the package with one more strategy: its folder, and its line in the list. Nothing else is changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_EXAMPLE = Path(__file__).parent / "example_strategy"
_HERE, _THERE = "tests.support.example_strategy", "koordebpf.strategies.best_effort_weight"
_LIST = "koordebpf/decision/strategies.py"
_LINE = "    BE_CPU_SUPPRESS,\n"


def copy_with_strategy(folder: Path) -> Path:
    """Return a folder from which `python -m koordebpf` runs the package with the example in it."""
    shutil.copytree(_ROOT / "koordebpf", folder / "koordebpf", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "bpf").symlink_to(_ROOT / "bpf")
    there = folder / _THERE.replace(".", "/")
    there.mkdir()
    for file in _EXAMPLE.glob("*.py"):
        (there / file.name).write_text(file.read_text().replace(_HERE, _THERE))
    before = (folder / _LIST).read_text()
    assert before.count(_LINE) == 1
    named = f"from {_THERE}.decide import BEST_EFFORT_WEIGHT\nfrom koordebpf.strategies.block_io"
    text = before.replace("from koordebpf.strategies.block_io", named, 1)
    (folder / _LIST).write_text(text.replace(_LINE, f"{_LINE}    BEST_EFFORT_WEIGHT,\n"))
    return folder


def koordebpf_in(folder: Path, *arguments: object, codes: tuple[int, ...] = (0,)) -> str:
    """Return what a command of the copy prints; it ends with one of these codes."""
    command = [sys.executable, "-m", "koordebpf", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"COLUMNS": "80"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in codes, done.stderr
    return done.stdout
