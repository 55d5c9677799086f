"""The modules of the package, each parsed once for all rules of a file."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from tests.rules.pages import ROOT

PACKAGE = ROOT / "koordebpf"
MODULES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def tree(path: Path) -> ast.Module:
    """Return what a module is parsed to."""
    return ast.parse(path.read_bytes())
