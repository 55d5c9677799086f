"""The BPF programs built from sources with one thing changed: smaller maps, or records of another time.

What was built once is kept beside the loads: an emulated CPU takes a minute to compile it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from koordebpf.kernel.bpf import programs
from tests.host.live_agent import ROOT
from tests.support.loads.workloads import BUILD

_SOURCES = ROOT / "bpf"


def use_changed_programs(folder: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]) -> None:
    """Let this process load co-re programs whose sources went through `change`, which must change one of them.

    Args:
        folder: where they are compiled if they were not before.
    """
    texts = {path.relative_to(_SOURCES): path.read_text() for path in sorted(_SOURCES.rglob("*.[ch]"))}
    changed = {path: change(text) for path, text in texts.items()}
    assert changed != texts
    digest = hashlib.sha256(repr([*changed.items(), (_SOURCES / "Makefile").read_text()]).encode()).hexdigest()
    kept = BUILD / "variants" / digest[:16]
    if not kept.exists():
        kept = _compile(folder / "bpf", changed, kept)
    monkeypatch.setattr(programs, "_PACKAGED", kept)
    monkeypatch.setenv("KOORDEBPF_BACKEND", "co-re")


def _compile(sources: Path, texts: dict[Path, str], keep: Path) -> Path:
    shutil.copytree(_SOURCES, sources, ignore=shutil.ignore_patterns("build"))
    for path, text in texts.items():
        (sources / path).write_text(text)
    subprocess.run(["make", "-s", "-C", sources], check=True)
    try:
        keep.parent.mkdir(exist_ok=True)
        part = keep.with_name(f"{keep.name}.{os.getpid()}")
        shutil.copytree(sources / "build", part)
        part.rename(keep)  # whole: another run may look for it now
    except OSError:  # a tree that may not be written to
        return sources / "build"
    return keep


def with_entries(map_name: str, entries: int) -> Callable[[str], str]:
    """Return the change that gives a map so many elements."""
    declared = re.compile(rf"^(MAP_\w+\({map_name}, .*, )\w+\);", re.MULTILINE)
    return lambda text: declared.sub(rf"\g<1>{entries});", text)


def with_ring(size_bytes: int) -> Callable[[str], str]:
    """Return the change that gives the ring so many bytes, a power of two and whole pages."""
    return lambda text: re.sub(r"^RING\(events, .*\);", f"RING(events, {size_bytes});", text, flags=re.MULTILINE)
