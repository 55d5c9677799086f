"""The BPF programs of the object, and by which way the running kernel lets each of them in."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec

from koordebpf.kernel.bpf import libbpf
from koordebpf.kernel.bpf.co_re import CoreObject
from koordebpf.kernel.bpf.programs import object_path
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy

_SOURCES = Path(__file__).parents[2] / "bpf"
_OBJECT = "koordebpf"
REFUSED = "refused: "


class Program(msgspec.Struct, frozen=True):
    """One program: the file it is written in, and what its section says that it attaches to."""

    source: str
    name: str
    target: str


def programs() -> tuple[Program, ...]:
    """Return every program of the object that was built, file by file."""
    texts = {path.name: path.read_text() for path in sorted(_SOURCES.glob("*.bpf.c"))}
    found: list[Program] = []
    with libbpf.Object(object_path(_OBJECT)) as opened:
        for name, handle in opened.programs():
            target = opened.section(handle).split("/")[1]
            begins = (f"\nTRACEPOINT({target})", f"\nFUNCTION({target})", f"\nint {name}(")
            (source,) = (path for path, text in texts.items() if any(begin in text for begin in begins))
            found.append(Program(source, name, target))
    return tuple(sorted(found, key=lambda program: (program.source, program.target)))


def try_all() -> dict[str, str]:
    """Return for each program the way that it attaches here, or `refused: ` and why. Nothing stays attached.

    The choice among the ways is the agent's own.
    """
    root = os.open(find_memory_hierarchy().mount_point, os.O_RDONLY | os.O_DIRECTORY)
    try:
        core = CoreObject(object_path(_OBJECT), prepare=_as_it_is, fill=_as_it_is, scan_root_fd=root)
    finally:
        os.close(root)
    core.object.close()
    return {name: _said(how, core.failures.get(name)) for name, how in core.how.items()}


def _as_it_is(_: libbpf.Object) -> None:
    pass


# "BTF tracepoint mark_victim" → "BTF tracepoint".
def _said(how: str, failure: OSError | None) -> str:
    if failure:
        return REFUSED + errno.errorcode.get(failure.errno or 0, str(failure.errno))
    return how.rpartition(" ")[0]
