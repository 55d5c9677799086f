"""Koordinator's own programs and CRDs, from its module and kept by what they are made of.

v1.8.0: the newest release that Go's module proxy serves.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args

import msgspec

from tests.cluster.api import Object
from tests.cluster.binaries import (
    CannotHave,
    Say,
    cache_folder,
    find_go,
    go_build,
    say_line,
    unpacked,
)
from tests.cluster.go_programs import GO_FLAGS, kept_program
from tests.cluster.objects import documents

_MODULE = "github.com/koordinator-sh/koordinator@v1.8.0"
_SUM = "h1:CEMaFv6qru+arNhcdhkLP2Shxw77Heb6PSaXjHZ/t0I="  # of its files, go.sum among them
_LIBPFM = ("libpfm4", "libpfm4-dev")
Name = Literal["koord-manager", "koord-scheduler", "koordlet"]
NAMES: tuple[Name, ...] = get_args(Name)


class _Module(msgspec.Struct, frozen=True):
    """What `go mod download -json` prints."""

    Dir: str = ""
    Sum: str = ""
    Error: str = ""


def koordinator_program(name: Name, say: Say) -> Path:
    """Return the program, compiled first with the others where they are not in the cache: some minutes with two CPUs.

    Raises:  CannotHave: they do not compile, or their modules cannot be downloaded.
    """

    # By one command, and all with the C compiler that only koordlet needs: what they share is compiled once.
    def build(out: Path) -> None:
        source = module_folder(say)
        say(f"compiling {', '.join(NAMES)} of {_MODULE.rpartition('@')[2]}, once: more than 1,500 packages")
        out.mkdir(exist_ok=True)
        command = [*GO_FLAGS, "-o", f"{out}/", *(f"./cmd/{each}" for each in NAMES)]
        go_build(find_go(cache_folder(), say), command, source, say, c_compiler=_c_compiler(say))

    return kept_program("koordinator", [_MODULE.encode(), _SUM.encode()], build, say) / name


def koordlet_libraries(say: Say) -> Path:
    """Return the folder of the shared libraries that koordlet is linked with: libpfm, which names CPU events."""
    return unpacked(cache_folder() / "libpfm", _LIBPFM, say) / "usr/lib/x86_64-linux-gnu"


def _c_compiler(say: Say) -> dict[str, str]:
    libraries = koordlet_libraries(say)
    return {
        "CC": "clang",
        "CGO_CFLAGS": f"-I{libraries.parents[1] / 'include'}",
        "CGO_LDFLAGS": f"-L{libraries}",
    }


def koordinator_objects(path: str, say: Say) -> list[Object]:
    """Return the objects of a YAML file below the module's folder `config`, or of all those in a folder there."""
    root = module_folder(say) / "config" / path
    return [each for file in ([root] if root.is_file() else sorted(root.glob("*.yaml"))) for each in documents(file)]


def module_folder(say: Say) -> Path:
    """Return the folder of Koordinator's module in Go's cache, downloaded first where it is not there.

    Raises:  CannotHave: it cannot be downloaded, or is not what it was.
    """
    go = find_go(cache_folder(), say)
    done = subprocess.run([go, "mod", "download", "-json", _MODULE], capture_output=True, cwd="/", check=False)
    module = msgspec.json.decode(done.stdout or b"{}", type=_Module)
    if module.Sum != _SUM:
        said = module.Error or done.stderr.decode(errors="replace").strip() or f"its sum is {module.Sum}, not {_SUM}"
        raise CannotHave(f"go mod download {_MODULE}: {said}")
    return Path(module.Dir)


if __name__ == "__main__":
    try:
        for name in NAMES:
            say_line(str(koordinator_program(name, say_line)))
    except CannotHave as error:
        sys.exit(f"cluster: {error}")
