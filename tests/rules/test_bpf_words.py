"""The two headers that give the programs their words: what one has, the other has, and every structure is listed."""

from __future__ import annotations

import re
from pathlib import Path

from koordebpf.events.layout import LAYOUTS
from koordebpf.kernel.bcc.child import CO_RE_ONLY

INCLUDE = Path(__file__).parents[2] / "bpf" / "include"
# The scan is CO-RE's only: its rows are of no other program.
OF_THE_SCAN = {"koord_memcg"}
# A C compiler cannot be asked whether a field exists: what depends on it stands in functions that both headers have.
OF_BTF = {"HAS_FIELD"}


def words(header: str) -> set[str]:
    text = (INCLUDE / header).read_text()
    return set(re.findall(r"^(?:#define|static __always_inline [\w *]*?)\s*(\w+)\(", text, re.MULTILINE))


def test_bcc_has_every_word_of_co_re() -> None:
    core = words("koord_core.h")
    assert {"MAP_HASH", "TRACEPOINT", "READ", "map_lookup", "kernfs_id", "mark_victim_has_task"} <= core
    assert core - words("koord_bcc.h") == OF_BTF
    shared = [path for path in INCLUDE.parent.glob("*.bpf.c") if path.name not in CO_RE_ONLY]
    assert shared
    assert not [path.name for path in (*shared, INCLUDE / "koord_maps.h") if "HAS_FIELD" in path.read_text()]


def test_bcc_compiles_no_object_of_its_own() -> None:
    """bcc makes one unit of all sources: where one reads CO-RE's header, none is compiled."""
    objects = set(re.findall(r"build/(\w+)\.bpf\.o", (INCLUDE.parent / "Makefile").read_text())) - {"koordebpf"}
    reads_core = {path.name for path in INCLUDE.parent.glob("*.bpf.c") if '#include "koord_core.h"' in path.read_text()}
    assert {"sched", "deadman", "throttle"} <= objects
    assert {f"{name}.bpf.c" for name in objects} == reads_core
    assert reads_core <= set(CO_RE_ONLY)


def test_bcc_reports_the_layout_of_every_structure() -> None:
    text = (INCLUDE / "koord_bcc.h").read_text()
    structures = set(re.findall(r"struct (koord_\w+) \1;", text))
    assert structures == set(LAYOUTS) - OF_THE_SCAN
