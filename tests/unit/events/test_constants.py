"""Numbers that Python and the BPF programs both have: those that name a constant of a header equal it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from koordebpf.events.layout import CPU_LEVELS
from koordebpf.kernel.cgroup.hierarchy import MAX_LEVELS

ROOT = Path(__file__).resolve().parents[3]
_DEFINED = re.compile(r"^(?:#define\s+|\s+)(KOORD_[A-Z_]+)(?:\s+|\s*=\s*)(\d\w*|\(~0ULL\))", re.M)
# `KOORD_NAME = 1`, `NAME = 1  # KOORD_NAME`, `NAME = 1  # koord_events.h: KOORD_NAME`
_NAMED = re.compile(r"^(?P<own>\w+) = (?P<value>[^#]+?)(?:  # (?:\w+\.h: )?(?P<of>KOORD_[A-Z_]+)\b.*)?$", re.M)


def _of_headers() -> dict[str, int]:
    found = {}
    for header in (ROOT / "bpf" / "include").glob("koord_*.h"):
        for name, text in _DEFINED.findall(header.read_text()):
            found[name] = (1 << 64) - 1 if "~" in text else int(text, 0)
    return found


def _of_python() -> list[tuple[str, str, int]]:
    found = []
    for path in (ROOT / "koordebpf").rglob("*.py"):
        for match in _NAMED.finditer(path.read_text()):
            name = match["of"] or match["own"]
            if name.startswith("KOORD_") and re.fullmatch(r"[\d() <-]+", match["value"]):
                value = eval(compile(ast.parse(match["value"], mode="eval"), str(path), "eval"), {})
                found.append((f"{path.relative_to(ROOT)}: {match['own']}", name, value))
    return found


def test_they_are_those_of_the_headers() -> None:
    headers, named = _of_headers(), _of_python()
    assert {"KOORD_CPU_LEVELS", "KOORD_NOT_KNOWN", "KOORD_DEADMAN_LEVELS", "KOORD_OOM_KILL"} <= {
        of for _, of, _ in named
    }
    wrong = [f"{where} = {value}, {of} is {headers.get(of)}" for where, of, value in named if headers.get(of) != value]
    assert not wrong


def test_a_walk_is_as_deep_as_files_are_read() -> None:
    assert CPU_LEVELS == MAX_LEVELS
