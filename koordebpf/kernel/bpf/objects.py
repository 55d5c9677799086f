"""Where the BPF programs are, compiled and as C: inside the installed package, or in a checkout's bpf/."""

from __future__ import annotations

from pathlib import Path

from koordebpf.errors import SupportError

_KERNEL = Path(__file__).parents[1]
_PACKAGED = _KERNEL / "objects"
_CHECKOUT = _KERNEL.parents[1] / "bpf" / "build"
_PACKAGED_SOURCES = _KERNEL / "sources"


def object_path(name: str) -> Path:
    """Return the path of `<name>.bpf.o`.

    Raises:  SupportError: it was not built.
    """
    for folder in (_PACKAGED, _CHECKOUT):
        path = folder / f"{name}.bpf.o"
        if path.exists():
            return path
    raise SupportError(f"BPF object {name}", f"not found in {_PACKAGED} nor {_CHECKOUT}", "Build it: make bpf.")


def source_folder() -> Path:
    """Return the folder of the programs' C sources, `*.bpf.c` and `include/`, for who compiles on the node.

    Raises:  SupportError: the package was built without them.
    """
    for folder in (_PACKAGED_SOURCES, _CHECKOUT.parent):
        if (folder / "include" / "koord_bcc.h").exists():
            return folder
    raise SupportError(
        "BPF sources", f"not found in {_PACKAGED_SOURCES} nor {_CHECKOUT.parent}", "Install koordebpf from its wheel."
    )
