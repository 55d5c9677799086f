"""The runtime's side of NRI by containerd's own library, built from Go modules and kept by what it is made of.

containerd/nri is v0.11.0, of containerd 2.2 and as Koordinator uses it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cluster.binaries import CannotHave, Say, alone, cache_folder, digest_of, find_go, go_build, say_line

_FLAGS = ("-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=-s -w")
_FOLDER = Path(__file__).with_name("nri")


def nri_program(say: Say) -> Path:
    """Return the program, compiled first where it is not in the cache: half a minute with two CPUs.

    Raises:  CannotHave: it does not compile, or its modules cannot be downloaded.
    """
    home = cache_folder()
    home.mkdir(parents=True, exist_ok=True)
    inputs = [_FOLDER / "go.mod", _FOLDER / "go.sum", _FOLDER / "main.go"]
    digest = digest_of([*(path.read_bytes() for path in inputs), *(flag.encode() for flag in _FLAGS)])
    out = home / f"nri-adaptation-{digest}"
    with alone(home / "nri-adaptation.lock", say):
        if not out.exists():
            say("compiling tests/cluster/nri, once")
            unfinished = out.with_suffix(".unfinished")
            go_build(find_go(home, say), [*_FLAGS, "-o", str(unfinished), "."], _FOLDER, say)
            unfinished.rename(out)
    return out


if __name__ == "__main__":
    try:
        say_line(str(nri_program(say_line)))
    except CannotHave as error:
        sys.exit(f"cluster: {error}")
