"""Fixtures of the folders that need nothing of the machine; their conftest.py imports them."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

import tests.support.values.profiles  # noqa: F401
from koordebpf.report.log_formats import log_sink

Tree: TypeAlias = Mapping[str, "str | bytes | Tree"]


def make_tree(root: Path, files: Tree) -> Path:
    """Write files below a folder: `{"a/b": "text", "c": {...}}`; return it."""
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
    """Make small file trees in place of procfs and cgroupfs."""
    return lambda files: make_tree(tmp_path, files)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set up logging as the agent does, and take it down again."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    hooks = (sys.excepthook, threading.excepthook, sys.unraisablehook)
    yield
    if made := log_sink():
        made.close(1)
    root.handlers[:] = before
    root.setLevel(level)
    logging.captureWarnings(False)
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
