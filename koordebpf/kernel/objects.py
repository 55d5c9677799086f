"""Where the compiled BPF objects are: inside the installed package, or in a checkout's bpf/build."""

from __future__ import annotations

from pathlib import Path

from koordebpf.errors import SupportError

_PACKAGED = Path(__file__).parent / "objects"
_CHECKOUT = Path(__file__).parents[2] / "bpf" / "build"


def object_path(name: str) -> Path:
    """Return the path of `<name>.bpf.o`.

    Raises:  SupportError: it was not built.
    """
    for folder in (_PACKAGED, _CHECKOUT):
        path = folder / f"{name}.bpf.o"
        if path.exists():
            return path
    raise SupportError(f"BPF object {name}", f"not found in {_PACKAGED} nor {_CHECKOUT}", "Build it: make bpf.")
