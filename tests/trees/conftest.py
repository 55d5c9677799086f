"""Small file trees in place of procfs and cgroupfs: `tree({"a/b": "text", "c": {...}})` returns the root of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

Tree: TypeAlias = Mapping[str, "str | bytes | Tree"]


def make_tree(root: Path, files: Tree) -> Path:
    for name, content in files.items():
        path = root / name
        if isinstance(content, Mapping):
            path.mkdir(parents=True, exist_ok=True)
            make_tree(path, content)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[Tree], Path]:
    return lambda files: make_tree(tmp_path, files)
