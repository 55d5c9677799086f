"""Programs of Katalyst's own code, built from Go modules and kept by what they are made of.

katalyst-core and katalyst-api are v0.5.0: the newest that the checksum database knows, without which Go does not build.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from tests.cluster.binaries import CannotHave, Say, alone, cache_folder, digest_of, find_go, go_build, say_line

_FLAGS = ("-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=-s -w")
_ROOT = Path(__file__).parents[2]
Name = Literal["manager", "example"]
FOLDERS: dict[Name, Path] = {
    # The kubelet's plugin manager and katalyst-core's endpoint, which call a plugin as a Katalyst agent does.
    "manager": _ROOT / "tests/cluster/katalyst",
    # The example of a plugin, on katalyst-api's skeleton.
    "example": _ROOT / "deploy/examples/plugins/go",
}


def katalyst_program(name: Name, say: Say) -> Path:
    """Return the program, compiled first where it is not in the cache: half a minute to a minute with two CPUs.

    Raises:  CannotHave: it does not compile, or its modules cannot be downloaded.
    """
    folder, home = FOLDERS[name], cache_folder()
    home.mkdir(parents=True, exist_ok=True)
    inputs = [folder / "go.mod", folder / "go.sum", folder / "main.go"]
    digest = digest_of([*(path.read_bytes() for path in inputs), *(flag.encode() for flag in _FLAGS)])
    out = home / f"katalyst-{name}-{digest}"
    with alone(home / f"katalyst-{name}.lock", say):
        if not out.exists():
            say(f"compiling {folder.relative_to(_ROOT)}, once")
            unfinished = out.with_suffix(".unfinished")
            go_build(find_go(home, say), [*_FLAGS, "-o", str(unfinished), "."], folder, say)
            unfinished.rename(out)
    return out


if __name__ == "__main__":
    try:
        for name in FOLDERS:
            say_line(str(katalyst_program(name, say_line)))
    except CannotHave as error:
        sys.exit(f"cluster: {error}")
